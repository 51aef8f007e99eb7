"""The mistakes that a person can mend."""

from typing import ClassVar

LONGEST_LINE = 2000  # characters of a message


class UserError(Exception):
    """A mistake in the input or the environment, told so that it can be mended.

    The message says what happened, where (file, tensor, revision), what was expected and what was
    found, and what to do next. A job shows it without a traceback.
    """

    user_error: ClassVar[bool] = True


class GeometryError(UserError):
    """A checkpoint, a file or a backend that cannot be used; the message says why."""


def printable(text: str) -> str:
    """Escape and shorten what a terminal cannot show: a message may quote a hostile file."""
    shown = (c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
    return "\n".join(map(_shortened, "".join(shown).split("\n")))


def _shortened(line: str) -> str:
    if len(line) <= LONGEST_LINE:
        return line
    half = LONGEST_LINE // 2  # what to do next stands at the end
    return f"{line[:half]} … {len(line) - 2 * half} characters … {line[-half:]}"
