"""Everything a job says goes into its log, from the first import on."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from errors import UserError


@contextmanager
def logged_to(path: str) -> Iterator[None]:
    """Send stdout and stderr, also those of C libraries, to the log file of a rule.

    ``sys.__stderr__`` stays the terminal, for progress bars. A UserError ends the process
    with its message alone, in the log and on the terminal; any other exception leaves its
    traceback in the log and the place of the log on the terminal.
    """
    log = Path(path)
    log.parent.mkdir(parents=True, exist_ok=True)
    terminal = os.fdopen(os.dup(2), "w", buffering=1)
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.__stderr__ = terminal  # type: ignore[misc]
    try:
        yield
    except Exception as error:
        _report(error, terminal, log)
        raise SystemExit(1) from None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _report(error: Exception, terminal: object, log: Path) -> None:
    expected = isinstance(error, UserError)
    message = _printable(f"{'Error' if expected else type(error).__name__}: {error}")
    print(f"{message}\n(log: {log})", file=terminal)  # type: ignore[call-overload]
    if expected:
        print(message, file=sys.stderr)
    else:
        traceback.print_exc()


def _printable(text: str) -> str:
    """Escape what a terminal would obey or cannot show: a message may quote a hostile file."""
    shown = (c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
    return "".join(shown)
