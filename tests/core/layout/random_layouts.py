"""Random layouts from a seed, many at a time: what the bulk property tests run on.

Hypothesis draws seeds and shrinks them; each seed stands for `PER_SEED` cases, which is some ten
times cheaper than drawing every extent. `KDSL_CASES` sets how many cases all bulk tests run
together: 20 000 by default, ``KDSL_CASES=1000000 dev.py test tests/core/layout`` at night.
"""

from __future__ import annotations

import os
from math import prod
from random import Random
from typing import Any

from kdsl_core.layout import Layout

PER_SEED = 25
CASES = int(os.environ.get("KDSL_CASES", "20000"))
EXTENTS = (1, 2, 2, 2, 3, 4, 4, 5, 6, 8)
MOST_ELEMENTS = 48


def shape(rng: Random, depth: int = 3, rank: int = 4) -> Any:
    """A shape nested to `depth`, with up to `rank` modes a level."""
    if depth == 0 or rng.random() < (0.2, 0.5, 0.75)[3 - depth]:
        return rng.choice(EXTENTS)
    return tuple(shape(rng, depth - 1, rank) for _ in range(rng.randint(1, rank)))


def small_shape(rng: Random) -> Any:
    """A shape of few enough elements to be evaluated one by one."""
    found = shape(rng)
    extents, left = flat(found), MOST_ELEMENTS
    for i in rng.sample(range(len(extents)), len(extents)):
        extents[i] = extents[i] if extents[i] <= left else 1
        left //= extents[i]
    return nested(extents, found)


def flat(tree: Any) -> list[int]:
    """The leaves of a nested tuple."""
    return [leaf for item in tree for leaf in flat(item)] if isinstance(tree, tuple) else [tree]


def nested(items: list[int], profile: Any) -> Any:
    """The first items, taken out of the list, in the nesting of a profile."""
    if isinstance(profile, tuple):
        return tuple(nested(items, part) for part in profile)
    return items.pop(0)


def layout(rng: Random, *, injective: bool = False) -> Layout:
    """Compact in some order of modes, padded, with stride 0, or with any strides."""
    of = small_shape(rng)
    extents = flat(of)
    kind = rng.choice(("left", "permuted", "padded") if injective else KINDS)
    if kind == "any":
        return Layout(of, nested([rng.randint(0, 40) for _ in extents], of))
    order = list(range(len(extents)))
    if kind != "left":
        rng.shuffle(order)
    strides, current = [0] * len(extents), 1
    for i in order:
        strides[i] = current
        current *= extents[i] * (rng.randint(1, 3) if kind == "padded" and extents[i] > 1 else 1)
    if kind == "zero":
        strides[rng.randrange(len(strides))] = 0
    return Layout(of, nested(strides, of))


KINDS = ("left", "permuted", "padded", "zero", "any")


def values(of: Any) -> list[Any]:
    """The value at every index."""
    return [of(i) for i in range(prod(flat(of.shape)))]
