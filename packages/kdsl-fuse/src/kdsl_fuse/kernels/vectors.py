"""Vectors of neighbouring elements: how many go at a time, and how they are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import kdsl_core as kd
from kdsl_core.dtypes import DType, boolean, f32, i32, u8, u16, u32
from kdsl_core.lang.arguments import facts_of

ACCESS_BYTES = 16  # that a thread reads or writes at a time
_L2_BYTES = 50 << 20


def begin(config: Any) -> None:
    """Wait for the launch before, and let the next one fill what gets free, where targets can."""
    if config.overlap:
        kd.launch_dependents()  # once all blocks have begun
        kd.wait_for_dependencies()


def caching(read: int, written: int) -> dict[str, str]:
    """Cache operators `load` and `store` for so many bytes, each read or written once.

    Where L2 holds neither it keeps what was read longer than results, which then go to memory
    early and many at a time: on an H200 in 2 to 4 % less time. Results that it can hold stay there
    for whoever reads them next.
    """
    return {"load": "evict_last", "store": "cs"} if min(read, written) > _L2_BYTES else {}


def common_width(arrays: Sequence[Any], along: int) -> int:
    """Elements of one access to all arrays that are contiguous along a mode, at most 16 bytes.

    Of the widest type, as neighbouring threads should take neighbouring accesses. Vectors that
    start at a multiple of it are aligned in all of them and do not cross their ends.
    """
    width = 0
    for array in arrays:
        facts = facts_of(array, "array")
        if facts.strides[along] != 1:
            continue
        size = facts.dtype.bytes
        width = math.gcd(width, ACCESS_BYTES // size, facts.pointer // size, facts.shape[along])
        for mode, stride in enumerate(facts.strides):
            if mode != along and facts.shape[mode] > 1:
                width = math.gcd(width, stride)
    return max(width, 1)


def neighbours_at_a_time(operands: Sequence[Any], along: int) -> int:
    """Elements of one access to all arrays whose neighbours along a mode lie side by side.

    Others are read and written one by one; `neighbours` and `put` know which.
    """
    return common_width([x for x in operands if facts_of(x, "array").strides[along] == 1], along)


def neighbours(
    x: Any, place: tuple[Any, ...], along: int, width: int, inside: Any, cache: str = ""
) -> list[Any]:
    """The elements of an operand at `place` and the `width` − 1 places behind it along a mode.

    Where `inside` is false they are zero.
    """
    step = x.stride[along]
    if isinstance(step, int) and step == 0:
        return [x.load(place, inside)] * width
    if isinstance(step, int) and step == 1:
        return list(x.load_vector(place, width, inside, cache=cache))
    moved = [tuple(y + i * (mode == along) for mode, y in enumerate(place)) for i in range(width)]
    return [x.load(at, inside, cache=cache) for at in moved]


def put(
    x: Any, place: tuple[Any, ...], along: int, values: Sequence[Any], inside: Any, cache: str = ""
) -> None:
    """Write elements to `place` and those behind it along a mode, each rounded once."""
    converted = [value.to(x.dtype) for value in values]
    step = x.stride[along]
    if len(values) == 1 or (isinstance(step, int) and step == 1):
        x.store_vector(place, converted, inside, cache=cache)
        return
    for i, value in enumerate(converted):
        at = tuple(y + i * (mode == along) for mode, y in enumerate(place))
        x.store(at, value, inside, cache=cache)


def widened(x: Any) -> Any:
    """A scalar in the type in which kernels compute: 32 bits for narrower numbers."""
    return x.to(computed(x.dtype))


def computed(dtype: DType) -> DType:
    """The type in which kernels compute with elements of a type."""
    if dtype is boolean or dtype.bits >= 32:
        return dtype
    return f32 if dtype.is_float else u32 if dtype in (u8, u16) else i32
