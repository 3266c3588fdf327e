"""Making tensors: shared memory, registers, views of an address, identities."""

from __future__ import annotations

from typing import Any

from kdsl_core.dtypes import DType, dtype_of
from kdsl_core.errors import TypeMismatch
from kdsl_core.isa import memory as isa_memory
from kdsl_core.lang.engine import Pointer, make_registers, swizzle_period
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.tracer import current
from kdsl_core.layout import ComposedLayout, Layout, cosize, is_static
from kdsl_core.loc import here

_PLAIN_ALIGN = 128
_SWIZZLED_ALIGN = 1024


def as_layout(shape: Any) -> Layout | ComposedLayout:
    """A layout as it is; a shape as its compact layout, first mode fastest."""
    return shape if isinstance(shape, (Layout, ComposedLayout)) else Layout(shape)


def smem(dtype: DType, layout: Any, *, align: int | None = None, name: str = "smem") -> Tensor:
    """A tensor in the block's shared memory, uninitialised.

    Shapes: `layout` must be static; a shape means its compact layout.
    Units: `align` in bytes, 1024 by default under a swizzle, else 128.
    Memory: shared by the threads of the block until it ends.
    """
    dtype, layout = dtype_of(dtype), as_layout(layout)
    _require_static(layout, "shared memory")
    elements = _elements(layout)
    align = align or (_SWIZZLED_ALIGN if isinstance(layout, ComposedLayout) else _PLAIN_ALIGN)
    tracer = current()
    size = elements * dtype.bytes
    alloc = tracer.kernel.allocate_shared(name, size, align, here(), dtype, layout)
    address = isa_memory.shared_address(tracer.builder, alloc)
    return Tensor.from_pointer(address, layout, dtype, space="shared", align=align, name=name)


def rmem(dtype: DType, layout: Any, *, name: str = "r") -> Tensor:
    """A tensor in the registers of each thread, unwritten.

    Shapes: `layout` must be static. Elements are reached with trace-time coordinates only.
    """
    dtype, layout = dtype_of(dtype), as_layout(layout)
    _require_static(layout, "registers")
    return Tensor(make_registers(dtype, cosize(layout), name), layout, dtype)


def rmem_like(tensor: Tensor, dtype: DType | None = None) -> Tensor:
    """Registers of a tensor's shape, compact."""
    return rmem(dtype or tensor.dtype, Layout(tensor.shape))


def recast(tensor: Tensor, dtype: DType, layout: Any) -> Tensor:
    """The memory of a shared or global tensor, from its first element on, seen as another type."""
    dtype, layout = dtype_of(dtype), as_layout(layout)
    place = tensor.place(0) if tensor.swizzle is None else None
    if place is None and not (isinstance(tensor.offset, int) and tensor.offset == 0):
        raise TypeMismatch(
            f"a swizzled view inside {tensor!r} cannot be recast: its start is permuted",
            code="K214",
            loc=here(),
            fix="recast the whole allocation, then slice",
        )
    if place is not None and place.offset % dtype.bytes:
        raise TypeMismatch(
            f"{tensor!r} starts {place.offset} bytes into its memory, which {dtype} of "
            f"{dtype.bytes} bytes do not divide",
            code="K218",
            loc=here(),
            fix="recast the whole tensor, then slice, or start at a whole element",
        )
    engine = tensor.engine
    assert isinstance(engine, Pointer)
    whole = Tensor.from_pointer(
        engine.address if place is None else place.address,
        layout,
        dtype,
        space=engine.space,
        align=engine.align if place is None else place.align,
        name=engine.name,
    )
    if place is not None and place.offset:
        return whole.with_layout(whole.layout, place.offset // dtype.bytes)
    return whole


def _elements(layout: Layout | ComposedLayout) -> int:
    """Elements that an allocation for `layout` spans: whole periods of its swizzle."""
    if isinstance(layout, Layout):
        return int(cosize(layout))
    period = swizzle_period(layout.outer)
    return int(-(-(layout.offset + cosize(layout.inner)) // period) * period)


def _require_static(layout: Layout | ComposedLayout, where: str) -> None:
    if not is_static(layout):
        raise TypeMismatch(
            f"{where} is laid out while tracing, but {layout} holds run-time sizes",
            code="K215",
            loc=here(),
            fix="use Python integers or kd.Static arguments for its shape and strides",
        )
