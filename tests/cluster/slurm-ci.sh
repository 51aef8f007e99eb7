#!/usr/bin/env bash
# Real one-node Slurm on 127.0.0.1 for tests (root, Debian 12, no systemd). usage: slurm-ci.sh install|start|stop|status
set -euo pipefail
D=${SLURM_CI_DIR:-/tmp/slurm-ci}; H=$(hostname -s); CPUS=${SLURM_CI_CPUS:-4}; MEM=${SLURM_CI_MEM:-8000}
unset SLURM_CONF   # config must be in /etc/slurm: slurm-jobstep drops SLURM_* before its srun
install() {
  type slurmctld slurmd munged sbatch >/dev/null 2>&1 && return 0
  export DEBIAN_FRONTEND=noninteractive; apt-get update -qq
  apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null
}
configure() {
  if [ -e /etc/slurm/slurm.conf ] && ! grep -qx ClusterName=snakeci /etc/slurm/slurm.conf; then
    echo "refusing: /etc/slurm/slurm.conf is another cluster's" >&2; exit 3; fi
  mkdir -p /etc/slurm "$D"/{ctld,slurmd,munge,log}; chmod 755 "$D" "$D/munge"
  [ -s "$D/munge/key" ] || (umask 077; head -c 128 /dev/urandom >"$D/munge/key")
  for i in 0 1; do [ -e "$D/nvidia$i" ] || mknod "$D/nvidia$i" c 1 3; done   # fake GPUs (null devices)
  echo "NodeName=$H Name=gpu Type=a100 File=$D/nvidia[0-1] Flags=nvidia_gpu_env" >/etc/slurm/gres.conf
  cat >/etc/slurm/slurm.conf <<CONF
ClusterName=snakeci
SlurmctldHost=$H(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
AuthInfo=socket=$D/munge/sock
StateSaveLocation=$D/ctld
SlurmdSpoolDir=$D/slurmd
SlurmctldPidFile=$D/slurmctld.pid
SlurmdPidFile=$D/slurmd.pid
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=batch_sched_delay=0,bf_interval=1
AccountingStorageType=accounting_storage/none
MinJobAge=600
KillWait=3
ReturnToService=2
EnforcePartLimits=ALL
SlurmdParameters=config_overrides
DefMemPerCPU=100
GresTypes=gpu
NodeName=$H NodeAddr=127.0.0.1 CPUs=$CPUS RealMemory=$MEM Gres=gpu:a100:2 State=UNKNOWN
PartitionName=cpu Nodes=$H Default=YES MaxTime=1-00:00:00 State=UP
PartitionName=gpu Nodes=$H MaxTime=1-00:00:00 State=UP
CONF
}
alive() { [ -s "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }
start() {
  configure
  alive "$D/munged.pid" || munged --force --key-file="$D/munge/key" --socket="$D/munge/sock" \
    --pid-file="$D/munged.pid" --log-file="$D/log/munged.log" --seed-file="$D/munge/seed"
  alive "$D/slurmctld.pid" || slurmctld -c
  alive "$D/slurmd.pid" || slurmd -N "$H"
  for _ in $(seq 60); do [ "$(sinfo -h -o %t -p cpu 2>/dev/null)" = idle ] && { sinfo; return 0; }; sleep 0.5; done
  echo "slurm-ci: node not idle" >&2; sinfo -R >&2 || true; tail -vn 20 "$D"/log/*.log >&2; return 1
}
stop() {
  alive "$D/slurmctld.pid" && { scancel -u root || true; sleep 2; }
  for p in slurmd slurmctld munged; do
    alive "$D/$p.pid" || continue; pid=$(cat "$D/$p.pid"); kill "$pid"
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.2; done
  done
}
status() { sinfo -N -l; squeue --states=all -o "%i %P %T %M %m %C %l %b %k"; }
case ${1:-} in install|start|stop|status) "$1" ;; *) echo "usage: $0 install|start|stop|status" >&2; exit 2 ;; esac
