"""Run a script with `mamba_ssm` and `causal_conv1d` provided: python -m mamba_cpu script.py …"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from mamba_cpu.provide import provide

if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m mamba_cpu script.py [arguments …]")
    provide()
    script = sys.argv[1]
    if not Path(script).is_file():
        raise SystemExit(f"there is no script {script}")
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)  # as Python does for a script
    runpy.run_path(script, run_name="__main__")
