"""The kernel's own test: every check, several orders of blocks and warps, and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import transposes


@pytest.mark.parametrize("pad", [0, 1])
def test_transpose(simulate, pad):
    """y is xᵀ, to the bit."""
    x = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    run = simulate(transposes.transpose, (3, 2), (32, 8), x, np.zeros((96, 64), np.float32),
                   tile=32, pad=pad)  # fmt: skip
    run.equals(y=x.T)
