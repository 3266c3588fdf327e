"""Memory between launches: places are shared, but never by values that are alive together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kdsl_fuse as kf
from fuse.numpy_kernel import NumpyGemm
from kdsl_fuse.memory import ALIGNMENT, MemoryPlan, plan_memory

STEP = st.tuples(st.integers(0, 2000), st.lists(st.integers(0, 30), max_size=3))


def _planned(steps: Any, kept: set[str]) -> tuple[MemoryPlan, dict[str, tuple[int, int, int]]]:
    """The plan, and of each value (bytes, first step, last step)."""
    calls: list[Any] = []
    reads: list[list[str]] = []
    alive: dict[str, tuple[int, int, int]] = {}
    for index, (size, earlier) in enumerate(steps):
        node = SimpleNamespace(name=f"v{index}", bytes=size)
        calls.append(SimpleNamespace(outputs=(node,)) if size % 7 else None)
        reads.append([f"v{i}" for i in earlier if i < index])
        alive[node.name] = (size, index, index)
        for name in reads[-1]:
            alive[name] = (*alive[name][:2], index)
    return plan_memory(calls, reads, kept), alive


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(STEP, min_size=1, max_size=30), st.sets(st.integers(0, 30)))
def test_values_alive_together_never_overlap(steps: Any, kept: set[int]) -> None:
    """Two values of which one is written before the other's last read lie apart."""
    plan, alive = _planned(steps, {f"v{i}" for i in kept})
    placed = [(start, *alive[name]) for name, start in plan.values.items()]
    for i, (start, size, first, last) in enumerate(placed):
        assert start % ALIGNMENT == 0 and start + size <= plan.peak_bytes
        for other, more, begin, end in placed[i + 1 :]:
            if first <= end and begin <= last:
                assert start + size <= other or other + more <= start
    assert plan.live_bytes <= plan.peak_bytes <= plan.unshared_bytes
    assert not {f"v{i}" for i in kept} & set(plan.values)


def test_a_chain_needs_two_places(gemm: NumpyGemm) -> None:
    """However long, a chain of layers alternates between two buffers, and says so."""

    def network(x: Any, w: Any) -> Any:
        for _ in range(10):
            x = kf.relu(x @ w)
        return x

    rng = np.random.default_rng(1)
    x, w = (rng.uniform(-0.4, 0.4, (32, 32)).astype(np.float32) for _ in range(2))
    layer = kf.fuse(gemm=gemm)(network)
    plan = layer.plan(x, w)
    memory = plan.memory
    assert (len(memory.values), memory.peak_bytes) == (9, 2 * 32 * 32 * 4)
    assert memory.live_bytes == memory.peak_bytes
    assert memory.unshared_bytes == 9 * 32 * 32 * 4
    assert (
        "memory between launches: 9 values in 8192 bytes (8192 alive at once, 36864 without reuse)"
        in plan.explain()
    )
    expected = x
    for _ in range(10):
        expected = np.maximum(expected @ w, 0)
    np.testing.assert_allclose(layer(x, w), expected, rtol=1e-4, atol=1e-6)


def test_results_are_arrays_of_their_own(gemm: NumpyGemm) -> None:
    """What a plan returns, or a view of it, is not overwritten by the next run."""

    def layer(x: Any, w: Any) -> Any:
        y = kf.relu(x @ w)
        return (y @ w).T, y[1:]

    args = [np.random.default_rng(seed).normal(size=(4, 4)).astype(np.float32) for seed in (0, 1)]
    fused = kf.fuse(gemm=gemm)(layer)
    first = fused(*args)
    copies = [np.array(x) for x in first]
    second = fused(args[0] * 2, args[1])
    assert not fused.plan(*args).memory.values
    for got, copy, other in zip(first, copies, second, strict=True):
        np.testing.assert_array_equal(got, copy)
        assert not np.shares_memory(got, other)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_shared_places_in_the_simulator(target: str) -> None:
    """A diamond of products with reused memory has the numbers of NumPy."""

    @kf.fuse(target=target)
    def layer(x: Any, w: Any) -> Any:
        y = kf.relu(x @ w)
        for _ in range(3):
            y = kf.tanh(y @ w) + y
        return y

    rng = np.random.default_rng(2)
    x, w = (rng.uniform(-0.5, 0.5, (16, 16)).astype(np.float16) for _ in range(2))
    expected = np.maximum(x.astype("f4") @ w.astype("f4"), 0)
    for _ in range(3):
        expected = np.tanh(expected @ w.astype("f4")) + expected
    np.testing.assert_allclose(layer(x, w).astype("f4"), expected, atol=0.01)
    memory = layer.plan(x, w).memory
    assert memory.peak_bytes < memory.unshared_bytes
