"""Tensors: an engine (where elements live) and a layout (which element is where)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kdsl_core.dtypes import DType, i32
from kdsl_core.errors import KdslError, LayoutError, StagingError, TypeMismatch
from kdsl_core.ir import Operand
from kdsl_core.lang.engine import (
    Coordinates,
    Place,
    Pointer,
    Registers,
    load_elements,
    store_elements,
)
from kdsl_core.lang.scalar import Scalar, as_scalar
from kdsl_core.lang.signature import TensorType
from kdsl_core.layout import (
    ArithmeticTuple,
    ComposedLayout,
    Layout,
    Swizzle,
    crd2idx,
    group_modes,
    local_partition,
    local_tile,
    make_identity_layout,
    size,
    slice_and_offset,
)
from kdsl_core.loc import here


class Tensor:
    """Elements of one dtype in global, shared or register memory, addressed by coordinates.

    `layout` maps coordinates to element offsets, `offset` is where it starts in the engine, and
    `swizzle` (shared memory) permutes the sum. Tensors are values of meta code: slicing one
    makes another view of the same elements.
    """

    __slots__ = ("dtype", "engine", "layout", "offset", "swizzle")

    def __init__(
        self,
        engine: Pointer | Registers | Coordinates,
        layout: Layout,
        dtype: DType,
        offset: Any = 0,
        swizzle: Swizzle | None = None,
    ) -> None:
        self.engine = engine
        self.layout = layout
        self.dtype = dtype
        self.offset = offset
        self.swizzle = swizzle

    def __class_getitem__(cls, item: Any) -> TensorType:
        """The annotation of a kernel's tensor argument: ``kd.Tensor["f16|bf16", "m n"]``."""
        return TensorType.parse(item)

    @classmethod
    def from_pointer(
        cls,
        address: Operand,
        layout: Layout | ComposedLayout,
        dtype: DType,
        *,
        space: str = "global",
        align: int = 1,
        name: str = "",
    ) -> Tensor:
        """A tensor over memory at `address`, whose alignment in bytes is known to be `align`."""
        swizzle: Swizzle | None = None
        offset: Any = 0
        plain = layout
        if isinstance(layout, ComposedLayout):
            swizzle, offset, plain = layout.outer, layout.offset, layout.inner
        assert isinstance(plain, Layout)
        return cls(Pointer(space, address, align, name), plain, dtype, offset, swizzle)

    # -- shape -------------------------------------------------------------------------------
    @property
    def shape(self) -> Any:
        """The extents, as nested tuples of ints and run-time sizes."""
        return self.layout.shape

    @property
    def stride(self) -> Any:
        """The strides in elements."""
        return self.layout.stride

    @property
    def space(self) -> str:
        """ "global", "shared", "cluster", "register" or "coordinate"."""
        if isinstance(self.engine, Pointer):
            return self.engine.space
        return "register" if isinstance(self.engine, Registers) else "coordinate"

    def __repr__(self) -> str:
        swizzle = f"{self.swizzle}o" if self.swizzle else ""
        return f"Tensor({self.space} {self.dtype} {swizzle}{self.layout})"

    def with_layout(self, layout: Layout, offset: Any = 0) -> Tensor:
        """The same elements through another layout that starts `offset` elements further."""
        return Tensor(self.engine, layout, self.dtype, self.offset + offset, self.swizzle)

    def group(self, begin: int, end: int) -> Tensor:
        """The same tensor with modes begin … end − 1 joined into one."""
        return self.with_layout(group_modes(self.layout, begin, end))

    def tile(self, tiler: Any, coord: Any, proj: Any = None) -> Tensor:
        """The tile at `coord` when the tensor is cut into tiles of shape `tiler`."""
        return self.with_layout(*_checked(lambda: local_tile(self.layout, tiler, coord, proj)))

    def partition(self, threads: Any, thread: Any) -> Tensor:
        """The elements of one thread when a thread layout tiles the tensor."""
        return self.with_layout(*_checked(lambda: local_partition(self.layout, threads, thread)))

    # -- elements ----------------------------------------------------------------------------
    def __getitem__(self, coord: Any) -> Any:
        coord = self._full(coord)
        if _has_none(coord):
            return self.with_layout(*_checked(lambda: slice_and_offset(coord, self.layout)))
        if isinstance(self.engine, Coordinates):
            return _as_tuple(self.offset + self.layout(coord))
        return self.load(coord)

    def __setitem__(self, coord: Any, value: Any) -> None:
        coord = self._full(coord)
        if _has_none(coord):
            raise StagingError(
                f"one element is assigned at a time, got the coordinate {coord!r}",
                code="K310",
                loc=here(),
                fix="use kd.copy(source, destination) for a slice",
            )
        self.store(coord, value)

    def load(self, coord: Any, pred: Any = None, *, cache: str = "") -> Scalar:
        """One element; where `pred` is false, zero without touching memory."""
        if isinstance(self.engine, Registers):
            return self.engine.read(self.index(coord))
        return self.load_vector(coord, 1, pred, cache=cache)[0]

    def store(self, coord: Any, value: Any, pred: Any = None, *, cache: str = "") -> None:
        """Set one element, converted to the tensor's type when `value` is a Python number."""
        scalar = self._fitting(value)
        if isinstance(self.engine, Registers):
            self.engine.write(self.index(coord), scalar)
        else:
            self.store_vector(coord, [scalar], pred, cache=cache)

    def load_vector(
        self, coord: Any, count: int, pred: Any = None, *, cache: str = ""
    ) -> list[Scalar]:
        """`count` elements that follow one another in memory, from `coord` on.

        Memory: `cache` is how global memory's caches treat them: "ca" as usual, "cg" not in L1,
        "cs" read once, "nc" through the read-only path, for what nobody writes meanwhile;
        "evict_first" and "evict_last" leave L1 and L2 before or after others.
        """
        space, pred = self._pointer("loaded from").space, operand_of(pred)
        return load_elements(self.place(coord), space, self.dtype, count, pred, cache)

    def store_vector(
        self, coord: Any, values: list[Any], pred: Any = None, *, cache: str = ""
    ) -> None:
        """Set elements that follow one another in memory, from `coord` on.

        Memory: `cache` is how global memory's caches treat them: "wb" as usual, "cg" not in L1,
        "cs" not used again soon, "wt" through L2 as well.
        """
        space, pred = self._pointer("stored to").space, operand_of(pred)
        scalars = [self._fitting(value) for value in values]
        store_elements(self.place(coord), space, self.dtype, scalars, pred, cache)

    def fill(self, value: Any) -> Tensor:
        """Set every element of a register tensor; returns the tensor."""
        if not isinstance(self.engine, Registers):
            raise TypeMismatch(
                f"fill takes a register tensor, got {self!r}", code="K211", loc=here(),
                fix="write a loop over its elements, or fill registers and kd.copy them",
            )  # fmt: skip
        scalar = self._fitting(value)
        registers = len(self.engine.variables) * self.engine.per_variable
        if size(self.layout) == registers:
            self.engine.write_all([scalar] * registers)
        else:  # a part of them
            for index in range(size(self.layout)):
                self[index] = scalar
        return self

    def as_dtype(self, dtype: DType) -> Tensor:
        """The same registers read as another type of the same width."""
        engine = self.engine
        if dtype is self.dtype:
            return self
        if not isinstance(engine, Registers) or dtype.bits != self.dtype.bits:
            raise TypeMismatch(
                f"{self!r} cannot be read as {dtype}", code="K217", loc=here(),
                fix="reinterpret registers of equal width, or convert elements with .to()",
            )  # fmt: skip
        variables = Registers(engine.variables, dtype)
        return Tensor(variables, self.layout, dtype, self.offset)

    def place(self, coord: Any) -> Place:
        """The address of an element."""
        pointer = self._pointer("addressed")
        return pointer.place(self._offset_at(coord), self.dtype, self.swizzle)

    def index(self, coord: Any) -> int:
        """The static register index of an element."""
        offset = self._offset_at(coord)
        if isinstance(offset, Scalar):
            raise StagingError(
                f"registers have no addresses: {self!r} is indexed at run time by {coord!r}",
                code="K311",
                loc=here(),
                fix="index with Python integers (unroll the loop: `for i in range(n)`), or keep "
                "the data in shared memory",
            )
        return int(offset)

    def __iter__(self) -> Any:
        raise StagingError(
            f"{self!r} is not iterable", code="K312", loc=here(),
            fix="write `for i in range(kd.size(t)): … t[i]`",
        )  # fmt: skip

    def __bool__(self) -> bool:
        raise StagingError(
            f"{self!r} has no truth value", code="K313", loc=here(),
            fix="compare an element, or write `is None` for a missing tensor",
        )  # fmt: skip

    # -- helpers -----------------------------------------------------------------------------
    def _full(self, coord: Any) -> Any:
        """The coordinate with an ellipsis spelled out."""
        if not isinstance(coord, tuple):
            return coord if coord is not Ellipsis else (None,) * len(self.layout)
        if any(part is Ellipsis for part in coord):
            at = next(i for i, part in enumerate(coord) if part is Ellipsis)
            missing = len(self.layout) - len(coord) + 1
            return coord[:at] + (None,) * missing + coord[at + 1 :]
        return coord

    def _offset_at(self, coord: Any) -> Any:
        self._check_bounds(coord)
        return self.offset + _checked(lambda: crd2idx(coord, self.layout))

    def _check_bounds(self, coord: Any) -> None:
        total = size(self.layout)
        if isinstance(coord, int) and isinstance(total, int) and not 0 <= coord < total:
            self._out_of_range(coord, total)
        if isinstance(coord, tuple) and len(coord) == len(self.layout):
            for mode, part in enumerate(coord):
                extent = size(self.layout[mode])
                if isinstance(part, int) and isinstance(extent, int) and not 0 <= part < extent:
                    self._out_of_range(coord, extent)

    def _out_of_range(self, coord: Any, extent: int) -> None:
        raise LayoutError(
            f"coordinate {coord} is outside {self!r}: the extent there is {extent}",
            code="K151",
            loc=here(),
            fix="coordinates count from 0; tiles that hang over are kept in bounds by predicates",
        )

    def _pointer(self, verb: str) -> Pointer:
        if isinstance(self.engine, Pointer):
            return self.engine
        raise TypeMismatch(
            f"{self!r} is {verb} like memory, but it has no address",
            code="K212",
            loc=here(),
            fix="use its elements t[i], or kd.copy",
        )

    def _fitting(self, value: Any) -> Scalar:
        dtype = self.dtype
        scalar = value if isinstance(value, Scalar) else as_scalar(value, dtype)
        if scalar.dtype is not dtype:
            raise TypeMismatch(
                f"a {scalar.dtype} value is stored to {self!r} of type {dtype}",
                code="K213",
                loc=here(),
                fix=f"convert it: value.to(kd.{dtype})",
            )
        return scalar


def operand_of(pred: Any) -> Operand | None:
    """A predicate as an operand; None when it is statically true."""
    if pred is None or pred is True:
        return None
    return as_scalar(pred).operand


def identity_tensor(shape: Any) -> Tensor:
    """The tensor whose element at a coordinate is that coordinate."""
    return Tensor(Coordinates(), make_identity_layout(shape), i32, ArithmeticTuple())


def _as_tuple(coordinate: Any) -> Any:
    return tuple(coordinate) if isinstance(coordinate, ArithmeticTuple) else coordinate


def _has_none(coord: Any) -> bool:
    if isinstance(coord, tuple):
        return any(_has_none(part) for part in coord)
    return coord is None


def _checked(compute: Callable[[], Any]) -> Any:
    """Run a layout computation; a refusal points at the author's line."""
    try:
        return compute()
    except KdslError as error:
        if error.loc is None:
            error.loc = here()
        raise
