"""Choosing kernels: the best disjoint matches, found exactly where few want the same nodes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kdsl_core as kd
import kdsl_fuse as kf
from kdsl_core.dtypes import f32
from kdsl_fuse import cover as cover_module
from kdsl_fuse.cost import BYTES_PER_US, LAUNCH_US, Savings, savings
from kdsl_fuse.cover import Variant, best_packing, choose_cover
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts
from kdsl_fuse.patterns import Match, Options
from kdsl_fuse.reasons import Reason

VARIANT = st.tuples(st.frozensets(st.sampled_from("abcdefgh"), min_size=1), st.floats(0.1, 9.0))


def _variants(drawn: Any) -> list[list[Variant]]:
    none: Any = None
    return [
        sorted((Variant(none, names, gain) for names, gain in choices), key=lambda v: -v.gain)
        for choices in drawn
    ]


def _gain(taken: Any) -> float:
    return sum(variant.gain for variant in taken if variant)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(st.lists(VARIANT, min_size=1, max_size=3), min_size=1, max_size=5))
def test_packing_is_the_best_of_all(drawn: Any) -> None:
    """No disjoint choice of variants gains more than the one returned."""
    group = _variants(drawn)
    taken = [variant for variant in best_packing(group, frozenset()) if variant]
    names = [name for variant in taken for name in variant.names]
    assert len(names) == len(set(names))
    best = 0.0
    for choice in itertools.product(*([*choices, None] for choices in group)):
        wanted = [name for variant in choice if variant for name in variant.names]
        if len(wanted) == len(set(wanted)):
            best = max(best, _gain(choice))
    assert _gain(taken) == pytest.approx(best)


def _network(blocks: int) -> Any:
    """Each sum could be in the tail of either of two products."""

    def network(x: Any, w: Any) -> Any:
        y = x @ w
        for _ in range(blocks):
            y = kf.relu(y @ w) + kf.tanh(y @ w.T)
        return y

    return network


def _specs() -> list[Any]:
    return [kd.spec("f32", (16, 16))] * 2


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_look_ahead_is_as_good_as_exact(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few anchors decided at a time, as many nodes are covered and as many bytes saved."""

    def gained() -> tuple[int, int]:
        graph = kf.fuse(_network(blocks)).graph(*_specs())
        chosen = choose_cover(graph, Options())
        saved = [savings(graph, match) for match in chosen.matches.values()]
        return sum(s.bytes for s in saved), sum(s.launches for s in saved)

    exact = gained()
    monkeypatch.setattr(cover_module, "EXACT_ANCHORS", 1)
    assert gained() == exact


def test_savings_are_time() -> None:
    """Bytes and launches are added as µs."""
    assert Savings(int(BYTES_PER_US), 3).us == pytest.approx(1 + 3 * LAUNCH_US)


class Pair:
    """A pattern for two outputs: Exp and the Neg of it, both stored."""

    name = "pair"
    examples: tuple[Any, ...] = ()

    def __init__(self, first: str, second: str, keep: bool = True) -> None:
        self.anchors: tuple[str, ...] = (first,)
        self.second = second
        self.keep = keep

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The anchor with the first node of the second kind that reads it, or two steps on."""
        found = [anchor]
        reach = [anchor]
        while reach:
            node = reach.pop()
            if node.op.name == self.second:
                found.append(node)
                break
            reach += facts.graph.consumers(node)
        if len(found) < 2:
            return Reason("KF-PATTERN", "there is no second node")
        return [Match(self, tuple(found), stores=tuple(found) if self.keep else ())]

    def lower(self, graph: Graph, match: Match, options: Options) -> Any:
        """Never asked here."""
        raise AssertionError


def _chain() -> tuple[Graph, Node]:
    graph = Graph()
    x = graph.input("x", (4,), f32)
    first = graph.add("Exp", x)
    last = graph.add("Neg", graph.add("Sqrt", first))
    graph.outputs = [graph.add("Add", last, first)]
    return graph, last


def test_a_kernel_may_store_several_values() -> None:
    """Values that are stored may be read outside; what is not stored may not."""
    graph = Graph()
    x = graph.input("x", (4,), f32)
    first = graph.add("Exp", x)
    second = graph.add("Neg", first)
    graph.outputs = [first, second]
    (match,) = choose_cover(graph, Options(), [Pair("Exp", "Neg")]).matches.values()
    assert match.stores == (first, second)
    assert savings(graph, match) == Savings(16, 1)
    refused = choose_cover(graph, Options(), [Pair("Exp", "Neg", keep=False)])
    assert not refused.matches
    assert refused.reasons["exp0"].code == "KF-ESCAPES"


def test_a_kernel_never_waits_for_itself() -> None:
    """A value that comes back through a node outside refuses the match."""
    graph, _ = _chain()
    refused = choose_cover(graph, Options(), [Pair("Exp", "Neg")])
    assert not refused.matches
    assert "computed from this kernel's own" in refused.reasons["exp0"].sentence


def test_kernels_never_wait_for_each_other() -> None:
    """Of two matches that are each fine but need one another's results, one is dropped."""
    graph = Graph()
    x, y = graph.input("x", (4,), f32), graph.input("y", (4,), f32)
    a, b = graph.add("Exp", x), graph.add("Log", y)
    graph.outputs = [graph.add("Neg", a), graph.add("Abs", b)]
    pairs = [_Crossed("Exp", "Abs"), _Crossed("Log", "Neg")]
    assert len(choose_cover(graph, Options(), pairs).matches) == 1


class _Crossed(Pair):
    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        other = next(node for node in facts.graph if node.op.name == self.second)
        return [Match(self, (anchor, other), stores=(anchor, other))]


class _Slow(Pair):
    """Two nodes, at a price, or the first alone."""

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        (reader,) = facts.graph.consumers(anchor)
        return [Match(self, (anchor, reader), preference_us=-1e7), Match(self, (anchor,))]


def test_what_is_passed_over_is_told() -> None:
    """A node that a match could have, which is not worth it, is KF-COST."""
    graph = Graph()
    graph.outputs = [graph.add("Neg", graph.add("Exp", graph.input("x", (4,), f32)))]
    chosen = choose_cover(graph, Options(), [_Slow("Exp", "Neg")])
    assert [len(match.covered) for match in chosen.matches.values()] == [1]
    assert {name: why.code for name, why in chosen.reasons.items()} == {"neg0": "KF-COST"}


@pytest.mark.parametrize("size", [64, 640])
def test_cost_is_linear_in_the_graph(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times as many anchors that want each other's nodes ask for at most 11 times as much."""
    asked = 0
    packing = cover_module.best_packing

    def counted(group: Any, claimed: Any) -> Any:
        nonlocal asked
        asked += 1
        return packing(group, claimed)

    monkeypatch.setattr(cover_module, "best_packing", counted)
    graph = kf.fuse(_network(size // 2)).graph(*_specs())
    choose_cover(graph, Options())
    assert asked <= size + 2


def test_numbers_of_a_crowded_cover_hold() -> None:
    """A network whose sums could go either way computes what NumPy does."""
    rng = np.random.default_rng(0)
    x, w = (rng.uniform(-0.5, 0.5, (16, 16)).astype(np.float32) for _ in range(2))
    layer = kf.fuse(_network(2))
    expected = x @ w
    for _ in range(2):
        expected = np.maximum(expected @ w, 0) + np.tanh(expected @ w.T)
    np.testing.assert_allclose(layer(x, w), expected, rtol=1e-4, atol=1e-5)
    assert len(layer.plan(x, w).calls) == 5
