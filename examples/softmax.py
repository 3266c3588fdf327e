"""Softmax over the rows of a matrix: one warp a row, lanes exchange by shuffles.

python examples/softmax.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kdsl_core as kd

WARPS = 4


@kd.kernel
def softmax(x: kd.Tensor["f32", "m n"], y: kd.Tensor["f32", "m n"]):
    """y = exp(x − max) / Σ exp(x − max) row by row, in one pass over x for max and sum together."""
    row = kd.block_idx()[0] * WARPS + kd.warp_idx()
    if row < x.shape[0]:
        top, total = float("-inf"), 0.0
        for column in kd.range(kd.lane_idx(), x.shape[1], 32):
            value = x[row, column]
            higher = kd.maximum(top, value)
            total = total * kd.exp(top - higher) + kd.exp(value - higher)
            top = higher
        highest = kd.warp_reduce(kd.maximum, top)
        scale = kd.where(total == 0.0, 0.0, total * kd.exp(top - highest))
        everything = kd.warp_reduce(lambda a, b: a + b, scale)
        for column in kd.range(kd.lane_idx(), x.shape[1], 32):
            y[row, column] = kd.exp(x[row, column] - highest) / everything


def example_softmax() -> dict[str, Any]:
    """A launch for `kdsl inspect examples/softmax.py`."""
    x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    return {"grid": 2, "block": WARPS * 32, "args": (x, np.empty_like(x))}


def main() -> None:
    """Compare with NumPy."""
    x = np.random.default_rng(0).standard_normal((10, 77)).astype(np.float32)
    y = np.empty_like(x)
    softmax[-(-len(x) // WARPS), WARPS * 32](x, y)
    shifted = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(y, shifted / shifted.sum(axis=1, keepdims=True), rtol=1e-5)
    print("rows sum to", y.sum(axis=1)[:3])


if __name__ == "__main__":
    main()
