"""Bulk copies: contiguous runs of elements, moved by the copy engine."""

from __future__ import annotations

from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.errors import LayoutError
from kdsl_core.isa import tma
from kdsl_core.lang.engine import Place
from kdsl_core.lang.mbarriers import Mbarrier
from kdsl_core.lang.scalar import as_scalar
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.tracer import builder
from kdsl_core.loc import here

_ALIGN = 16  # bytes, of addresses and sizes


def bulk_load(
    source: Tensor,
    destination: Tensor,
    count: Any,
    barrier: Mbarrier,
    *,
    multicast: Any = None,
    cache: str | None = None,
) -> None:
    """Start copying `count` neighbouring elements from global to shared memory.

    Their bytes (a multiple of 16) complete at `barrier`. Threads: let one come here.
    Raises: LayoutError K227 when addresses or size are not known to be multiples of 16 bytes.
    """
    b = builder()
    from_, to = _place(source), _place(destination)
    tma.bulk_load(
        b, to.address, from_.address, _bytes(source, count), barrier.address,
        destination_offset=to.offset, source_offset=from_.offset, barrier_offset=barrier.offset,
        multicast=None if multicast is None else as_scalar(multicast, dt.u16).to(dt.u16).operand,
        policy=None if cache is None else tma.policy(b, cache),
    )  # fmt: skip


def bulk_store(
    source: Tensor, destination: Tensor, count: Any, *, reduce: str | None = None
) -> None:
    """Start copying `count` neighbouring elements from shared to global memory.

    `reduce` combines with what is there. Memory: belongs to the thread's group of stores, which
    `tma_store_commit` closes. Threads: let one come here.
    """
    from_, to = _place(source), _place(destination)
    tma.bulk_store(
        builder(), to.address, from_.address, _bytes(source, count),
        destination_offset=to.offset, source_offset=from_.offset,
        reduce=None if reduce is None else (reduce, source.dtype),
    )  # fmt: skip


def _place(tensor: Tensor) -> Place:
    place = tensor.place(0)
    if place.align % _ALIGN:
        raise _misaligned(f"{tensor!r} starts at", place.align)
    return place


def _bytes(tensor: Tensor, count: Any) -> Any:
    size = as_scalar(count, dt.u32).to(dt.u32) * tensor.dtype.bytes
    known = count * tensor.dtype.bytes if isinstance(count, int) else size.divisor
    if known % _ALIGN:
        raise _misaligned(f"{count!r} elements are", known)
    return size.operand


def _misaligned(what: str, known: int) -> LayoutError:
    return LayoutError(
        f"a bulk copy needs multiples of {_ALIGN} bytes: {what} a multiple of {known} bytes "
        "for all that is known",
        code="K227",
        loc=here(),
        fix="align it, or state what you know with .assume_divisible(n)",
    )
