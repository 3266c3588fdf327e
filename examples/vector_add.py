"""The first kernel: z = x + alpha · y, one element a thread, any length.

python examples/vector_add.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kdsl_core as kd

THREADS = 128


@kd.kernel
def scaled_add(
    x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], z: kd.Tensor["f32", "n"], alpha: kd.f32
):
    """Each thread takes one element; the threads beyond the end do nothing."""
    i = kd.block_idx()[0] * kd.block_dim()[0] + kd.thread_idx()[0]
    if i < z.shape[0]:
        z[i] = x[i] + alpha * y[i]


def example_scaled_add() -> dict[str, Any]:
    """A launch for `kdsl inspect examples/vector_add.py`."""
    x, y = (np.ones(1000, np.float32) for _ in range(2))
    return {"grid": 8, "block": THREADS, "args": (x, y, np.empty_like(x), 0.5)}


def main() -> None:
    """Run it in the simulator, which checks every address on the way."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(1000).astype(np.float32) for _ in range(2))
    z = np.empty_like(x)
    scaled_add[-(-len(x) // THREADS), THREADS](x, y, z, 0.5)
    np.testing.assert_allclose(z, x + np.float32(0.5) * y, rtol=1e-6)
    print("z[:4] =", z[:4])


if __name__ == "__main__":
    main()
