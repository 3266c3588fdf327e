"""Swizzles, and layouts that are followed by one."""

from __future__ import annotations

from typing import Any

from kdsl_core.errors import LayoutError
from kdsl_core.layout.coord import has_none, offset_of
from kdsl_core.layout.int_tuple import Leaf, add, as_int_tuple, is_static
from kdsl_core.layout.layout import Layout, as_coord, identity_key, slice_tuple


class Swizzle:
    """The involution that XORs `bits` address bits into those `shift` places lower.

    The bits from ``base + shift`` on go onto the bits from `base` on (the other way round for a
    negative shift), so 2**base neighbours stay together. Calls take ints and any object with
    ``& ^ >> <<``.

    >>> sw = Swizzle(3, 4, 3)
    >>> sw(128), sw(sw(128)), str(sw)
    (144, 128, 'Sw<3,4,3>')

    Raises: LayoutError when the two bit ranges overlap.
    """

    __slots__ = ("base", "bits", "shift")
    bits: int
    base: int
    shift: int

    def __init__(self, bits: int, base: int, shift: int) -> None:
        for name, value in (("bits", bits), ("base", base), ("shift", shift)):
            object.__setattr__(self, name, as_int_tuple(value, f"swizzle {name}"))
        if self.bits < 0 or self.base < 0 or abs(self.shift) < self.bits:
            raise LayoutError(
                f"a swizzle needs bits ≥ 0, base ≥ 0 and |shift| ≥ bits, got {self}",
                code="K120",
                fix="move the source bits up, or swizzle fewer bits",
            )

    @property
    def source_mask(self) -> int:
        """The bits that are read."""
        return ((1 << self.bits) - 1) << (self.base + max(0, self.shift))

    @property
    def target_mask(self) -> int:
        """The bits that change."""
        return ((1 << self.bits) - 1) << (self.base - min(0, self.shift))

    @property
    def static(self) -> bool:
        """A swizzle is always known."""
        return True

    def __call__(self, index: Any) -> Any:
        if self.bits == 0:
            return index
        picked = index & self.source_mask
        return index ^ (picked >> self.shift if self.shift >= 0 else picked << -self.shift)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a swizzle is immutable: cannot set {name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Swizzle) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[int, int, int]:
        return (self.bits, self.base, self.shift)

    def __reduce__(self) -> tuple[Any, ...]:
        return Swizzle, self._key()

    def __repr__(self) -> str:
        return f"Swizzle({self.bits}, {self.base}, {self.shift})"

    def __str__(self) -> str:
        return f"Sw<{self.bits},{self.base},{self.shift}>"


class ComposedLayout:
    """c ↦ outer(offset + inner(c)): most often a swizzled shared-memory layout.

    >>> tile = ComposedLayout(Swizzle(3, 4, 3), 0, Layout((8, 64), (64, 1)))
    >>> print(tile, tile(2, 16))
    Sw<3,4,3>o0o(8,64):(64,1) 128
    """

    __slots__ = ("inner", "offset", "outer")
    outer: Any
    offset: Leaf
    inner: Any

    def __init__(self, outer: Any, offset: Leaf, inner: Any) -> None:
        if not callable(outer) or not isinstance(inner, (Layout, ComposedLayout)):
            raise LayoutError(
                f"expected a swizzle or layout around a layout, got {outer!r} and {inner!r}",
                code="K121",
            )
        object.__setattr__(self, "outer", outer)
        object.__setattr__(self, "offset", as_int_tuple(offset, "an offset"))
        object.__setattr__(self, "inner", inner)

    @property
    def shape(self) -> Any:
        """The shape of the domain."""
        return self.inner.shape

    @property
    def static(self) -> bool:
        """Whether offset and inner layout are known now."""
        return self.inner.static and is_static(self.offset)

    def with_inner(self, inner: Any, moved: Leaf = 0) -> ComposedLayout:
        """The same outer function around another inner layout, `moved` elements further."""
        return ComposedLayout(self.outer, add(self.offset, moved), inner)

    def __call__(self, *coord: Any) -> Any:
        c = as_coord(coord)
        if has_none(c):
            return self.with_inner(self.inner(c), fixed_offset(c, self.inner))
        return self.outer(add(self.offset, self.inner(c)))

    def __getitem__(self, mode: int) -> ComposedLayout:
        """The layout of one mode, the others at coordinate 0."""
        return self.with_inner(self.inner[mode])

    def __len__(self) -> int:
        return len(self.inner)

    def __bool__(self) -> bool:
        return True

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a layout is immutable: cannot set {name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposedLayout) and bool(self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return (self.outer, identity_key(self.offset), self.inner)

    def __reduce__(self) -> tuple[Any, ...]:
        return ComposedLayout, (self.outer, self.offset, self.inner)

    def _repr_svg_(self) -> str | None:
        """The picture that notebooks show."""
        from kdsl_core.layout.svg import notebook_svg

        return notebook_svg(self)

    def __repr__(self) -> str:
        return f"ComposedLayout({self.outer!r}, {self.offset!r}, {self.inner!r})"

    def __str__(self) -> str:
        return f"{self.outer}o{self.offset}o{self.inner}"


def fixed_offset(coord: Any, layout: Layout) -> Leaf:
    """The offset that the given entries of a slice contribute, kept modes at 0."""
    return offset_of(_zero_kept(coord), layout.shape, layout.stride)


def _zero_kept(coord: Any) -> Any:
    if isinstance(coord, tuple):
        return tuple([_zero_kept(c) for c in coord])
    return 0 if coord is None else coord


def swizzle_from_masks(source: int, target: int) -> Swizzle:
    """The swizzle that XORs the bits of `source` onto those of `target`.

    Raises: LayoutError when the masks are not runs of equally many bits.
    """
    if source == 0 and target == 0:
        return Swizzle(0, 0, 0)
    low_source, low_target = _run_start(source), _run_start(target)
    if source.bit_count() != target.bit_count():
        raise LayoutError(
            f"a swizzle needs as many source bits as target bits, got {source:b} and {target:b}",
            code="K122",
        )
    return Swizzle(source.bit_count(), min(low_source, low_target), low_source - low_target)


def _run_start(mask: int) -> int:
    start = (mask & -mask).bit_length() - 1
    if mask == 0 or (mask >> start) & ((mask >> start) + 1):
        raise LayoutError(f"a swizzle mask must be one run of bits, got {mask:b}", code="K122")
    return start


def slice_tuple_of(coord: Any, layout: Layout) -> Layout:
    """The kept modes of a layout."""
    return Layout.of(slice_tuple(coord, layout.shape), slice_tuple(coord, layout.stride))
