"""Tensors for a class of arguments, with numbers that are the same on every machine.

The numbers come from SHAKE-256 of the argument's name and are put together from integers, so they
depend on no library's generator and are exact in their type: nothing is rounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.lang.tensor_class import TensorClass

Array = np.ndarray[Any, Any]

_SIGNIFICAND_BITS = {"f64": 53, "f32": 24, "tf32": 11, "f16": 11, "bf16": 8, "e4m3": 4, "e5m2": 3}
_NARROW_BITS = 16
SMALL_INTEGERS = 8  # wider ones may be indices: they stay below
_ALIGN_ELEMENTS = 16


def tensor(argument: TensorClass, sizes: Mapping[str, int]) -> Array:
    """An array that has every fact of its class; `sizes` are those by name."""
    shape = tuple(sizes[name] if name else n for name, n in argument.sizes)
    steps = _strides(argument, shape)
    ends = [(n - 1) * step for n, step in zip(shape, steps, strict=True)]
    before = -sum(min(end, 0) for end in ends)
    before = -(-before // _ALIGN_ELEMENTS) * _ALIGN_ELEMENTS
    after = sum(max(end, 0) for end in ends) + 1
    held = numbers(argument.name, argument.dtype, before + after)
    size = held.itemsize
    strides = tuple(step * size for step in steps)
    return np.ndarray(shape, held.dtype, held, before * size, strides)


def _strides(argument: TensorClass, shape: tuple[int, ...]) -> list[int]:
    """The contiguous mode first, then the others from the last: no two elements overlap."""
    steps, reach = [0] * len(shape), 1
    inner_first = sorted(range(len(shape)), key=lambda m: (argument.strides[m] != ("", 1), -m))
    for mode in inner_first:
        sign, number = argument.strides[mode]
        step = -(-reach // number) * number if sign else number
        reach = max(reach, step * shape[mode])
        steps[mode] = -step if sign == "-" else step
    return steps


def numbers(name: str, dtype: DType, count: int) -> Array:
    """`count` numbers: floats of either sign between 1/4 and 4, small or narrow integers."""
    seed = f"kdsl sample 1 {name} {dtype}".encode()
    words = np.frombuffer(hashlib.shake_256(seed).digest(8 * count), "<u8").astype(np.uint64)
    if dtype.is_float:
        return _floats(words, _SIGNIFICAND_BITS[dtype.name]).astype(dtype.numpy)
    if dtype.is_int and dtype.bits <= _NARROW_BITS:
        return words.astype(f"u{dtype.bytes}").view(dtype.numpy)
    return (words % (SMALL_INTEGERS if dtype.is_int else 2)).astype(dtype.numpy)


def _floats(words: Array, bits: int) -> Array:
    """±1.f × 2ᵉ for −2 ≤ e ≤ 1, f of `bits` − 1 bits; the lowest bits give sign and e."""
    significand = (words >> np.uint64(65 - bits)) | np.uint64(1 << (bits - 1))
    exponent = (words & np.uint64(3)).astype(np.int32) - (bits + 1)
    sign = 1.0 - 2.0 * ((words >> np.uint64(2)) & np.uint64(1)).astype(np.float64)
    return sign * np.ldexp(significand.astype(np.float64), exponent)


def canonical_bytes(array: Array, dtype: DType) -> bytes:
    """The elements in C order, little-endian, every NaN by the same bits."""
    bits = np.ascontiguousarray(array).view(f"<u{dtype.bytes}").copy()
    if dtype.is_float:
        bits[np.isnan(array.astype(np.float64))] = (1 << (dtype.bits - 1)) - 1
    return bits.tobytes()
