"""Tensor maps as the 128 bytes that the driver encodes for the TMA unit."""

from __future__ import annotations

import struct
from functools import lru_cache
from types import ModuleType
from typing import Any

from kdsl_core.errors import ArgumentError, DriverError
from kdsl_core.ir import TensorMap
from kdsl_core.ir.map_limits import check_map
from kdsl_runtime import driver

_MOST_KEPT = 4096
_NO_STRIDE = 16
# The element's bytes are what counts, and its type where the unit fills, converts or reduces.
TYPES = {
    "f64": "FLOAT64", "f32": "FLOAT32", "tf32": "TFLOAT32", "f16": "FLOAT16", "bf16": "BFLOAT16",
    "e4m3": "UINT8", "e5m2": "UINT8", "boolean": "UINT8", "i8": "UINT8", "u8": "UINT8",
    "i16": "UINT16", "u16": "UINT16", "i32": "INT32", "u32": "UINT32", "i64": "INT64",
    "u64": "UINT64",
}  # fmt: skip
SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
PROMOTIONS = {0: "NONE", 64: "L2_64B", 128: "L2_128B", 256: "L2_256B"}
FILLS = {"zeros": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}


@lru_cache(maxsize=_MOST_KEPT)
def encoded(described: TensorMap) -> bytes:
    """The map for the hardware; equal maps are encoded once.

    Threads: safe.
    Raises: ArgumentError K630 … K638 before the driver is asked, DriverError K805 when it refuses.
    """
    check_map(described)
    bindings = driver.require_driver()
    words = _choices(bindings, described)
    encode = _encode_tiled if described.shape.im2col is None else _encode_im2col
    code, made = encode(bindings, described, words)
    if code != bindings.CUresult.CUDA_SUCCESS:
        raise DriverError(
            f"the driver refused the tensor map of {described.tensor}: {code!r} for {described}",
            code="K805",
            fix="report it: kdsl checks every documented limit before it asks",
        )
    return struct.pack("<16Q", *map(int, made.opaque))


def _encode_tiled(bindings: ModuleType, described: TensorMap, words: tuple[Any, ...]) -> Any:
    shape = described.shape
    box = _u32(bindings, shape.box)
    return bindings.cuTensorMapEncodeTiled(*_memory(bindings, described), box, *words)


def _encode_im2col(bindings: ModuleType, described: TensorMap, words: tuple[Any, ...]) -> Any:
    walk = described.shape.im2col
    assert walk is not None
    return bindings.cuTensorMapEncodeIm2col(
        *_memory(bindings, described),
        list(walk.lower),
        list(walk.upper),
        walk.channels,
        walk.pixels,
        *words,
    )


def _memory(bindings: ModuleType, described: TensorMap) -> tuple[Any, ...]:
    """Type, rank, address, sizes and strides, the driver's first arguments."""
    word = TYPES[described.shape.dtype.name]
    kind = getattr(bindings.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{word}")
    sizes = [bindings.cuuint64_t(size) for size in described.sizes]
    # The driver wants a pointer to strides even where a vector has none.
    strides = [bindings.cuuint64_t(stride) for stride in described.strides or (_NO_STRIDE,)]
    return kind, described.shape.rank, described.address, sizes, strides


def _choices(bindings: ModuleType, described: TensorMap) -> tuple[Any, ...]:
    """Element strides, interleave, swizzle, L2 promotion and fill, the driver's last arguments."""
    shape = described.shape
    steps = shape.element_strides or (1,) * shape.rank
    return (
        _u32(bindings, steps),
        bindings.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        _word(bindings.CUtensorMapSwizzle, "SWIZZLE", SWIZZLES, shape.swizzle),
        _word(bindings.CUtensorMapL2promotion, "L2_PROMOTION", PROMOTIONS, shape.promotion),
        _word(bindings.CUtensorMapFloatOOBfill, "FLOAT_OOB_FILL", FILLS, shape.fill),
    )


def _word(kind: Any, what: str, words: dict[Any, str], given: Any) -> Any:
    if given not in words:
        raise ArgumentError(
            f"a tensor map's {what.lower()} is one of {', '.join(map(repr, words))}, got {given!r}",
            code="K638",
            fix=f"write one of {', '.join(map(repr, words))}",
        )
    return getattr(kind, f"CU_TENSOR_MAP_{what}_{words[given]}")


def _u32(bindings: ModuleType, numbers: tuple[int, ...]) -> list[Any]:
    return [bindings.cuuint32_t(number) for number in numbers]
