"""Matrix descriptors: 64 bits that tell `wgmma` where an operand lies in shared memory, and how.

Bits 0–13 hold the address, 16–29 and 32–45 the strides LBO and SBO, all in units of 16 bytes, and
62–63 the swizzle. Whatever is not known while tracing goes into one base for each tensor; tiles and
steps along K are then constants added to it.

Source: PTX ISA 9.0, "Matrix Descriptor Format" of `wgmma`.
"""

from __future__ import annotations

import math
from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.atoms.sm90.shared_layouts import UNIT, descriptor_fields, span_of
from kdsl_core.errors import KdslError, LayoutError
from kdsl_core.ir import Const, Operand
from kdsl_core.isa import arith, convert
from kdsl_core.lang.engine import Pointer
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.tracer import builder
from kdsl_core.layout import ComposedLayout, Layout
from kdsl_core.loc import here

_LEADING, _STRIDE, _CODE = 16, 32, 62  # first bits of the fields
_UNIT_BITS = UNIT.bit_length() - 1
_PERIOD_SPANS = 8
_ADDRESSES = UNIT << 14  # the field's; above it, in a cluster, an address names its block


def with_own_base(tensor: Tensor, major: str) -> Tensor:
    """A partition whose run-time offset is part of its address, and whose descriptor is at hand.

    Slicing it in a loop then adds to a descriptor that was made before the loop.
    """
    engine, offset = tensor.engine, tensor.offset
    assert isinstance(engine, Pointer)
    if isinstance(offset, Scalar):
        moved = offset.base.divisor * tensor.dtype.bytes
        if moved % _period(tensor) == 0:
            address = engine.place(offset.base, tensor.dtype, None).address
            align = math.gcd(engine.align, moved)
            engine = Pointer(engine.space, address, align, engine.name)
            tensor = Tensor(engine, tensor.layout, tensor.dtype, offset.plus, tensor.swizzle)
    _base(tensor, major)
    return tensor


def descriptor(tensor: Tensor, offset: int, major: str) -> Operand:
    """The descriptor of the instruction's operand that starts `offset` elements into a partition.

    Shapes: mode 0 of the partition is (rows, depth) of one instruction.
    Raises: LayoutError when the layout or where it starts is not what `wgmma` reads.
    """
    b, size = builder(), tensor.dtype.bytes
    start: Any = tensor.offset
    moving: Scalar | None = None
    if isinstance(start, Scalar):
        start, moving = start.plus, start.base
    fixed = (start + offset) * size
    _check_start(tensor, fixed, moving)
    found = _base(tensor, major)
    if moving is not None:
        found = arith.binary(b, "add", found, _units(moving, size))
    if fixed:
        found = arith.binary(b, "add", found, Const(dt.u64, fixed >> _UNIT_BITS))
    return found


def _units(moving: Scalar, size: int) -> Operand:
    """A run-time number of elements, whole units of them, in units."""
    b = builder()
    elements_bits = (UNIT // size).bit_length() - 1
    units = arith.binary(b, "shr", moving.operand, Const(dt.u32, elements_bits))
    return convert.convert(b, units, dt.u64)


def _base(tensor: Tensor, major: str) -> Operand:
    """The descriptor of the tensor's own address."""
    engine = tensor.engine
    assert isinstance(engine, Pointer)
    code, leading, stride = _fields(tensor, major)
    constant = code << _CODE
    constant |= (stride >> _UNIT_BITS) << _STRIDE | (leading >> _UNIT_BITS) << _LEADING
    b = builder()
    inside = arith.binary(b, "and", engine.address, Const(dt.u32, _ADDRESSES - 1))
    units = arith.binary(b, "shr", inside, Const(dt.u32, _UNIT_BITS))
    return arith.binary(b, "or", convert.convert(b, units, dt.u64), Const(dt.u64, constant))


def _fields(tensor: Tensor, major: str) -> tuple[int, int, int]:
    tile: Layout | ComposedLayout = tensor.layout[0]
    if tensor.swizzle is not None:
        tile = ComposedLayout(tensor.swizzle, 0, tile)
    try:
        return descriptor_fields(tile, tensor.dtype, major)
    except KdslError as error:
        error.loc = error.loc or here()
        raise


def _span(tensor: Tensor) -> int:
    plain = tensor.swizzle is None
    return UNIT if plain else span_of(ComposedLayout(tensor.swizzle, 0, Layout(1)), tensor.dtype)


def _period(tensor: Tensor) -> int:
    """Bytes after which the swizzle repeats: what a base must be a multiple of."""
    span = _span(tensor)
    return UNIT if span == UNIT else span * _PERIOD_SPANS


def _check_start(tensor: Tensor, fixed: int, moving: Scalar | None) -> None:
    """The address is a multiple of the period but for a step inside the first span."""
    engine, period, span = tensor.engine, _period(tensor), _span(tensor)
    assert isinstance(engine, Pointer)
    known = engine.align
    if moving is not None:
        known = math.gcd(known, moving.divisor * tensor.dtype.bytes)
    if known % period or fixed % UNIT or fixed % period >= span:
        raise LayoutError(
            f"an operand of wgmma starts {fixed} bytes from an address known to be a multiple of "
            f"{known}; with spans of {span} bytes it may start only in the first span, on 16 "
            f"bytes, of a period of {period}: {tensor!r}",
            code="K443",
            loc=here(),
            fix="start tiles at whole atoms (8 rows of a span), in memory from kd.smem, which is "
            "aligned to 1024 bytes",
        )
