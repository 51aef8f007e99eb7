"""Run a script or a module, unchanged, with `mamba_ssm` and `causal_conv1d` provided."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from mamba_cpu.provide import provide

USAGE = "usage: python -m mamba_cpu (script.py | -m module) [arguments …]"


def main() -> None:
    """Run what the command line names."""
    match sys.argv[1:]:
        case ["-m", str(module), *_] if module:
            provide()
            sys.argv = sys.argv[2:]
            sys.path[0] = str(Path.cwd())
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [str(script), *_] if not script.startswith("-"):
            if not Path(script).is_file():
                raise SystemExit(f"there is no script {script}")
            provide()
            sys.argv = sys.argv[1:]
            sys.path[0] = str(Path(script).resolve().parent)
            runpy.run_path(script, run_name="__main__")
        case _:
            raise SystemExit(USAGE)


if __name__ == "__main__":
    main()
