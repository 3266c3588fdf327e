"""Agreement with `tensor-layouts` (PyPI), where that is installed: a second, independent algebra.

It is no dependency: ``pip install tensor-layouts`` before ``dev.py test tests/core/layout``. Where
the two differ, the definition decides, and the oracle must be the one that breaks it or refuses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from core.layout import definitions as defined
from core.layout import random_layouts as rand
from kdsl_core.errors import LayoutError
from kdsl_core.layout import (
    Layout,
    coalesce,
    complement,
    composition,
    left_inverse,
    logical_divide,
    logical_product,
    right_inverse,
    size,
)

oracle = pytest.importorskip("tensor_layouts")
CASES = 300


def theirs(layout: Layout) -> Any:
    """The oracle's layout."""
    return oracle.Layout(layout.shape, layout.stride)


def ours(layout: Any) -> Layout:
    """Our layout of the oracle's."""
    return Layout(layout.shape, layout.stride)


OPERATIONS: dict[str, tuple[Callable[..., Any], str, Callable[..., bool]]] = {
    "coalesce": (coalesce, "coalesce", lambda a, r: defined.table(a) == defined.table(r)),
    "composition": (composition, "compose", defined.is_composition),
    "complement": (
        lambda a: complement(a, size(a) * 3),
        "complement",
        lambda a, r: defined.is_complement(a, size(a) * 3, r),
    ),
    "right_inverse": (right_inverse, "right_inverse", defined.is_right_inverse),
    "left_inverse": (left_inverse, "left_inverse", defined.is_left_inverse),
    "logical_divide": (logical_divide, "logical_divide", defined.is_divide),
    "logical_product": (logical_product, "logical_product", defined.is_product),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_agrees_or_the_oracle_is_wrong(name: str) -> None:
    """Equal functions, or the oracle's answer breaks the definition, or it refuses."""
    operation, word, holds = OPERATIONS[name]
    rng, counts = Random(1), Counter[str]()
    for _ in range(CASES):
        args = [rand.layout(rng, injective=name not in ("coalesce", "composition"))]
        if name in ("composition", "logical_divide", "logical_product"):
            args.append(rand.layout(rng, injective=name != "composition"))
        if name == "logical_product" and size(args[0]) * size(args[1]) > 256:
            continue
        counts[outcome(operation, getattr(oracle, word), holds, name, args)] += 1
    assert counts["same"] + counts["both refuse"] > 0.5 * counts.total(), counts
    assert not counts["only we refuse a right answer"], counts


def outcome(operation: Any, other: Any, holds: Any, name: str, args: list[Layout]) -> str:
    """How the two answers stand to one another and to the definition."""
    bound = [size(args[0]) * 3] if name == "complement" else []
    try:
        their = ours(other(*map(theirs, args), *bound))
    except (ValueError, TypeError, AssertionError, IndexError, ZeroDivisionError, KeyError):
        their = None
    try:
        our = operation(*args)
    except LayoutError:
        if their is None:
            return "both refuse"
        right = _decidable(their, args) and holds(*args, their)
        return "only we refuse a right answer" if right else "we refuse, the oracle is wrong"
    assert not _decidable(our, args) or holds(*args, our), (args, our)
    if their is None:
        return "only the oracle refuses"
    if coalesce(their) == coalesce(our):
        return "same"
    return "both right" if holds(*args, their) else "the oracle is wrong"


def _decidable(result: Layout, args: list[Layout]) -> bool:
    return size(result) * size(args[0]) <= 1 << 14
