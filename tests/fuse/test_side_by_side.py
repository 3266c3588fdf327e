"""Products of one matrix in one launch: which are joined, and what they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
import kdsl_fuse as kf
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.products_sm90 import products_sm90
from kdsl_fuse.reference import evaluate

BF16 = ml_dtypes.bfloat16


def numbers(*shape: int, dtype: Any = BF16) -> Any:
    """Uniform numbers in −1 … 1."""
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(dtype)


def weights(count: int = 3, n: int = 24, k: int = 40) -> list[Any]:
    """Matrices (n, k) with numbers of their own."""
    return [numbers(n, k) * BF16(i + 1) for i in range(count)]


def names(plan: Any) -> list[str]:
    """The kernels of a plan."""
    return [call.name for call in plan.calls]


def projections(x: Any, q: Any, k: Any, v: Any, a: Any, b: Any, c: Any) -> Any:
    """Queries, keys and values."""
    return kf.gelu(x @ q.T + a), kf.gelu(x @ k.T + b), kf.gelu(x @ v.T + c)


@pytest.mark.parametrize("rows", [(72,), (2, 50)])
def test_three_products_are_one_launch(rows: tuple[int, ...]) -> None:
    """Each result is its own product's, in every order of the blocks, without a hazard."""
    args = [numbers(*rows, 40), *weights(), *(numbers(24) * BF16(i) for i in range(3))]
    fused = kf.fuse(target="sm_90a")(projections)
    plan = fused.plan(*args)
    (call,) = plan.calls
    assert call.name == "products_sm90" and len(call.outputs) == 3
    run = call.simulate(plan.values(*args), order="shuffle", seed=3)
    assert not run.hazards
    for got, want in zip(plan(*args), evaluate(fused.graph(*args), args), strict=True):
        wide = want.astype(np.float64)
        np.testing.assert_allclose(got.astype(np.float64), wide, rtol=2.0**-7, atol=2e-4)


def test_explain_says_who_is_beside_whom() -> None:
    """The table has each node, the totals the launches that are no more."""
    plan = kf.fuse(target="sm_90a")(lambda x, q, k: (x @ q.T, x @ k.T)).plan(
        numbers(64, 40), *weights(2)
    )
    told = plan.explain()
    assert "call 0: products_sm90" in told and "beside matmul0" in told
    assert "kernels: 1," in told


APART: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "few rows": (lambda x, q, k: (x @ q.T, x @ k.T), (numbers(16, 40), *weights(2)), "sm_90a"),
    "widths": (
        lambda x, q, k: (x @ q.T, x @ k.T),
        (numbers(64, 40), numbers(24, 40), numbers(16, 40)),
        "sm_90a",
    ),
    "matrices": (
        lambda x, y, q, k: (x @ q.T, y @ k.T),
        (numbers(64, 40), numbers(64, 40), *weights(2)),
        "sm_90a",
    ),
    "tails": (
        lambda x, q, k: (kf.relu(x @ q.T), x @ k.T),
        (numbers(64, 40), *weights(2)),
        "sm_90a",
    ),
    "a column count that TMA does not store": (
        lambda x, q, k: (x @ q.T, x @ k.T),
        (numbers(64, 40), *weights(2, n=20)),
        "sm_90a",
    ),
    "a target without wgmma": (
        lambda x, q, k: (x @ q.T, x @ k.T),
        (numbers(64, 40), *weights(2)),
        "sm_80",
    ),
    "one that needs the other": (
        lambda x, q, k: x @ (k * kf.sum(x @ q.T)).T,
        (numbers(64, 40), *weights(2)),
        "sm_90a",
    ),
}


@pytest.mark.parametrize("case", APART)
def test_others_stay_apart(case: str) -> None:
    """What is unlike, or better alone, has its own launch."""
    function, args, target = APART[case]
    assert "products_sm90" not in names(kf.fuse(target=target)(function).plan(*args))


def test_five_are_four_and_one() -> None:
    """A launch has up to four."""
    function = kf.fuse(target="sm_90a")(lambda x, *w: tuple(x @ each.T for each in w))
    plan = function.plan(numbers(64, 40), *weights(5))
    assert sorted(names(plan)) == ["gemm_sm90", "products_sm90"]


def test_clusters_are_refused() -> None:
    """At the author's configuration, with its numbers."""
    specs = [kd.spec("bf16", (64, 64)) for _ in range(5)]
    config = Sm90Config((64, 64, 64), 2, consumers=1, splits=2)
    with pytest.raises(kd.ArgumentError, match=r"K934.*2 splits"):
        products_sm90.ir(
            *specs, products=2, epilogue=lambda acc: acc, config=config, block=config.threads
        )
