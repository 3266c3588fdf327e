"""Proofs behind composition: a result that the quick walk cannot vouch for is checked here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from kdsl_core.errors import LayoutError
from kdsl_core.layout.basis import ScaledBasis
from kdsl_core.layout.coord import idx2crd, offset_of
from kdsl_core.layout.int_tuple import Leaf, is_zero, leaves, product
from kdsl_core.layout.layout import Layout, shape_str
from kdsl_core.layout.symbolic import SymInt

CHECKED_ELEMENTS = 1 << 18
"""Most values that one decision may evaluate; beyond it an operation refuses."""


class Modes(NamedTuple):
    """Flat, coalesced modes of the left operand; the last one does not wrap."""

    shape: tuple[Leaf, ...]
    stride: tuple[Leaf, ...]
    static: bool
    """Whether all extents but the last are."""

    def __str__(self) -> str:
        return f"{shape_str(self.shape)}:{shape_str(self.stride)}"


class LeafResult(NamedTuple):
    """One right-hand mode composed: its modes, and the largest digit in each left-hand mode."""

    shape: tuple[Leaf, ...]
    stride: tuple[Leaf, ...]
    digits: tuple[Leaf, ...]
    negative: bool = False


class Composed(NamedTuple):
    """A composed right-hand mode, and the mode of the left operand that it went through."""

    path: tuple[int, ...]
    through: Modes
    leaf: LeafResult


def refuse_run_time(fact: str) -> NoReturn:
    """Refuse an operation that would have to decide something at run time."""
    raise LayoutError(
        f"the result depends on a run-time value: needs {fact}",
        code="K102",
        fix="tile the modes one by one, or make the extent or stride static",
    )


def extrapolated(a: Modes, index: int) -> Any:
    """The value at an index; negative indices mirror, past the end the last mode goes on."""
    if index < 0:
        return extrapolated(a, -index) * -1
    return offset_of(index, a.shape, a.stride)


def factored(a: Modes, extent: int, step: int) -> LeafResult:
    """The only layout of i ↦ a(i·step), found from its values, or a refusal with a witness.

    A layout's first coalesced mode ends where its values leave the straight line, so its extent
    is that run's length; the remaining modes follow from the values at multiples of it.
    """
    if extent > CHECKED_ELEMENTS:
        raise LayoutError(
            f"cannot decide {a} o {extent}:{step}: {extent} values are more than the"
            f" {CHECKED_ELEMENTS} that are checked one by one",
            code="K143",
            fix="choose a stride or extent that divides the modes",
        )
    values = [extrapolated(a, i * step) for i in range(extent)]
    odd = next((i for i, v in enumerate(values) if not isinstance(v, (int, SymInt))), None)
    if odd is not None and isinstance(values[odd], (tuple, ScaledBasis)):
        _refuse(f"{a} o {extent}:{step}", odd, values[odd], "a multiple of one basis vector")
    if odd is not None:
        refuse_run_time(f"that {extent}:{step} splits the modes of {a} evenly")
    shapes, strides = _factor(values, f"{a} o {extent}:{step}")
    digits = _largest_digits(a, extent, step)
    return LeafResult(tuple(shapes), tuple(strides), digits, step < 0)


def _factor(values: list[int], what: str) -> tuple[list[int], list[int]]:
    shapes: list[int] = []
    strides: list[int] = []
    unit = 1
    while len(values) > 1:
        slope = values[1]
        run = next((i for i, v in enumerate(values) if v != i * slope), len(values))
        for i, v in enumerate(values):
            expected = i % run * slope + values[i // run * run]
            if v != expected:
                _refuse(what, i * unit, v, expected)
        if len(values) % run:
            _refuse(what, run * unit, values[run], run * slope)
        shapes.append(run)
        strides.append(slope)
        values, unit = values[::run], unit * run
    return (shapes, strides) if shapes else ([1], [0])


def _refuse(what: str, index: int, value: Any, expected: Any) -> NoReturn:
    raise LayoutError(
        f"{what} is not a layout: coordinate {index} has value {value}, but a layout with the"
        f" values before it has {expected} there",
        code="K142",
        fix="choose an extent and stride that split the modes evenly",
    )


def _largest_digits(a: Modes, extent: int, step: int) -> tuple[int, ...]:
    crds = [idx2crd(i * abs(step), a.shape) for i in range(extent)]
    return tuple([max(digit) for digit in list(zip(*crds, strict=True))[:-1]])


def check_sums(a: Layout, b: Layout, result: Layout, moving: list[Composed]) -> None:
    """Refuse a composition whose right-hand modes carry into one another.

    Each mode of the result is right alone; their sum is right when no digit of `a` overflows.
    `moving` are the modes of `b` that move some digit but the last, or that count backwards.
    """
    negative = any(part.leaf.negative for part in moving)
    paths = {part.path for part in moving}
    nested = any(p != q and q[: len(p)] == p for p in paths for q in paths)
    if nested or negative or any(_carries([m for m in moving if m.path == p]) for p in paths):
        _check_every_sum(a, b, result)


def _carries(parts: list[Composed]) -> bool:
    """Whether the largest digits that the parts reach add up past a mode's extent."""
    for j, extent in enumerate(parts[0].through.shape[:-1]):
        total = sum([p.leaf.digits[j] for p in parts if j < len(p.leaf.digits)])
        if not is_zero(total) and total >= extent:
            return True
    return False


def _check_every_sum(a: Layout, b: Layout, result: Layout) -> None:
    if not (a.static and b.static):
        refuse_run_time(f"that the modes of {b} do not carry into one another in {a}")
    count = product(b.shape)
    if count > CHECKED_ELEMENTS:
        raise LayoutError(
            f"cannot decide {a} o {b}: {count} values are more than the {CHECKED_ELEMENTS} that"
            f" are checked one by one",
            code="K143",
            fix="compose mode by mode",
        )
    whole = Modes(tuple(leaves(a.shape)), tuple(leaves(a.stride)), True)
    for crd, index in _elements(b):
        linear = type(index) is int and not a.has_basis
        right = extrapolated(whole, index) if linear else a(index)
        if result(crd) != right:
            raise LayoutError(
                f"{a} o {b} is not a layout: coordinate {crd} has value {right}, but the modes"
                f" of {result} add up to {result(crd)} there",
                code="K142",
                fix="choose modes whose sums stay inside the modes of the left layout",
            )


def _elements(b: Layout) -> Iterator[tuple[Any, Any]]:
    for i in range(product(b.shape)):
        crd = idx2crd(i, b.shape)
        yield crd, b(crd)
