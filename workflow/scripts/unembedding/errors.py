"""What can be wrong with a checkpoint, or with where its geometry is computed."""

from errors import UserError


class GeometryError(UserError):
    """A checkpoint, a file or a backend that cannot be used; the message says why."""
