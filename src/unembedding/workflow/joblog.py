"""Everything a job says goes into its log, from the first import on."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unembedding.errors import UserError, printable

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def logged_to(path: str) -> Iterator[None]:
    """Send stdout and stderr, also those of C libraries, to the log file of a rule.

    ``sys.__stderr__`` stays the terminal, for progress bars. An error of the user's ends the
    process with its message alone, in the log and on the terminal; any other exception leaves its
    traceback in the log and the place of the log on the terminal.
    """
    log = Path(path)
    log.parent.mkdir(parents=True, exist_ok=True)
    terminal = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):  # in any locale
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    sys.__stderr__ = terminal  # type: ignore[misc]
    library = logging.getLogger("unembedding")
    library.addHandler(heard := _Heard(logging.WARNING))
    try:
        yield
        sys.stdout.flush()
    except Exception as error:
        with suppress(OSError):  # of the log; the terminal comes first
            _report(_named(error, log), terminal, log)
        raise SystemExit(1) from None
    finally:
        library.removeHandler(heard)
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()


def tell(message: str) -> None:
    """Print a line into the log and on the terminal."""
    for place in (sys.stderr, sys.__stderr__):
        print(printable(message), file=place, flush=True)


def warn(message: str) -> None:
    """Print a warning into the log and on the terminal."""
    tell(f"Warning: {message}")


class _Heard(logging.Handler):
    """Passes on what the package warns of."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


def _named(error: Exception, log: Path) -> Exception:
    """Return what to report: a full disk under the log names no file, as all others do."""
    if not isinstance(error, OSError) or error.errno not in FULL or error.filename is not None:
        return error
    return UserError(
        f"Could not write {log}: {error.strerror}. Free some space or check the permissions, and "
        "run again."
    )


def _report(error: Exception, terminal: object, log: Path) -> None:
    expected = getattr(error, "user_error", False)  # of mamba_cpu too, which imports none of ours
    message = printable(f"{'Error' if expected else type(error).__name__}: {error}")
    print(f"{message}\n(log: {log})", file=terminal)  # type: ignore[call-overload]
    if expected:
        print(message, file=sys.stderr)
    else:
        traceback.print_exc()
