"""Networks that read text: what onnxruntime computes of a page, kdsl computes, kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import kdsl_fuse as kf
from fuse import ocr
from kdsl_fuse.graph import Node
from kdsl_fuse.reference import Array, evaluate

ocr.require()
NAMES = (ocr.DETECTION, ocr.CLASSIFICATION)
EVERY = 16  # of so many kernels one is simulated, others differ in sizes only


def inputs_of(name: str) -> Any:
    """A page for the detection, its first line for the classification."""
    return ocr.page() if name == ocr.DETECTION else ocr.page(48, 192)


@pytest.mark.parametrize("name", NAMES)
def test_every_convolution_has_a_kernel(name: str) -> None:
    """Nothing runs in NumPy, in f32 and in f16; norms, activations and residuals ride along."""
    for model, dtype in ((ocr.path(name), np.float32), (ocr.halved(name), np.float16)):
        plan = kf.from_onnx(model).plan(inputs_of(name).astype(dtype))
        assert ocr.convolutions_apart(plan) == [] and not plan.reasons
        told = plan.explain()
        assert "NumPy steps: 0" in told
        rows = [line.split() for line in told.splitlines()]
        convolutions = [row for row in rows if "Conv" in row[1:2] or "ConvTranspose" in row[1:2]]
        assert len(convolutions) > 50 and all("call" in row for row in convolutions)
        assert len(plan.calls) <= (93 if name == ocr.DETECTION else 76)


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_means_what_onnxruntime_computes(name: str) -> None:
    """All operators of a network in f64, on a page."""
    x = inputs_of(name)
    want = ocr.expected(ocr.path(name), x)
    (got,) = evaluate(kf.from_onnx(ocr.path(name)).graph(x), [x])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=5e-5)


def test_boxes_of_lines() -> None:
    """The page has a box for each line, and weights of 16 bits move none of them."""
    x = ocr.page()
    found = ocr.boxes(ocr.expected(ocr.path(ocr.DETECTION), x))
    assert len(found) == len(ocr.LINES)
    half = x.astype(np.float16)
    (chances,) = evaluate(kf.from_onnx(ocr.halved(ocr.DETECTION)).graph(half), [half])
    assert ocr.boxes(chances) == found


@pytest.mark.parametrize("name", NAMES)
def test_kernels_one_by_one(name: str) -> None:
    """Kernels of all kinds, given exact operands, in the simulator with its checks."""
    x = ocr.page(32, 64, 20) if name == ocr.DETECTION else ocr.page(48, 64)
    plan = kf.from_onnx(ocr.path(name)).plan(x)
    kinds = dict.fromkeys(call.name for call in plan.calls)
    first = [next(call for call in plan.calls if call.name == kind) for kind in kinds]
    chosen = list(dict.fromkeys([*first, *plan.calls[::EVERY]]))
    needed = {read for call in chosen for read in call.reads}
    graph = plan.graph
    nodes = [graph[n] for n in needed if graph[n].op.name != "Constant"]
    results = [output for call in chosen for output in call.outputs]
    known = values_of(graph, x, [*nodes, *results])
    values = plan.values(x) | {node.name: known[node.name].copy() for node in nodes}
    for call in chosen:
        want = known[call.output.name]
        scale = float(np.abs(want).max())
        np.testing.assert_allclose(call.run(values), want, rtol=1e-4, atol=1e-5 * scale + 1e-6)


def values_of(graph: Any, x: Any, nodes: Sequence[Node]) -> dict[str, Array]:
    """Exact values of nodes, rounded to their types."""
    returned = graph.outputs
    graph.outputs = list(nodes)
    found = evaluate(graph, [x])
    graph.outputs = returned
    return {node.name: value for node, value in zip(nodes, found, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_whole_networks(name: str) -> None:
    """All kernels in a row, in the simulator: half a minute, which is why it is slow."""
    x = ocr.page(64, 64, 20) if name == ocr.DETECTION else ocr.page(48, 96)
    want = ocr.expected(ocr.path(name), x)
    got = kf.from_onnx(ocr.path(name))(x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    if name == ocr.DETECTION:
        assert ocr.boxes(got) == ocr.boxes(want)
