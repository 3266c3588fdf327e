"""Parameter bytes as the driver takes them."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdsl_core import dtypes as dt
from kdsl_core.errors import ArgumentError
from kdsl_runtime.parameters import ParameterBlock

MIXED = [("a", dt.u8), ("p", dt.u64), ("n", dt.i32), ("h", dt.f16), ("x", dt.f64), ("t", dt.bf16)]


def test_each_value_is_aligned_to_its_size():
    """The offsets are those that PTX gives to the same parameters."""
    block = ParameterBlock(MIXED)
    assert block.offsets == (0, 8, 16, 20, 24, 32)
    assert block.size == 34
    expected = struct.pack("<B7xQieH", 7, 1 << 40, -5, 1.5, 0)[:22]
    packed = block.pack([7, 1 << 40, -5, 1.5, 0.25, -2.0])
    assert packed[:22] == expected
    assert packed[24:32] == struct.pack("<d", 0.25)
    assert packed[32:] == np.asarray(-2.0, ml_dtypes.bfloat16).tobytes()


@given(st.lists(st.sampled_from(dt.ALL_DTYPES), max_size=12))
def test_offsets_are_those_of_c(dtypes):
    """No overlap, natural alignment, no gap larger than needed."""
    block = ParameterBlock([(str(number), dtype) for number, dtype in enumerate(dtypes)])
    end = 0
    for offset, dtype in zip(block.offsets, dtypes, strict=True):
        assert offset % dtype.bytes == 0 and 0 <= offset - end < dtype.bytes
        end = offset + dtype.bytes
    assert block.size == end


@pytest.mark.parametrize("dtype", dt.ALL_DTYPES)
def test_bytes_are_numpys(dtype):
    """One value of each type has the bytes that NumPy stores, from Python and NumPy numbers."""
    expected = np.asarray(1, dtype.numpy).tobytes()
    block = ParameterBlock([("x", dtype)])
    assert block.pack([1]) == block.pack([np.asarray(1, dtype.numpy)[()]]) == expected


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (dt.u32, -1),
        (dt.i8, 128),
        (dt.u64, 1 << 64),
        (dt.i32, 1.5),
        (dt.f32, "1"),
        (dt.bf16, "x"),
        (dt.f32, 1e300),
        (dt.u64, None),
    ],
)
def test_misfit_names_the_parameter(dtype, value):
    """A value out of range or of another kind is shown with the parameter's name and type."""
    block = ParameterBlock([("first", dt.u32), ("scale", dtype)])
    with pytest.raises(ArgumentError, match=f"scale: expected a value of type {dtype}") as caught:
        block.pack([0, value])
    assert caught.value.code == "K653"


@pytest.mark.parametrize("values", [[], [1], [1, 2, 3]])
def test_number_of_values(values):
    """Too few or too many values list what is expected."""
    with pytest.raises(ArgumentError, match=r"2 values \(p: u64, s: bf16\)") as caught:
        ParameterBlock([("p", dt.u64), ("s", dt.bf16)]).pack(values)
    assert caught.value.code == "K654"


def test_no_parameters():
    """A kernel without parameters packs to nothing."""
    assert ParameterBlock([]).pack([]) == b""
