#!/usr/bin/env bash
# A real Slurm of one node on loopback, from Debian's packages: slurm.sh install|start|stop.
# It pretends to have four CPUs, 8000 MB and two GPUs, keeps no accounts, and needs root.
set -euo pipefail
DIR=${SLURM_TEST_DIR:-/tmp/slurm-test}
NODE=$(hostname -s)
CONF=/etc/slurm/slurm.conf # in its place, since jobs of the executor forget SLURM_CONF
unset SLURM_CONF

install() {
  type slurmctld slurmd munged sbatch >/dev/null 2>&1 && return
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null
}

configure() {
  if [ -e $CONF ] && ! grep -qx ClusterName=loopback $CONF; then
    echo "slurm.sh: $CONF is another cluster's; leaving it alone" >&2
    exit 3
  fi
  mkdir -p /etc/slurm "$DIR"/{ctld,slurmd,munge,log}
  chmod 755 "$DIR" "$DIR/munge"
  [ -s "$DIR/munge/key" ] || (umask 077 && head -c 128 /dev/urandom >"$DIR/munge/key")
  for i in 0 1; do # a GPU must be a character device; these are like /dev/null
    [ -e "$DIR/nvidia$i" ] || mknod "$DIR/nvidia$i" c 1 3
  done
  echo "NodeName=$NODE Name=gpu Type=a100 File=$DIR/nvidia[0-1] Flags=nvidia_gpu_env" \
    >/etc/slurm/gres.conf
  cat >$CONF <<END
ClusterName=loopback
SlurmctldHost=$NODE(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
AuthInfo=socket=$DIR/munge/sock
StateSaveLocation=$DIR/ctld
SlurmdSpoolDir=$DIR/slurmd
SlurmctldPidFile=$DIR/slurmctld.pid
SlurmdPidFile=$DIR/slurmd.pid
SlurmctldLogFile=$DIR/log/slurmctld.log
SlurmdLogFile=$DIR/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
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
NodeName=$NODE NodeAddr=127.0.0.1 CPUs=4 RealMemory=8000 Gres=gpu:a100:2 State=UNKNOWN
PartitionName=cpu Nodes=$NODE Default=YES MaxTime=1-00:00:00 State=UP
PartitionName=gpu Nodes=$NODE MaxTime=1-00:00:00 State=UP
END
}

alive() { [ -s "$DIR/$1.pid" ] && kill -0 "$(cat "$DIR/$1.pid")" 2>/dev/null; }

start() {
  configure
  alive munged || munged --force --key-file="$DIR/munge/key" --socket="$DIR/munge/sock" \
    --pid-file="$DIR/munged.pid" --log-file="$DIR/log/munged.log" --seed-file="$DIR/munge/seed"
  alive slurmctld || slurmctld -c
  alive slurmd || slurmd -N "$NODE"
  for _ in $(seq 60); do
    [ "$(sinfo -h -o %t -p cpu 2>/dev/null)" = idle ] && return
    sleep 0.5
  done
  echo "slurm.sh: the node does not become idle" >&2
  tail -n 20 "$DIR"/log/*.log >&2
  return 1
}

stop() {
  if alive slurmctld; then
    scancel --user root || true
    sleep 2
  fi
  for name in slurmd slurmctld munged; do
    alive $name || continue
    pid=$(cat "$DIR/$name.pid")
    kill "$pid"
    for _ in $(seq 50); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.2
    done
  done
  rm -rf "$DIR"
  ! grep -qsx ClusterName=loopback $CONF || rm -f $CONF /etc/slurm/gres.conf
}

case ${1:-} in
install | start | stop) "$1" ;;
*) echo "usage: $0 install|start|stop" >&2 && exit 2 ;;
esac
