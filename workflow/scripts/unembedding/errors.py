"""The one exception that means: a person can mend this."""


class GeometryError(Exception):
    """A mistake in the input or the environment, told so that it can be mended.

    The message says what happened, where (file, tensor, revision), what was expected and what was
    found, and what to do next. It is shown without a traceback.
    """
