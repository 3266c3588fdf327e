"""Fixtures for the fusion tests."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.numpy_kernel import NumpyGemm


@pytest.fixture
def gemm() -> NumpyGemm:
    """A GEMM kernel in NumPy that records its launches."""
    return NumpyGemm()


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fixed seed."""
    return np.random.default_rng(7)
