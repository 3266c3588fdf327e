"""Numeric types: one row each, with the NumPy type that stores it and its PTX spelling."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from kdsl_core.errors import TypeMismatch
from kdsl_core.records import dataclass


@dataclass(frozen=True)
class DType:
    """A numeric type.

    `kind` is "f" (float), "i" (signed), "u" (unsigned) or "b" (truth value). `numpy` stores one
    element. `ptx` is the type suffix of arithmetic instructions, `reg` the register class that
    holds one element: "b16", "b32", "b64", "f32", "f64" or "pred".
    """

    name: str
    bits: int
    kind: str
    numpy: np.dtype[Any]
    ptx: str
    reg: str

    def __repr__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def bytes(self) -> int:
        """Size of one element in memory; a truth value takes one byte."""
        return max(self.bits // 8, 1)

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        """Whether it is a signed or unsigned integer type."""
        return self.kind in "iu"


def _row(name: str, bits: int, kind: str, numpy: Any, ptx: str, reg: str) -> DType:
    return DType(name, bits, kind, np.dtype(numpy), ptx, reg)


f64 = _row("f64", 64, "f", np.float64, "f64", "f64")
f32 = _row("f32", 32, "f", np.float32, "f32", "f32")
tf32 = _row("tf32", 32, "f", np.float32, "tf32", "b32")  # f32 storage, 10 mantissa bits used
f16 = _row("f16", 16, "f", np.float16, "f16", "b16")
bf16 = _row("bf16", 16, "f", ml_dtypes.bfloat16, "bf16", "b16")
e4m3 = _row("e4m3", 8, "f", ml_dtypes.float8_e4m3fn, "e4m3", "b16")
e5m2 = _row("e5m2", 8, "f", ml_dtypes.float8_e5m2, "e5m2", "b16")
i64 = _row("i64", 64, "i", np.int64, "s64", "b64")
i32 = _row("i32", 32, "i", np.int32, "s32", "b32")
i16 = _row("i16", 16, "i", np.int16, "s16", "b16")
i8 = _row("i8", 8, "i", np.int8, "s8", "b16")
u64 = _row("u64", 64, "u", np.uint64, "u64", "b64")
u32 = _row("u32", 32, "u", np.uint32, "u32", "b32")
u16 = _row("u16", 16, "u", np.uint16, "u16", "b16")
u8 = _row("u8", 8, "u", np.uint8, "u8", "b16")
boolean = _row("boolean", 1, "b", np.bool_, "pred", "pred")

# What a kernel parameter may be besides numbers: 128 bytes that the driver encodes for TMA.
tensor_map = _row("tensor_map", 1024, "m", "V128", "b8", "b64")

ALL_DTYPES = (f64, f32, tf32, f16, bf16, e4m3, e5m2, i64, i32, i16, i8, u64, u32, u16, u8, boolean)
BY_NAME = {dtype.name: dtype for dtype in ALL_DTYPES}
_BY_NUMPY = {dtype.numpy: dtype for dtype in ALL_DTYPES if dtype is not tf32}


def dtype_of(spec: Any) -> DType:
    """The DType meant by a DType, a name ("bf16"), or a NumPy dtype."""
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, str) and spec in BY_NAME:
        return BY_NAME[spec]
    try:
        return _BY_NUMPY[np.dtype(spec)]
    except (TypeError, KeyError):
        names = ", ".join(BY_NAME)
        raise TypeMismatch(
            f"{spec!r} is not a numeric type of kdsl", code="K201", fix=f"use one of {names}"
        ) from None
