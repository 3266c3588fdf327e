"""What every pattern must do, on its own examples: a new pattern gets these tests for free."""

from __future__ import annotations

import runpy
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
import kdsl_fuse as kf
from covering import first_of_each
from kdsl_core.dtypes import BY_NAME
from kdsl_fuse import reference
from kdsl_fuse.cover import check, choose_cover
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts, is_free
from kdsl_fuse.patterns import ALL_PATTERNS, Example, Match, Options, Pattern
from kdsl_fuse.plan import make_plan
from kdsl_fuse.reasons import Reason
from kdsl_fuse.reference import evaluate
from kdsl_fuse.rewrites import rewrite

CASES = {f"{p.name}: {e.name}": (p, e) for p in ALL_PATTERNS for e in p.examples}
case = pytest.mark.parametrize("name", CASES)


def arrays_of(example: Example) -> list[Any]:
    """Numbers for an example, the same at each call."""
    rng = np.random.default_rng(zlib.crc32(example.name.encode()))
    found = []
    for name, shape in example.arrays:
        dtype = BY_NAME[name]
        if dtype.is_float:
            found.append(rng.uniform(-1, 1, shape).astype(dtype.numpy))
        else:
            found.append(rng.integers(0, 2 if name == "boolean" else 8, shape).astype(dtype.numpy))
    return found


def graph_of(example: Example) -> Graph:
    """The example's graph in the form that patterns see."""
    graph = kf.fuse(lambda *args: example.function(kf, *args)).graph(*arrays_of(example))
    rewrite(graph)
    return graph


def options_of(example: Example) -> Options:
    """The options that the example is planned with."""
    return Options(target=example.target)


def best(pattern: Pattern, graph: Graph, options: Options) -> Match:
    """The pattern's match on an example, by its own cover."""
    cover = choose_cover(graph, options, [pattern])
    (match,) = cover.matches.values()
    return match


@case
def test_matches_its_example(name: str) -> None:
    """One match covers all operators of the example, and all patterns together agree."""
    pattern, example = CASES[name]
    graph = graph_of(example)
    match = best(pattern, graph, options_of(example))
    told = {node.name for node in (*match.covered, *match.recomputed) if not is_free(node)}
    assert told == {node.name for node in graph if not is_free(node)}
    assert len(make_plan(graph, options_of(example)).calls) == 1


@case
def test_lowered_equals_the_reference(name: str) -> None:
    """The kernel's results in the simulator are the f64 reference, rounded, without hazards."""
    _, example = CASES[name]
    args = arrays_of(example)
    graph = graph_of(example)
    expected = evaluate(graph, args)
    plan = make_plan(graph, options_of(example))
    results = plan.run(*args)
    for got, want in zip(results if len(expected) > 1 else [results], expected, strict=True):
        eps = float(ml_dtypes.finfo(want.dtype).eps) if want.dtype.kind not in "biu" else 0.0
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        got, want = (x.astype(np.float64) for x in (got, want))
        np.testing.assert_allclose(got, want, rtol=2 * eps + 1e-5, atol=2e-5 + eps / 4)
    for call in plan.calls:
        assert call.simulate(plan.values(*args), on_hazard="collect").hazards == ()


@pytest.mark.parametrize("name", first_of_each(CASES, lambda name: name.partition(":")[0]))
def test_ejected_it_is_the_same(name: str, tmp_path: Path) -> None:
    """The file's own test passes in the simulator, and the plan that loads it has equal bits."""
    _, example = CASES[name]
    args = arrays_of(example)
    plan = make_plan(graph_of(example), options_of(example))
    before = plan.run(*args)
    (path,) = kf.eject(plan, tmp_path)
    assert "from kdsl_fuse.kernels" not in path.read_text(), "the file holds all that it runs"
    runpy.run_path(str(path))["test_kernel"]()
    kf.load(plan, tmp_path)
    (call,) = plan.calls
    assert call.kernel.__module__ == path.stem
    for kept, got in zip(
        *(x if isinstance(x, tuple) else (x,) for x in (before, plan.run(*args))), strict=True
    ):
        assert kept.tobytes() == got.tobytes()
    assert call.simulate(plan.values(*args), on_hazard="collect").hazards == ()


@case
def test_no_worse_than_unfused(name: str) -> None:
    """The error to the f64 reference is at most 1.1 times that of one kernel per operator."""
    _, example = CASES[name]
    args = arrays_of(example)
    graph = graph_of(example)
    exact = evaluate(graph, args, rounded=False)
    fused = make_plan(graph, options_of(example)).run(*args)
    for got, apart, want in zip(
        fused if len(exact) > 1 else [fused], _unfused(graph, args), exact, strict=True
    ):
        if apart.dtype.kind not in "biu":
            ulp = float(ml_dtypes.finfo(apart.dtype).eps) * np.abs(want).max()
            assert _error(got, want) <= 1.1 * _error(apart, want) + ulp


def _error(got: Any, want: Any) -> float:
    return float(np.sqrt(np.mean((got.astype(np.float64) - want) ** 2)))


def _unfused(graph: Graph, args: list[Any]) -> list[Any]:
    """Each operator computed in f32 and rounded to its dtype."""
    values = dict(zip((node.name for node in graph.inputs), args, strict=True))
    for node in graph:
        if node.op.name == "Constant":
            values[node.name] = reference.constant(node, np.float32)
        elif node.op.name != "Input":
            operands = graph.operands(node)
            wide = [reference.widen(values[x.name], np.float32) for x in operands]
            result = reference.apply(node, operands, wide, np.float32)
            values[node.name] = reference.round_to(result, node.dtype)
    return [values[node.name] for node in graph.outputs]


@case
def test_each_leak_is_refused(name: str) -> None:
    """With an interior value returned or read elsewhere as well, no match has it inside."""
    pattern, example = CASES[name]
    inner = [node.name for node in best(pattern, graph_of(example), options_of(example)).covered]
    for leaking in inner:
        for leak in (_return, _read):
            graph = graph_of(example)
            node = graph[leaking]
            if graph.is_output(node) and leak is _return:
                continue
            leak(graph, node)
            facts = Facts.of(graph)
            for match in _matches(pattern, facts, options_of(example)):
                inside = {x.name for x in match.covered} - {x.name for x in match.stores}
                assert leaking not in inside or check(facts, match) is not None
            for match in choose_cover(graph, options_of(example)).matches.values():
                assert leaking not in {x.name for x in match.covered} or node in match.stores


def _return(graph: Graph, node: Node) -> None:
    graph.outputs.append(node)


def _read(graph: Graph, node: Node) -> None:
    graph.outputs.append(graph.add("Concat", node, node, axis=0))


def _matches(pattern: Pattern, facts: Facts, options: Options) -> list[Match]:
    found: list[Match] = []
    for node in facts.graph:
        if node.op.name in pattern.anchors:
            result = pattern.match(facts, node, options)
            found += [] if isinstance(result, Reason) else result
    return found


@case
def test_matching_changes_nothing(name: str) -> None:
    """A second look finds the same, and the graph, its own plan included, stays as it was."""
    pattern, example = CASES[name]
    graph = graph_of(example)
    table, options = graph.table(), options_of(example)
    first, second = (
        [[x.name for x in m.covered] for m in _matches(pattern, Facts.of(graph), options)]
        for _ in range(2)
    )
    assert first == second
    assert first[0] == max(first, key=len), "the match with the most nodes comes first"
    once, again = (make_plan(graph, options_of(example)).calls[0] for _ in range(2))
    assert (once.statics, once.operands, once.extras) == (
        again.statics, again.operands, again.extras,
    )  # fmt: skip
    assert graph.table() == table


@case
def test_other_graphs_are_left_alone(name: str) -> None:
    """A pattern answers for its own anchors only, with nodes of the graph that it was given."""
    _, example = CASES[name]
    graph = graph_of(example)
    facts = Facts.of(graph)
    names = {node.name for node in graph}
    for pattern in ALL_PATTERNS:
        for match in _matches(pattern, facts, options_of(example)):
            assert {node.name for node in match.covered} <= names
            assert match.covered[0].op.name in pattern.anchors
            assert set(match.stores) <= set(match.covered)


@pytest.mark.parametrize("pattern", ALL_PATTERNS, ids=lambda pattern: pattern.name)
def test_is_described(pattern: Pattern) -> None:
    """Names are unique, anchors are operators, and each pattern shows what it covers."""
    from kdsl_fuse.ops import op_named

    assert [p.name for p in ALL_PATTERNS].count(pattern.name) == 1
    views = [anchor for anchor in pattern.anchors if op_named(anchor).view is not None]
    assert pattern.anchors and (not views or pattern.name == "copy")
    assert pattern.examples or pattern.name == "custom"


def test_specs_are_enough() -> None:
    """Every example is planned, and turned into PTX, without data."""
    for _, example in CASES.values():
        specs = [kd.spec(name, shape) for name, shape in example.arrays]

        def function(*args: Any, example: Example = example) -> Any:
            return example.function(kf, *args)

        for call in kf.fuse(target=example.target)(function).plan(*specs).calls:
            assert ".visible .entry" in call.ptx(example.target)
