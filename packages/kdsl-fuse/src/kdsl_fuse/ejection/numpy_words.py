"""Words of kernels' references that NumPy lacks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Any) -> Any:
    """The error function of each element."""
    return np.asarray(_erf(x), x.dtype)


def ndtr(x: Any) -> Any:
    """The distribution function of the standard normal distribution."""
    return (0.5 + 0.5 * erf(x * math.sqrt(0.5))).astype(x.dtype)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e⁻ˣ)."""
    return 1 / (1 + np.exp(-x))


def rsqrt(x: Any) -> Any:
    """1 / √x."""
    return 1 / np.sqrt(x)
