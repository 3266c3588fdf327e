"""What the differences between two results look like."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kdsl_runtime.compare.finding import Kind, Tile
from kdsl_runtime.compare.product import Product, left_out, rounding_bound
from kdsl_runtime.compare.recording import Array
from kdsl_runtime.compare.sums import Way, first_parting, way_of
from kdsl_runtime.compare.tiles import Tiles

_SAMPLES, _MANY = 256, 4096  # elements that are summed anew, in many ways or in one
_TILE = 8  # what divides every tile along K


@dataclass(frozen=True)
class Diagnosis:
    """What it looks like, why, and the part [begin, end) of K where the results part."""

    kind: Kind
    reasons: tuple[str, ...]
    k: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class Case:
    """A result beside a recorded one, bool `wrong` where they differ."""

    got: Array
    want: Array
    before: Array
    wrong: Array
    tiles: Tiles
    product: Product | None

    @cached_property
    def at(self) -> Array:
        """Coordinates (S, modes) of the elements that differ."""
        return np.argwhere(self.wrong)


def diagnosed(case: Case) -> Diagnosis:
    """The first explanation that fits, the surest first."""
    for look in (_unwritten, _other_tile, _edge, _lacking, _order):
        found = look(case)
        if found is not None:
            return found
    return Diagnosis(Kind.UNKNOWN, ("neither tiles, edges, steps of K nor rounding explain it",))


def _unwritten(case: Case) -> Diagnosis | None:
    """Elements that one of the two left as they were."""
    ours = case.wrong & (case.tiles.blocks < 0)
    theirs = case.wrong & same_bits(case.want, case.before) & (case.tiles.blocks >= 0)
    for lost, who in (
        (ours, "this kernel never writes"),
        (theirs, "the recorded one left as it was"),
    ):
        if not lost.any() or lost.sum() < case.wrong.sum():
            continue
        whole = case.tiles.whole(lost)
        if whole is None:
            text = f"{who} {_region(lost)}, a part of a tile"
            return Diagnosis(Kind.PREDICATE, (text, "compare the predicates at the edges"))
        return Diagnosis(
            Kind.TILE, (f"{who} {whole} whole tile{'s' * (whole > 1)}: {_region(lost)}",)
        )
    return None


def _other_tile(case: Case) -> Diagnosis | None:
    """Tiles that hold what belongs elsewhere."""
    tile = case.tiles.of(tuple(case.at[0]))
    if tile is None:
        return None
    got = case.got[tile_slices(tile)]
    for other in case.tiles.all():
        if other.block == tile.block or other.shape != tile.shape:
            continue
        if same_bits(got, case.want[tile_slices(other)]).all():
            text = f"the tile {tile} holds what belongs to that {other}"
            return Diagnosis(Kind.TILE, (text, "compare block indices and local_tile's coordinate"))
    return None


def _edge(case: Case) -> Diagnosis | None:
    """Differences in tiles that hang over the edge, and nowhere else."""
    clipped = case.tiles.clipped()
    if not clipped.any() or (case.wrong & ~clipped).any() or clipped.all():
        return None
    text = f"only tiles that hang over the edge differ, {_region(case.wrong)}"
    return Diagnosis(Kind.PREDICATE, (text, "compare the predicates of loads and stores there"))


def _lacking(case: Case) -> Diagnosis | None:
    """Parts of K that one result has and the other lacks."""
    if case.product is None:
        return None
    parts = left_out(case.product, case.got, case.want, case.at)
    if not parts:
        return None
    at = case.at[:: -(-len(case.at) // _MANY)]
    exact = exact_sums(case.product, at)
    results = (x[tuple(at.T)].astype(np.float64) for x in (case.got, case.want))
    apart = [np.nansum((result - exact) ** 2) for result in results]
    mine = apart[0] >= apart[1]  # whose sums are the worse ones
    who, reasons = ("this kernel" if mine else "the recorded one"), []
    for part in parts:
        lacks, count = (part.times > 0) == mine, abs(part.times)
        often = f"{count} time{'s' * (count > 1)} too often"
        reasons.append(f"{who} leaves out {part}" if lacks else f"{who} adds {part} {often}")
    depth, last = case.product.a.shape[1], parts[-1]
    rest = last.end - last.begin if last.end == depth else 0
    kind = Kind.PREDICATE if rest % _TILE else Kind.TILE
    where = "the loop over tiles of K" + (" and the predicates at its end" if rest else "")
    reasons.append(f"compare {where}")
    return Diagnosis(kind, tuple(reasons), (parts[0].begin, parts[0].end))


def _order(case: Case) -> Diagnosis | None:
    """Differences that rounding explains."""
    if case.product is None or case.got.dtype.kind in "iu":
        return None
    got, want = (x[tuple(case.at.T)].astype(np.float64) for x in (case.got, case.want))
    apart = np.abs(got - want)
    if np.isnan(apart).any():
        return None
    most = np.argsort(-apart)[:_MANY]
    bound = rounding_bound(case.product, case.want, case.at[most])
    if not (apart[most] <= bound).all():
        return None
    largest = float(apart[most[0]])
    reasons = [f"all differences are within rounding: at most {largest:.3g}"]
    ways = _ways(case)
    reasons += [f"{who}: {way.words}" for who, way in ways.items() if way is not None]
    ours, theirs = ways.values()
    k = None
    if ours is not None and theirs is not None:
        k = first_parting(ours, theirs, *case.product.rows(case.at[:1]))
    return Diagnosis(Kind.ORDER, tuple(reasons), k)


def _ways(case: Case) -> dict[str, Way | None]:
    """How both results were summed, as far as some of the elements that differ tell."""
    assert case.product is not None
    at = case.at[:_SAMPLES]
    a, b = case.product.rows(at)
    results = {"this kernel sums by": case.got, "the recorded one by": case.want}
    return {who: way_of(a, b, result[tuple(at.T)]) for who, result in results.items()}


def exact_sums(product: Product, at: Array) -> Array:
    """The sums at elements (S, 2), as float64 has them."""
    a, b = product.rows(at)
    return np.asarray(np.einsum("sk,sk->s", a.astype(np.float64), b.astype(np.float64)))


def same_bits(x: Array, y: Array) -> Array:
    """Where two arrays of one type hold the same bits; any NaN is like any other."""
    equal = np.asarray(bits_of(x) == bits_of(y))
    return equal if x.dtype.kind in "iub" else equal | ((x != x) & (y != y))


def bits_of(array: Array) -> Array:
    """The elements as unsigned integers."""
    bits: Array = array.view(f"u{array.dtype.itemsize}")
    return bits


def tile_slices(tile: Tile) -> tuple[slice, ...]:
    """The part of an array that a tile is."""
    return tuple(slice(o, o + n) for o, n in zip(tile.origin, tile.shape, strict=True))


def _region(chosen: Array) -> str:
    """The box around chosen elements, and how many they are."""
    at = np.argwhere(chosen)
    box = ", ".join(f"{a}…{b}" for a, b in zip(at.min(axis=0), at.max(axis=0), strict=True))
    return f"{len(at):,} elements within [{box}]"
