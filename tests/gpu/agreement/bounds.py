"""How far approximate functions of the hardware may be from the correctly rounded result."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpu.agreement.comparison import Array, Outcome, bits, is_nan
from kdsl_core.dtypes import f32

UNSTATED = 2.0  # an error that is no claim: sines and cosines of large arguments
_PI_F32 = float(np.float32(np.pi))


def _relative(bound: float) -> Callable[[Array, Array], Array]:
    return lambda x, exact: bound * np.abs(exact)


def _log2(x: Array, exact: Array) -> Array:
    near_one = (x >= 0.5) & (x <= 2)
    return np.where(near_one, 2.0**-22, 2.0**-22 * np.abs(exact))


def _circular(x: Array, exact: Array) -> Array:
    return np.where(np.abs(x) <= _PI_F32, 2.0**-20.5, UNSTATED)


# function → (arguments, exact results) ↦ the absolute error that PTX allows
BOUNDS: dict[str, Callable[[Array, Array], Array]] = {
    "exp2": _relative(2 * 2.0**-23),
    "exp2_ftz": _relative(2 * 2.0**-23),
    "rcp": _relative(2.0**-23),
    "rsqrt": _relative(2.0**-22.9),
    "sqrt": _relative(2.0**-23),
    "tanh": _relative(2.0**-11),
    "log2": _log2,
    "sin": _circular,
    "cos": _circular,
}


def within_bounds(family: str, name: str, x: Array, expected: Array, got: Array) -> Outcome:
    """Which approximations of f32 are further from the rounded result than PTX states.

    Rounding adds one ulp to each bound. Infinities must be where they are expected.
    """
    exact, near, at = (values.astype(np.float64) for values in (expected, got, x))
    other = bits(expected) != bits(got)
    both_nan = is_nan(expected, f32) & is_nan(got, f32)
    with np.errstate(invalid="ignore"):
        bound = BOUNDS[name](at, exact)
        allowed = bound + np.spacing(np.abs(expected))
        error = np.abs(near - exact)
        wrong = other & ~both_nan & ~(error <= allowed)
        used = np.where(np.isfinite(error) & (bound < UNSTATED), error / allowed, 0)
    shown: tuple[str, ...] = ()
    if wrong.any():
        first = np.flatnonzero(wrong)[0]
        shown = (f"{name}({x[first]!r}) expected {expected[first]!r}, got {got[first]!r}",)
    counts = len(x), int(wrong.sum()), int((other & both_nan).sum())
    return Outcome(family, 1, *counts, float(used.max(initial=0)), shown)
