"""Words that change an element of memory in one step, whichever threads do so together."""

from __future__ import annotations

from typing import Any

from kdsl_core.isa import atomic
from kdsl_core.lang.scalar import Scalar, as_scalar
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.tracer import builder


def _atomic(name: str, tensor: Tensor, coord: Any, value: Any, compare: Any = None) -> Scalar:
    place = tensor.place(coord)
    b = builder()
    scalar = as_scalar(value, tensor.dtype)
    compared = None if compare is None else as_scalar(compare, tensor.dtype).operand
    old = atomic.atomic(
        b, tensor.space, place.address, name, scalar.operand, compare=compared, offset=place.offset
    )
    return Scalar(old)


def atomic_add(tensor: Tensor, coord: Any, value: Any) -> Scalar:
    """Add to an element in one step; returns what it held before.

    Memory: relaxed, at the scope of the GPU.
    """
    return _atomic("add", tensor, coord, value)


def atomic_min(tensor: Tensor, coord: Any, value: Any) -> Scalar:
    """Replace an element by the smaller of it and `value`; returns what it held before."""
    return _atomic("min", tensor, coord, value)


def atomic_max(tensor: Tensor, coord: Any, value: Any) -> Scalar:
    """Replace an element by the larger of it and `value`; returns what it held before."""
    return _atomic("max", tensor, coord, value)


def atomic_exchange(tensor: Tensor, coord: Any, value: Any) -> Scalar:
    """Set an element; returns what it held before."""
    return _atomic("exch", tensor, coord, value)


def atomic_cas(tensor: Tensor, coord: Any, compare: Any, value: Any) -> Scalar:
    """Set an element to `value` if it equals `compare`; returns what it held before."""
    return _atomic("cas", tensor, coord, value, compare)
