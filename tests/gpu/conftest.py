"""Fixtures of tests on a GPU."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def torch() -> Any:
    """PyTorch with its GPU, compiling anew."""
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("torch sees no GPU")
    found._dynamo.reset()
    found.manual_seed(2)
    return found
