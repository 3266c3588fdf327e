"""A kernel's parameters as the bytes that the driver takes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from kdsl_core.dtypes import DType, tensor_map
from kdsl_core.errors import ArgumentError
from kdsl_core.ir import TensorMap
from kdsl_core.ir.tensor_map import TENSOR_MAP_ALIGN
from kdsl_runtime.tensor_maps import encoded

# How Python's struct module writes each type; those that it lacks are converted to their bits.
_FORMATS = {
    "f64": "d", "f32": "f", "tf32": "f", "f16": "e", "bf16": "H", "e4m3": "B", "e5m2": "B",
    "i64": "q", "i32": "i", "i16": "h", "i8": "b",
    "u64": "Q", "u32": "I", "u16": "H", "u8": "B", "boolean": "?",
    "tensor_map": "128s",
}  # fmt: skip
_AS_BITS: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(np.uint16),
    "e4m3": np.dtype(np.uint8),
    "e5m2": np.dtype(np.uint8),
}
MISFITS = (struct.error, OverflowError, TypeError, ValueError)


class ParameterBlock:
    """The layout of a kernel's parameters in memory, each aligned to its own size.

    Tensor maps are 128 bytes at a multiple of 64.

    Units: `offsets` and `size` in bytes. `layout` is the block for Python's struct module.
    """

    def __init__(self, params: Sequence[tuple[str, DType]]) -> None:
        self.params = tuple(params)
        pieces: list[str] = []
        offsets, position = [], 0
        for _, dtype in self.params:
            gap = -position % _align(dtype)
            pieces.append(f"{gap}x{_FORMATS[dtype.name]}" if gap else _FORMATS[dtype.name])
            offsets.append(position + gap)
            position += gap + dtype.bytes
        self.offsets = tuple(offsets)
        self.size = position
        self.layout = "".join(pieces)
        self._struct = struct.Struct(f"<{self.layout}")
        self._converted = tuple(
            (index, dtype) for index, (_, dtype) in enumerate(self.params) if is_converted(dtype)
        )

    def pack_into(self, buffer: Any, values: Sequence[Any]) -> None:
        """Write `values` in order of the parameters.

        Raises: ArgumentError K653 (a value does not fit), K654 (their number).
        """
        bits = self.bits(values)
        try:
            self._struct.pack_into(buffer, 0, *bits)
        except MISFITS as problem:
            raise self.misfit(values) from problem

    def pack(self, values: Sequence[Any]) -> bytes:
        """The bytes that `pack_into` writes."""
        buffer = bytearray(self.size)
        self.pack_into(buffer, values)
        return bytes(buffer)

    def bits(self, values: Sequence[Any]) -> Sequence[Any]:
        """The values as Python's struct module takes them.

        Raises: ArgumentError K653 (one cannot be converted), K654 (their number).
        """
        if len(values) != len(self.params):
            names = ", ".join(f"{name}: {dtype}" for name, dtype in self.params)
            raise ArgumentError(
                f"expected {len(self.params)} values ({names}), got {len(values)}",
                code="K654",
                fix="pass one value for each kernel parameter",
            )
        if not self._converted:
            return values
        out = list(values)
        try:
            for index, dtype in self._converted:
                out[index] = _as_bits(dtype, out[index])
        except MISFITS as problem:
            raise self.misfit(values) from problem
        return out

    def misfit(self, values: Sequence[Any]) -> ArgumentError:
        """The error K653 for the first value that its type cannot hold."""
        pairs = zip(self.params, values, strict=True)
        name, dtype, value = next((*param, got) for param, got in pairs if not _fits(param[1], got))
        return ArgumentError(
            f"{name}: expected a value of type {dtype}, got {value!r} ({type(value).__name__})",
            code="K653",
            fix="pass a number in the range of that type",
        )


def _align(dtype: DType) -> int:
    return TENSOR_MAP_ALIGN if dtype is tensor_map else dtype.bytes


def is_converted(dtype: DType) -> bool:
    """Whether Python's struct module has no letter for the type."""
    return dtype is tensor_map or dtype.name in _AS_BITS


def _as_bits(dtype: DType, value: Any) -> int | bytes:
    if dtype is tensor_map:
        if not isinstance(value, TensorMap):
            raise TypeError(f"{value!r} is no tensor map")
        return encoded(value)
    return int(np.asarray(value, dtype=dtype.numpy).view(_AS_BITS[dtype.name]))


def _fits(dtype: DType, value: Any) -> bool:
    try:
        bits = _as_bits(dtype, value) if is_converted(dtype) else value
        struct.pack(f"<{_FORMATS[dtype.name]}", bits)
    except MISFITS:
        return False
    return True
