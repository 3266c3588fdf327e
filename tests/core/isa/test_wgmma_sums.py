"""Accumulators of warp groups with products that wait."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kdsl_core.isa import wgmma_sums
from kdsl_core.isa.tensor_core import multiply_accumulate
from kdsl_core.isa.wgmma_sums import WarpgroupSums

WARPS, COLUMNS, DEPTH = 8, 24, 16
OWN = np.arange(WARPS) // 4  # the B of each warp group
SHARED, CROSSED = np.zeros(WARPS, np.int64), OWN[::-1]


def product(rng: np.random.Generator, of_warp: Any) -> tuple[Any, Any, Any]:
    """A of each warp, the matrices B, and which of them each warp has."""
    shapes = (WARPS, 16, DEPTH), (of_warp.max() + 1, COLUMNS, DEPTH)
    a, b = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes)
    return a, b, of_warp


@pytest.mark.parametrize("kinds", [[OWN] * 4, [SHARED] * 3, [OWN, SHARED, SHARED, CROSSED, OWN]])
@pytest.mark.parametrize("most", [0, 1 << 20])
def test_sums_are_those_of_each_step(
    monkeypatch: pytest.MonkeyPatch, kinds: list[Any], most: int
) -> None:
    """However many products wait, each warp has the bits of its instructions one by one."""
    monkeypatch.setattr(wgmma_sums, "_MOST_BYTES", most)
    rng = np.random.default_rng(0)
    start = rng.standard_normal((WARPS, 16, COLUMNS)).astype(np.float32)
    sums, expected = WarpgroupSums(start, "exact"), start
    for of_warp in kinds:
        a, b, _ = product(rng, of_warp)
        sums.add(a, b, of_warp)
        expected = multiply_accumulate(a, b[of_warp], expected, "wgmma")
    for _ in range(2):  # also when they are asked for again
        np.testing.assert_array_equal(sums.values().view(np.uint32), expected.view(np.uint32))
    a, b, _ = product(rng, OWN)
    sums.add(a, b, OWN)
    expected = multiply_accumulate(a, b[OWN], expected, "wgmma")
    np.testing.assert_array_equal(sums.values().view(np.uint32), expected.view(np.uint32))
