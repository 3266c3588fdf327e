"""A layout: a shape and a stride of the same nesting, a function from coordinates to offsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kdsl_core.errors import LayoutError
from kdsl_core.layout.basis import ScaledBasis, basis_zero, has_basis
from kdsl_core.layout.coord import compact_strides, has_none, offset_of
from kdsl_core.layout.int_tuple import IntTuple, as_int_tuple, check_level, is_static
from kdsl_core.layout.relation import congruent
from kdsl_core.layout.symbolic import SymInt


class Layout:
    """The function that sends a coordinate of `shape` to its inner product with `stride`.

    Without strides the layout is compact with the first mode fastest. Layouts are immutable,
    compare and hash by their integers (run-time ones by identity), and are called on coordinates
    or indices; a coordinate that holds None slices.

    >>> tile = Layout((4, 8), (8, 1))
    >>> print(tile, tile(1, 2), tile(9), tile(1, None))
    (4,8):(8,1) 10 10 (8):(1)
    >>> eval(repr(tile)) == tile
    True

    Raises: LayoutError when shape and stride differ in nesting or an extent is below 1.
    """

    __slots__ = ("_key", "shape", "static", "stride")
    shape: IntTuple
    stride: IntTuple
    static: bool
    _key: Any

    def __init__(self, shape: IntTuple, stride: IntTuple = None) -> None:
        shape = as_int_tuple(shape, "a shape")
        _check_extents(shape)
        if stride is None:
            stride = compact_strides(shape)
        else:
            stride = as_int_tuple(stride, "a stride")
            if not congruent(shape, stride):
                raise LayoutError(
                    f"shape and stride need the same nesting, got shape {shape_str(shape)}"
                    f" and stride {shape_str(stride)}",
                    code="K111",
                    fix="give one stride for each extent",
                )
        self._freeze(shape, stride)

    def _freeze(self, shape: IntTuple, stride: IntTuple) -> None:
        put = object.__setattr__
        put(self, "shape", shape)
        put(self, "stride", stride)
        static = is_static(shape) and is_static(stride)
        put(self, "static", static)
        put(self, "_key", (shape, stride) if static else identity_key((shape, stride)))

    @property
    def has_basis(self) -> bool:
        """Whether values are coordinates."""
        return has_basis(self.stride)

    @classmethod
    def of(cls, shape: IntTuple, stride: IntTuple) -> Layout:
        """A layout of parts that are known to be congruent integer tuples."""
        self = object.__new__(cls)
        self._freeze(shape, stride)
        return self

    def __call__(self, *coord: Any) -> Any:
        c = as_coord(coord)
        if has_none(c):
            return self.of(slice_tuple(c, self.shape), slice_tuple(c, self.stride))
        offset = offset_of(c, self.shape, self.stride)
        return basis_zero(self.stride) + offset if has_basis(self.stride) else offset

    def __getitem__(self, mode: int) -> Layout:
        """The layout of one mode."""
        if not isinstance(self.shape, tuple):
            if mode in (0, -1):
                return self
            raise IndexError(f"mode {mode} of {self}, which has 1 mode")
        if not -len(self.shape) <= mode < len(self.shape):
            raise IndexError(f"mode {mode} of {self}, which has {len(self.shape)} modes")
        return self.of(self.shape[mode], self.stride[mode])

    def __len__(self) -> int:
        return len(self.shape) if isinstance(self.shape, tuple) else 1

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Layout]:
        return iter([self[i] for i in range(len(self))])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a layout is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a layout is immutable: cannot delete {name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and (self is other or bool(self._key == other._key))

    def __hash__(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout, (self.shape, self.stride)

    def _repr_svg_(self) -> str | None:
        """The picture that notebooks show."""
        from kdsl_core.layout.svg import notebook_svg

        return notebook_svg(self)

    def __repr__(self) -> str:
        return f"Layout({self.shape!r}, {self.stride!r})"

    def __str__(self) -> str:
        return f"{shape_str(self.shape)}:{shape_str(self.stride)}"


class _ById:
    """A dynamic leaf in a key: equal only to itself, so keys never compare run-time values."""

    __slots__ = ("leaf",)

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.leaf is other.leaf

    def __hash__(self) -> int:
        return id(self.leaf)


def identity_key(t: IntTuple) -> Any:
    """A hashable stand-in for a tree, in which dynamic leaves compare by identity."""
    if isinstance(t, tuple):
        return tuple([identity_key(item) for item in t])
    return t if isinstance(t, (SymInt, ScaledBasis)) or is_static(t) else _ById(t)


def _check_extents(shape: IntTuple) -> None:
    if isinstance(shape, tuple):
        for mode in shape:
            _check_extents(mode)
    elif type(shape) is int and shape < 1:
        raise LayoutError(
            f"an extent must be at least 1, got {shape}",
            code="K112",
            fix="leave empty tensors out before the kernel",
        )
    elif isinstance(shape, SymInt) and (shape.low is None or shape.low < 1):
        raise LayoutError(
            f"an extent must be at least 1: needs {shape} >= 1",
            code="K113",
            fix="declare it, as in sym(name, at_least=...)",
        )


def as_coord(args: tuple[Any, ...]) -> Any:
    """The coordinate that a call names: one argument as it is, several as a tuple."""
    if len(args) == 1:
        c = args[0]
        return c if type(c) is int or c is None else _as_coord(c)
    return _as_coord(args)


def _as_coord(c: Any, level: int = 0) -> Any:
    if isinstance(c, (tuple, list)):
        check_level(level, "a coordinate")
        return tuple([_as_coord(item, level + 1) for item in c])
    return None if c is None else as_int_tuple(c, "a coordinate")


def slice_tuple(coord: Any, tree: Any) -> Any:
    """The modes of `tree` at which `coord` is None; nested selections splice one level up."""
    if coord is None:
        return tree
    if not isinstance(coord, tuple):
        return ()
    return slice_parts(coord, tree)


def slice_parts(coord: tuple[Any, ...], tree: Any) -> tuple[Any, ...]:
    """The kept modes of each element of a coordinate tuple."""
    if not isinstance(tree, tuple) or len(tree) != len(coord):
        raise LayoutError(
            f"expected one entry of the slice for each mode of {tree}, got {coord}",
            code="K110",
            fix="write None for a mode to keep",
        )
    out: tuple[Any, ...] = ()
    for c, mode in zip(coord, tree, strict=True):
        if c is None:
            out += (mode,)
        elif isinstance(c, tuple):
            out += slice_parts(c, mode)
    return out


def shape_str(t: Any) -> str:
    """A tree as the field writes it: ``((2,4),8)``, a one-element tuple as ``(4)``."""
    return f"({','.join(map(shape_str, t))})" if isinstance(t, tuple) else str(t)


def make_layout(*args: Any, stride: IntTuple = None) -> Layout:
    """A layout of a shape (and stride), or the concatenation of layouts as modes.

    >>> print(make_layout(Layout(4), Layout((2, 3))))
    (4,(2,3)):(1,(1,2))
    """
    if args and all(isinstance(a, Layout) for a in args):
        return Layout.of(tuple([a.shape for a in args]), tuple([a.stride for a in args]))
    shape, *given = args
    return Layout(shape, *given) if stride is None else Layout(shape, stride)
