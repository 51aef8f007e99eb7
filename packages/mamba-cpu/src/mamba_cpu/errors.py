"""The mistakes that a person can mend."""

from typing import ClassVar


class MambaCpuError(Exception):
    """A mistake in the input or the environment; the message says what to do."""

    user_error: ClassVar[bool] = True
    """The workflow's log shows such an error without a traceback."""
