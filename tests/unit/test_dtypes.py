"""Stored numbers become numbers that NumPy computes with, and none of them changes."""

import struct

import numpy as np
import pytest
import torch

from unembedding.checkpoints.dtypes import STORAGE, storage_dtype, widen
from unembedding.errors import GeometryError

PATTERNS = np.arange(2**16, dtype="<u2")


def half(bits):
    """The value of a float16 by the definition of IEEE 754."""
    sign, exponent, fraction = bits >> 15, bits >> 10 & 31, bits & 1023
    if exponent == 31:
        return float("nan") if fraction else (-1.0) ** sign * float("inf")
    magnitude = (
        fraction * 2.0**-24 if exponent == 0 else (1 + fraction / 1024) * 2.0 ** (exponent - 15)
    )
    return (-1.0) ** sign * magnitude


def test_every_bfloat16_is_the_upper_half_of_its_float32():
    widened = widen(PATTERNS, "BF16")
    assert widened.dtype == np.float32
    assert widened.tobytes() == b"".join(struct.pack("<HH", 0, bits) for bits in range(2**16))


def test_every_bfloat16_that_is_a_number_has_the_value_torch_gives_it():
    expected = torch.from_numpy(PATTERNS.view(np.int16)).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(widen(PATTERNS, "BF16"), expected)


@pytest.mark.parametrize(
    ("bits", "single"),
    [
        (0x8000, 0x80000000),  # −0
        (0x0001, 0x00010000),  # the smallest subnormal
        (0x807F, 0x807F0000),  # the largest subnormal, negative
        (0xFF80, 0xFF800000),  # −∞
        (0x7F81, 0x7F810000),  # a signalling NaN
        (0xFFFF, 0xFFFF0000),  # a NaN with every bit set
    ],
)
def test_bfloat16_keeps_what_arithmetic_would_lose(bits, single):
    widened = widen(np.array([[bits]], "<u2"), "BF16")
    assert widened.shape == (1, 1)
    assert widened.view(np.uint32)[0, 0] == single


def test_every_float16_has_the_value_of_ieee_754():
    widened = widen(PATTERNS.view("<f2"), "F16")
    expected = np.array([half(bits) for bits in range(2**16)])
    assert widened.dtype == np.float32
    np.testing.assert_array_equal(widened, expected)
    np.testing.assert_array_equal(np.signbit(widened), PATTERNS >= 2**15)


@pytest.mark.parametrize(("dtype", "stored"), [("F32", "<f4"), ("F64", "<f8")])
def test_wider_types_stay_as_they_are(dtype, stored):
    bits = np.arange(0, 2**32, 65_537, dtype=np.uint32).astype(stored.replace("f", "u"))
    widened = widen(bits.view(stored), dtype)
    assert widened.dtype == np.dtype(stored)
    assert widened.tobytes() == bits.tobytes()


@pytest.mark.parametrize(("dtype", "size"), [("F64", 8), ("F32", 4), ("F16", 2), ("BF16", 2)])
def test_a_stored_number_has_its_size_and_is_little_endian(dtype, size):
    assert storage_dtype(dtype, "x").itemsize == size
    assert storage_dtype(dtype, "x") == storage_dtype(dtype, "x").newbyteorder("<")


@pytest.mark.parametrize("dtype", ["I8", "F8_E4M3", "BOOL", "C64", "", "f32"])
def test_a_type_that_is_no_plain_number_is_refused_by_name(dtype):
    with pytest.raises(GeometryError) as caught:
        storage_dtype(dtype, "lm_head.weight")
    assert f"'lm_head.weight' is stored as {dtype};" in str(caught.value)
    assert all(known in str(caught.value) for known in STORAGE)
