"""Products of one matrix that run side by side in one launch: queries, keys and values of x.

The cover decides about products one by one, since none needs another. Behind it, those that read
the same matrix and are alike are joined: one launch fills the chip where three leave it half empty,
and reads the matrix once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kdsl_fuse.calls import KernelCall
from kdsl_fuse.cover import Cover
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts
from kdsl_fuse.patterns.base import Chip, Example, Match, Options
from kdsl_fuse.patterns.gemm_epilogue import GemmEpilogue, gemm_of
from kdsl_fuse.patterns.gemm_families import Gemm, Sm90Family, is_addressable
from kdsl_fuse.reasons import Reason

if TYPE_CHECKING:
    from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan

LEAST_ROWS = 64  # of the matrix: products with fewer are better turned, each by itself
MOST_PRODUCTS = 4
TMA_COLUMNS = 8  # of 16 bits, in which results leave by TMA


@dataclass(frozen=True, eq=False)
class Joined(Match):
    """Matches of `GemmEpilogue` in one: their `products`, and how they are computed together."""

    products: tuple[Gemm, ...] = ()
    plan: Sm90Plan | None = None


class SideBySide:
    """Lowers joined products; it has no anchors, for `join` finds them behind the cover."""

    name = "side_by_side"
    anchors: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """None."""
        return []

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """One launch for all products of the match."""
        from kdsl_fuse.kernels.products_sm90 import products_sm90

        assert isinstance(match, Joined) and match.plan, "only joined matches have this pattern"
        gemms, plan = match.products, match.plan
        return KernelCall(
            name="products_sm90",
            kernel=products_sm90,
            grid=(plan.grid,),
            block=(plan.config.threads,),
            operands=(gemms[0].a, *(gemm.b for gemm in gemms)),
            extras=tuple(extra for gemm in gemms for extra in gemm.extras),
            outputs=tuple(gemm.output for gemm in gemms),
            seen=tuple(layout for gemm in gemms for layout in gemm.seen),
            statics={"products": len(gemms), "epilogue": gemms[0].tail, "config": plan.config},
            summary=str(plan),
            overlap=True,
        )


def join(graph: Graph, cover: Cover, options: Options) -> Cover:
    """The cover with products of one matrix side by side."""
    groups: dict[Hashable, list[tuple[Match, Gemm]]] = {}
    for match in cover.matches.values():
        if type(match.pattern) is GemmEpilogue and len(match.stores) == 1:
            gemm = gemm_of(graph, match)
            if _fits(gemm, options):
                groups.setdefault(_kind(gemm), []).append((match, gemm))
    matches = dict(cover.matches)
    for group in groups.values():
        for some in _independent(graph, group):
            parts, gemms = zip(*some, strict=True)
            plan = _plan(gemms, options) if len(some) > 1 else None
            if plan is not None:
                for part in parts:
                    del matches[part.root.name]
                matches[parts[-1].root.name] = _joined(parts, gemms, plan)
    return Cover(matches, cover.reasons, cover.apart)


def _joined(parts: Sequence[Match], gemms: Sequence[Gemm], plan: Sm90Plan) -> Joined:
    return Joined(
        SideBySide(),
        tuple(node for part in parts for node in part.covered),
        stores=tuple(part.root for part in parts),
        recomputed=tuple(dict.fromkeys(node for part in parts for node in part.recomputed)),
        refused={name: why for part in parts for name, why in part.refused.items()},
        role="beside",
        products=tuple(gemms),
        plan=plan,
    )


def _fits(gemm: Gemm, options: Options) -> bool:
    """Whether the kernel takes the product as one of several."""
    m, n, _ = gemm.sizes
    by_tma = gemm.output.dtype.bytes == 2 and n % TMA_COLUMNS == 0
    rows = all(0 in extra.strides for extra in gemm.extras)  # matrices need registers of their own
    taken = not gemm.is_batch and Sm90Family().takes(gemm, options)
    addressable = is_addressable(gemm.a) and is_addressable(gemm.b)
    return taken and m >= LEAST_ROWS and by_tma and rows and addressable


def _kind(gemm: Gemm) -> Hashable:
    """What products in one launch have in common."""
    extras = tuple((x.dtype, tuple(step == 0 for step in x.strides)) for x in gemm.extras)
    major = gemm.b.strides.index(1)
    return gemm.a, gemm.b.shape, major, gemm.output.dtype, gemm.output.shape, gemm.tail, extras


def _independent(
    graph: Graph, group: Sequence[tuple[Match, Gemm]]
) -> Iterator[list[tuple[Match, Gemm]]]:
    """The products, in lists of which none needs a result of its own list."""
    import networkx as nx

    some: list[tuple[Match, Gemm]] = []
    behind: set[str] = set()
    for match, gemm in group:
        names = {node.name for node in match.covered}
        if len(some) == MOST_PRODUCTS or names & behind:
            yield some
            some, behind = [], set()
        some.append((match, gemm))
        behind |= nx.descendants(graph.net, match.root.name)
    yield some


def _plan(gemms: Sequence[Gemm], options: Options) -> Sm90Plan | None:
    """The fastest plan that neither splits K nor shares operands in a cluster."""
    from kdsl_fuse.kernels.gemm_sm90_plan import DEVICE, MULTIPROCESSORS, by_turns, candidates

    chip, first = options.chip or Chip(DEVICE, MULTIPROCESSORS), gemms[0]
    plans = candidates(
        *first.sizes, first.dtype, first.output.dtype,
        batch=len(gemms), multiprocessors=chip.multiprocessors,
    )  # fmt: skip
    alone = (p for p in plans if p.config.blocks_together * p.config.splits == 1 and not p.swap)
    plan = next(alone, None)
    return by_turns(plan) if plan is not None and first.tail.steps else plan
