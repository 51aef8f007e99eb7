"""Snakemake, and the scripts of its jobs, in processes that begin with their modules imported.

Of a run's seconds on tiny checkpoints most are imports. Here a server, which has imported them and
done nothing else, forks a process for each run and for each job of it: the same Snakefile, scripts,
files and signals as ever, some five times as fast.
"""

import atexit
import gc
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from subprocess import CalledProcessError, CompletedProcess
from typing import Any, NoReturn, Self

SERVER = "WARM_SERVER"  # the variable that tells a run where the server listens

# Seconds. Snakemake 9.27 waits for ever where a signal meets its scheduler: the handler takes a
# lock that the same thread holds.
PATIENCE = 60


class WarmProcesses:
    """The server, to be closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "warm.socket")
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        line = [sys.executable, __file__, self.address]
        self._server = subprocess.Popen(
            line, env={**os.environ, **paths}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._server.communicate()

    def start(
        self, command: Sequence[str], folder: Path, variables: Mapping[str, str]
    ) -> "Started":
        """Start ``python -m snakemake …`` in a process group of its own."""
        (folder / "output").unlink(missing_ok=True)
        arguments = list(command[command.index("snakemake") + 1 :])
        given = {**variables, SERVER: self.address}
        return Started(self.address, "snakemake", arguments, str(folder), given, 0)

    def run(
        self, command: Sequence[str], folder: Path, variables: Mapping[str, str]
    ) -> CompletedProcess[str]:
        """Run it to its end."""
        code = self.start(command, folder, variables).wait()
        return CompletedProcess(list(command), code, (folder / "output").read_text())


class Started:
    """A process that the server has forked."""

    def __init__(self, address: str, *request: Any) -> None:
        self._connection = Client(address, "AF_UNIX")
        self._connection.send(request)
        self.pid: int = self._connection.recv()

    def wait(self) -> int:
        """Return the exit status, negative for a signal."""
        return self._connection.recv()

    def kill(self, signum: int) -> None:
        """Send a signal to the process and its jobs, and wait until all of them have ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signum)
        if not self._connection.poll(PATIENCE):
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        with suppress(ProcessLookupError):
            while True:
                os.killpg(self.pid, 0)
                time.sleep(0.02)


def _serve(address: str) -> None:
    """Fork a process for each request, and one that waits for it; return in the former."""
    with Listener(address, "AF_UNIX") as listener:
        print("ready", flush=True)
        while True:
            connection = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass
        what, arguments, folder, variables, group = connection.recv()
        if pid := os.fork():
            _watch(connection, pid, group)
    os.setpgid(0, group)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    output = os.open(f"{folder}/output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    _to_the_end(_snakemake if what == "snakemake" else _script, arguments)


def _to_the_end(function: Callable[[Any], None], argument: Any) -> NoReturn:
    """Call a function and exit as Python does, but for taking all modules apart, which is slow."""
    code = 0
    try:
        function(argument)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _watch(connection: Connection, pid: int, group: int) -> None:
    try:
        os.setpgid(pid, group)
    except OSError:  # the run has been killed meanwhile
        os.kill(pid, signal.SIGKILL)
    with suppress(OSError):
        connection.send(pid)
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):
        connection.send(os.waitstatus_to_exitcode(status))
    os._exit(0)


def _snakemake(arguments: list[str]) -> None:
    from snakemake.cli import main
    from snakemake.script import PythonScript

    def execute(script: Any, fname: str, edit: bool = False) -> None:
        group, variables = os.getpgrp(), dict(os.environ)
        code = Started(
            os.environ[SERVER], "script", fname, str(Path.cwd()), variables, group
        ).wait()
        if code:
            raise CalledProcessError(code, fname)

    PythonScript.execute_script = execute
    main(arguments)


def _script(file: str) -> None:
    sys.argv = [file]
    runpy.run_path(file, run_name="__main__")


def _import_all() -> None:
    import scipy.linalg  # noqa: F401
    from snakemake.cli import get_argument_parser

    import unembedding.covariance
    import unembedding.extraction
    import unembedding.plots
    import unembedding.transform
    import unembedding.workflow.configuration
    import unembedding.workflow.preflight
    import unembedding.workflow.salvage
    import unembedding.workflow.stage  # noqa: F401
    from unembedding.workflow.provenance import HOME, code_digest

    get_argument_parser()  # loads the plugins
    for script in (HOME / "workflow/scripts").glob("*.py"):
        code_digest(script.name)


if __name__ == "__main__":
    _import_all()
    gc.freeze()
    _serve(sys.argv[1])
