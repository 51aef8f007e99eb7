"""Storage types of checkpoints, and their widening to a type that NumPy can compute with."""

import numpy as np

from unembedding.errors import GeometryError

# How each safetensors dtype is read from disk. NumPy has no bfloat16: its bits arrive as integers.
STORAGE: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


def storage_dtype(dtype: str, tensor: str) -> np.dtype:
    """Return the NumPy dtype that holds the stored bits of safetensors dtype ``dtype``.

    Raises GeometryError, naming ``tensor``, for a type that is no plain floating-point number.
    """
    try:
        return STORAGE[dtype]
    except KeyError:
        raise GeometryError(
            f"Tensor {tensor!r} is stored as {dtype}; the geometry needs one of "
            f"{', '.join(STORAGE)}. A quantised checkpoint has to be dequantised first."
        ) from None


def widen(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Widen stored values to float32 (float64 stays), exactly and bit for bit.

    bfloat16 is the upper half of a float32, so shifting its bits keeps −0, subnormals, infinities
    and NaN payloads as they are.
    """
    if dtype == "BF16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "F16":
        return stored.astype(np.float32)
    return stored
