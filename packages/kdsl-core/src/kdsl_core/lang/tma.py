"""TMA: tiles of global tensors to and from shared memory, moved by the copy engine.

One thread starts a copy of a whole tile. A load completes at an mbarrier, a store in the thread's
bulk groups (`tma_store_commit`, `tma_store_wait`). What hangs over the tensor's edge is read as
zero and never written.
"""

from __future__ import annotations

import math
from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.dtypes import DType
from kdsl_core.errors import LayoutError, TypeMismatch
from kdsl_core.ir import Const, MapShape, Operand
from kdsl_core.ir.map_limits import ALIGNMENT, LARGEST_ELEMENT_STRIDE
from kdsl_core.ir.tensor_map import MAX_BOX, MAX_RANK
from kdsl_core.isa import arith, tma
from kdsl_core.lang.engine import Pointer
from kdsl_core.lang.mbarriers import Mbarrier
from kdsl_core.lang.scalar import Scalar, as_scalar
from kdsl_core.lang.tensor import Tensor, operand_of
from kdsl_core.lang.tensor_maps import tensor_map
from kdsl_core.lang.tma_boxes import Boxes, boxes_of, span_of
from kdsl_core.lang.tracer import builder
from kdsl_core.layout import ComposedLayout, Layout, Swizzle, is_static
from kdsl_core.loc import here
from kdsl_core.records import dataclass


@dataclass(frozen=True, eq=False)
class TmaTile:
    """A tile of a tensor that the TMA unit moves to or from shared memory in boxes."""

    map: Operand
    boxes: Boxes
    layout: Layout
    dtype: DType
    tile: tuple[int, ...]
    steps: tuple[int, ...] = ()  # from one element of the tile to the next, 1 where left out

    @property
    def bytes(self) -> int:
        """Bytes of one tile, which is what a load brings to its mbarrier."""
        return math.prod(self.tile) * self.dtype.bytes

    def prefetch(self) -> None:
        """Bring the tensor map to the TMA unit's cache. Threads: one."""
        tma.prefetch_map(builder(), self.map)

    def address(self, shared: Tensor) -> tuple[Operand, int]:
        """Register and static offset of a shared tile's first byte, once it fits the boxes."""
        _check_tile(self, shared)
        engine = shared.engine
        assert isinstance(engine, Pointer)
        place = engine.place(shared.offset, shared.dtype, None)
        if place.align % self.boxes.align:
            raise LayoutError(
                f"TMA needs a tile of {shared!r} to start at a multiple of {self.boxes.align} "
                f"bytes, known is {place.align}",
                code="K457",
                loc=here(),
                fix="start tiles at whole swizzle patterns: multiples of 8 lines",
            )
        return place.address, place.offset

    def _at(self, coord: Any, start: tuple[int, ...]) -> tuple[Operand, ...]:
        """The coordinates of a box, innermost first."""
        steps = self.steps or (1,) * len(self.tile)
        place = [coord[mode] + start[mode] * steps[mode] for mode in self.boxes.order]
        return self._whole_line(place[0]), *map(coordinate, place[1:])

    def _whole_line(self, number: Any) -> Operand:
        """The innermost coordinate, which must be a whole number of 16 bytes."""
        operand, step = coordinate(number), ALIGNMENT // self.dtype.bytes
        if isinstance(operand, Const) and operand.value % step:
            raise LayoutError(
                f"a TMA box of {self.dtype} starts at a multiple of {step} elements (16 bytes) "
                f"along the contiguous mode, got {operand.value}",
                code="K460",
                loc=here(),
                fix="start the tile at whole 16 bytes there; the other modes are free",
            )
        return operand

    def _coordinates(self, coord: Any) -> tuple[Any, ...]:
        whole = coord if isinstance(coord, tuple) else (coord,)
        if len(whole) != len(self.tile):
            raise LayoutError(
                f"a tile of {self.tile} needs {len(self.tile)} coordinates, got {coord!r}",
                code="K458",
                loc=here(),
                fix="pass the first element of the tile, one coordinate per mode of the tensor",
            )
        return whole


class TmaLoad(TmaTile):
    """Loads tiles of a tensor: ``load(destination, coord, barrier)``."""

    def __call__(
        self,
        destination: Tensor,
        coord: Any,
        barrier: Mbarrier,
        *,
        multicast: Any = None,
        cache: str | None = None,
        pred: Any = None,
    ) -> None:
        """Start copying the tile whose first element is at `coord`; `bytes` complete at `barrier`.

        `multicast` is a mask of blocks of the cluster that all receive it at the same places;
        `cache` "evict_first", "evict_last", "evict_normal" or "evict_unchanged" is advice for L2.

        Threads: each that comes here with `pred` starts a copy: let one. Memory: whoever has waited
        for the barrier's phase sees the data.
        """
        address, offset = self.address(destination)
        mask, policy = load_options(multicast, cache)
        guard = operand_of(pred)
        whole = self._coordinates(coord)
        for start, place in self.boxes.starts:
            tma.load(
                builder(),
                self.map,
                self._at(whole, start),
                address,
                barrier.address,
                destination_offset=offset + place * self.dtype.bytes,
                barrier_offset=barrier.offset,
                multicast=mask,
                policy=policy,
                pred=guard,
            )

    def prefetch_tile(self, coord: Any) -> None:
        """Bring a tile into L2. Threads: one."""
        whole = self._coordinates(coord)
        for start, _ in self.boxes.starts:
            tma.prefetch(builder(), self.map, self._at(whole, start))


class TmaStore(TmaTile):
    """Stores tiles of a tensor: ``store(source, coord)``."""

    def __call__(
        self, source: Tensor, coord: Any, reduce: str | None = None, *, cache: str | None = None
    ) -> None:
        """Start copying a shared tile to the tensor, its first element to `coord`.

        The tile may hang over the ends of the tensor but not over its beginnings.
        `reduce` combines with what is there: "add", "min", "max", "and", "or", "xor", "inc", "dec".

        Threads: each that comes here starts a copy: let one. Memory: after writing shared memory
        call `fence_proxy_async` and a barrier; `tma_store_commit` and `tma_store_wait` end it.
        """
        address, offset = self.address(source)
        _, policy = load_options(None, cache)
        whole = self._coordinates(coord)
        for start, place in self.boxes.starts:
            at = self._at(whole, start)
            _check_corner(at)
            where = offset + place * self.dtype.bytes
            tma.store(builder(), self.map, at, address, where, reduce=reduce, policy=policy)


def tma_load(
    tensor: Tensor,
    layout: Any,
    tile: Any,
    *,
    promotion: int = 256,
    steps: tuple[int, ...] | None = None,
) -> TmaLoad:
    """Loads of tiles of a global tensor into shared tiles laid out as `layout`.

    With `steps` a tile has every steps[i]-th element of mode i, which is 1 for the contiguous one.

    Shapes: `tile` has one extent per mode of the tensor, 1 for batches; `layout` is a layout or a
    shared tensor of one tile. The tensor is a view of an argument that parameters alone decide.
    Units: `promotion` in bytes of an L2 fetch (0, 64, 128, 256).
    Raises: LayoutError K454 (the tensor), K455 and K456 (the layout), K463 (the steps).
    """
    return TmaLoad(*_tile_of(tensor, layout, tile, promotion, steps))


def tma_store(tensor: Tensor, layout: Any, tile: Any) -> TmaStore:
    """Stores of shared tiles laid out as `layout` to tiles of a global tensor, as `tma_load`.

    Raises: also LayoutError K461 where the rows of the tensor end inside of 16 bytes: the hardware
    would overwrite what follows them.
    """
    extents = tuple(tile) if isinstance(tile, (tuple, list)) else (tile,)
    _check_row_ends(tensor, _contiguous(tensor, extents))
    return TmaStore(*_tile_of(tensor, layout, tile, 256))


def tma_store_commit() -> None:
    """Close the thread's group of TMA and bulk stores."""
    tma.commit(builder())


def tma_store_wait(pending: int, read: bool = True) -> None:
    """Wait until at most `pending` of the thread's groups are unfinished.

    With `read`, until their shared memory has been read; else until global memory is written.
    """
    tma.wait(builder(), pending, read)


def _check_corner(at: tuple[Operand, ...]) -> None:
    """The unit writes no box that starts before the tensor, though it reads such ones.

    Source: CUDA C++ Programming Guide, "Asynchronous data copies using the Tensor Memory
    Accelerator"; on an H200 it ends the kernel as an illegal instruction.
    """
    known = [operand.value for operand in at if isinstance(operand, Const)]
    if any(value < 0 for value in known):
        raise LayoutError(
            f"a TMA store starts at coordinates of 0 or more, got {min(known)}: only loads may "
            "start before the tensor",
            code="K462",
            loc=here(),
            fix="start the tile at 0, or store what lies inside with kd.copy",
        )


def _check_row_ends(tensor: Tensor, inner: int) -> None:
    """The unit clips stores at whole 16 bytes of the innermost mode, as was seen on an H200."""
    extent, size = tensor.layout[inner].shape, tensor.dtype.bytes
    known = (extent.divisor if isinstance(extent, Scalar) else int(extent)) * size
    if known % ALIGNMENT:
        raise LayoutError(
            f"TMA stores whole {ALIGNMENT} bytes: {_name(tensor)} = {tensor!r} has {extent!r} "
            f"elements along mode {inner}, a multiple of {known} bytes for all that is known",
            code="K461",
            loc=here(),
            fix="store with kd.copy, or give the tensor rows of a multiple of 16 bytes",
        )


# -- tensors and layouts ---------------------------------------------------------------------------
def _tile_of(
    tensor: Tensor,
    layout: Any,
    tile: Any,
    promotion: int,
    steps: tuple[int, ...] | None = None,
) -> tuple[Any, ...]:
    extents = tuple(tile) if isinstance(tile, (tuple, list)) else (tile,)
    steps = steps or (1,) * len(extents)
    plain, swizzle = shared_layout(layout)
    inner = _contiguous(tensor, extents)
    check_global(tensor, inner)
    _check_steps(steps, extents, inner)
    limits = tuple(MAX_BOX // step for step in steps)
    boxes = boxes_of(plain, swizzle, tensor.dtype, extents, inner, limits)
    shape = MapShape(
        tensor.dtype,
        tuple(boxes.box[mode] * steps[mode] for mode in boxes.order),
        boxes.swizzle,
        tuple(steps[mode] for mode in boxes.order),
        promotion=promotion,
    )
    return map_of(tensor, shape, boxes.order), boxes, plain, tensor.dtype, extents, steps


def _check_steps(steps: tuple[int, ...], extents: tuple[int, ...], inner: int) -> None:
    known = all(1 <= step <= LARGEST_ELEMENT_STRIDE for step in steps)
    if len(steps) != len(extents) or not known or steps[inner] != 1:
        raise LayoutError(
            f"the steps of a tile of {extents} are one number of 1 to {LARGEST_ELEMENT_STRIDE} for "
            f"each mode, and 1 along the contiguous mode {inner}, got {steps}",
            code="K463",
            loc=here(),
            fix="take every n-th element of a view with larger strides instead",
        )


def shared_layout(layout: Any) -> tuple[Layout, Swizzle | None]:
    """The layout and swizzle of a shared tile that is given by a layout or a tensor."""
    if isinstance(layout, Tensor):
        plain, swizzle = layout.layout, layout.swizzle
    elif isinstance(layout, ComposedLayout) and isinstance(layout.inner, Layout):
        plain, swizzle = layout.inner, layout.outer
    else:
        plain, swizzle = layout, None
    if not isinstance(plain, Layout) or not is_static(plain):
        raise TypeMismatch(
            f"TMA needs a static layout of the shared tile, got {layout!r}",
            code="K215",
            loc=here(),
            fix="pass the shared tensor's slice of one stage, or its layout",
        )
    return plain, swizzle


def _refuse_tensor(tensor: Tensor, why: str, fix: str) -> LayoutError:
    return LayoutError(
        f"TMA cannot describe {_name(tensor)} = {tensor!r}: {why}", code="K454", loc=here(), fix=fix
    )


def _name(tensor: Tensor) -> str:
    return (tensor.engine.name if isinstance(tensor.engine, Pointer) else "") or "tensor"


def _contiguous(tensor: Tensor, tile: tuple[int, ...]) -> int:
    """The mode whose elements are neighbours in global memory."""
    if len(tile) != len(tensor.layout):
        raise _refuse_tensor(
            tensor,
            f"the tile {tile} has {len(tile)} extents, the tensor {len(tensor.layout)} modes",
            "give one extent per mode, 1 for batches",
        )
    strides = [tensor.layout[mode].stride for mode in range(len(tile))]
    found = [mode for mode, step in enumerate(strides) if isinstance(step, int) and step == 1]
    if not found:
        raise _refuse_tensor(
            tensor, "no mode has stride 1", "pass a contiguous copy, or load it with kd.copy"
        )
    return max(found, key=lambda mode: tile[mode])


def check_global(tensor: Tensor, inner: int) -> None:
    """Rank, address and pitches, as far as they are known while tracing."""
    if tensor.space != "global" or len(tensor.layout) > MAX_RANK:
        raise _refuse_tensor(
            tensor, f"it takes global tensors of 1 to {MAX_RANK} modes", "select fewer modes first"
        )
    size = tensor.dtype.bytes
    for mode in range(len(tensor.layout)):
        extent, step = tensor.layout[mode].shape, tensor.layout[mode].stride
        if isinstance(extent, tuple) or isinstance(step, tuple):
            raise _refuse_tensor(
                tensor,
                f"mode {mode} is nested",
                "flatten it: tensor.with_layout(kd.flatten(tensor.layout))",
            )
        known = (step.divisor if isinstance(step, Scalar) else int(step)) * size
        if mode != inner and known % ALIGNMENT and not (isinstance(extent, int) and extent == 1):
            raise _refuse_tensor(
                tensor,
                f"the stride of mode {mode} is a multiple of {known} bytes for all that is known, "
                f"and must be one of {ALIGNMENT}",
                "pad the rows to a multiple of 16 bytes, or load it with kd.copy",
            )


def map_of(tensor: Tensor, shape: MapShape, order: tuple[int, ...]) -> Operand:
    """The tensor map's parameter; `order` lists the tensor's modes from the innermost on."""
    engine = tensor.engine
    assert isinstance(engine, Pointer)
    b = builder()
    place = engine.place(tensor.offset, tensor.dtype, None)
    address = place.address
    if place.offset:
        address = arith.binary(b, "add", address, Const(dt.u64, place.offset))
    modes = [tensor.layout[mode] for mode in order]
    sizes = [_i64(mode.shape) for mode in modes]
    strides = [_i64(mode.stride, tensor.dtype.bytes) for mode in modes[1:]]
    return tensor_map(shape, _name(tensor), address, sizes, strides)


def _i64(number: Any, times: int = 1) -> Operand:
    if not isinstance(number, Scalar):
        return Const(dt.i64, int(number) * times)
    return (number.to(dt.i64) * times).operand


def coordinate(number: Any) -> Operand:
    """A coordinate as the TMA unit takes it."""
    return as_scalar(number, dt.i32).to(dt.i32).operand


def load_options(multicast: Any, cache: str | None) -> tuple[Operand | None, Operand | None]:
    """The mask of blocks and the cache policy of a load, the same for all of its boxes."""
    mask = None if multicast is None else as_scalar(multicast, dt.u16).to(dt.u16).operand
    return mask, None if cache is None else tma.policy(builder(), cache)


def _check_tile(tile: TmaTile, shared: Tensor) -> None:
    """Whether a shared tensor is a tile of the layout that the boxes were derived from."""
    fits = shared.space == "shared" and shared.dtype is tile.dtype
    if not fits or (
        shared.layout != tile.layout or span_of(shared.swizzle, tile.dtype) != tile.boxes.swizzle
    ):
        raise TypeMismatch(
            f"TMA moves {tile.dtype} tiles laid out in shared memory as {tile.layout} with a "
            f"swizzle of {tile.boxes.swizzle} bytes, got {shared!r}",
            code="K459",
            loc=here(),
            fix="pass one stage of the shared tensor that the copy was made for",
        )
