"""What a backend cannot do, said before it is tried."""

from __future__ import annotations

from unembedding.errors import GeometryError
from unembedding.tensors.files import BLOCK_BYTES

# 1 + 6n + 2n² elements of LAPACK's workspace fit a 32-bit integer up to 32766, and the dsyrk of
# OpenBLAS 0.3.30 on two threads crashes from between 28000 and 29000 on.
LARGEST = 28000


def require_lapack(width: int) -> None:
    """Raise GeometryError for a matrix too large for BLAS and LAPACK with 32-bit integers."""
    if width > LARGEST:
        raise GeometryError(
            f"A width of {width} is beyond BLAS and LAPACK on the CPU, which count in 32 bits: at "
            f"most {LARGEST}. Use `backend: cupy`."
        )


def require_memory(step: str, width: int, itemsize: int, free: int, device: str) -> None:
    """Raise GeometryError where a step would not fit the ``free`` bytes of a GPU.

    Counts what the step allocates: matrices of d × d, in float64 or in numbers of ``itemsize``
    bytes, and a block of rows as it arrives, centred, and converted.
    """
    square, blocks = width**2, 3 * BLOCK_BYTES
    needed = {
        "gram": (8 + itemsize) * square + blocks,  # the sum and the product of one block
        "eigh": 4 * itemsize * square,  # the matrix, its eigenvectors, and a workspace of two
        "scaled_outer": 3 * 8 * square,
        "products": 4 * square + blocks,
    }[step]
    if needed > free:
        raise GeometryError(
            f"`{step}` of width {width} needs about {needed / 2**30:.2f} GiB on {device}, where "
            f"{free / 2**30:.2f} GiB are free. Use `backend: numpy`, or free the GPU's memory."
        )
