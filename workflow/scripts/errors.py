"""The mistakes that a person can mend."""


class UserError(Exception):
    """A mistake in the input or the environment, told so that it can be mended.

    The message says what happened, where (file, tensor, revision), what was expected and what was
    found, and what to do next. A job shows it without a traceback.
    """
