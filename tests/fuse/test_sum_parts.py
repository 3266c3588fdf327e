"""The launch that adds up parts of K: every share of the work gives the sums, always the same."""

from __future__ import annotations

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_fuse.kernels.sum_parts import THREADS, SumShares, sum_parts


@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("shape", [(128, 128), (7, 45), (33, 8), (130, 520)], ids=str)
@pytest.mark.parametrize("parts", [2, 3, 9, 64])
def test_sums(shape: tuple[int, int], parts: int, along: int) -> None:
    """Any number of parts and any shape, to another type, with a tail; again: the same bits."""
    rng = np.random.default_rng(parts)
    m, n = shape
    p = rng.standard_normal((parts, m, n) if along else (parts, n, m)).astype(np.float32)
    p = p.transpose((1, 2, 0) if along else (2, 1, 0))
    bias = np.broadcast_to(rng.standard_normal(n).astype(np.float32), shape)
    shares = SumShares.of(shape, along, parts)
    results = []
    for order in ("linear", "shuffle"):
        c = np.full(shape, np.nan, np.float16) if along else np.full((n, m), np.nan, np.float16).T
        kd.simulate(
            sum_parts,
            grid=shares.grid,
            block=THREADS,
            args=(p, c, bias),
            kwargs={"epilogue": lambda acc, bias: acc + bias, **shares.statics},
            order=order,
        )
        results.append(c)
    exact = p.sum(axis=2, dtype=np.float64) + bias
    np.testing.assert_allclose(results[0], exact, rtol=2.0**-10, atol=1e-2)
    assert results[0].tobytes() == results[1].tobytes()


def test_small_results_share_their_parts_out() -> None:
    """Few vectors and many parts: several groups of threads; large results: one."""
    assert SumShares.of((128, 128), 1, 64) == ((2, 128), {"parts": 64, "groups": 8})
    assert SumShares.of((512, 512), 1, 8) == ((1, 512), {"parts": 8, "groups": 1})
    assert SumShares.of((64, 64), 1, 3).statics["groups"] == 1
