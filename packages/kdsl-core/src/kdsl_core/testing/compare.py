"""Arrays compared as their dtype deserves, and a text that shows where they differ."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from kdsl_core.errors import ArgumentError
from kdsl_core.records import dataclass

_SHOWN = 8
_ROUNDINGS = 4

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tolerance:
    """A result may be off by `relative` · |expected| + `absolute`."""

    relative: float
    absolute: float

    def __str__(self) -> str:
        return f"{self.relative:.3g} · |expected| + {self.absolute:.3g}"


EXACT = Tolerance(0.0, 0.0)


def tolerance_of(dtype: Any, expected: Array) -> Tolerance:
    """What a careful kernel may be off by in results of a dtype; nothing for integers.

    Four units in the last place of the result, and one of the largest expected number: sums of
    large terms that cancel are as far off as their terms.
    """
    if _is_exact(np.dtype(dtype)):
        return EXACT
    epsilon = float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call] # it has no stubs
    size = np.abs(expected.astype(np.float64))
    largest = float(np.max(size, initial=0.0, where=np.isfinite(size)))
    return Tolerance(_ROUNDINGS * epsilon, epsilon * largest)


def differences(
    name: str, got: Array, expected: Any, tolerance: Tolerance | None = EXACT
) -> str | None:
    """Where an array is not what was expected, in words; None when it is.

    `tolerance` None means that of the dtype. NaN equals NaN, and an infinity its like. Without a
    tolerance, expected floats are rounded to the array's dtype first.

    Raises: ArgumentError K533 when the shapes differ; a single number stands for an array of it.
    """
    want = np.asarray(expected)
    if want.shape not in (got.shape, ()):
        raise ArgumentError(
            f"{name} has shape {got.shape}, but {want.shape} is expected",
            code="K533",
            fix="give an array of the output's shape, or a single number",
        )
    want = np.broadcast_to(want, got.shape)
    if tolerance is None:
        tolerance = tolerance_of(got.dtype, want)
    if tolerance == EXACT and not _is_exact(got.dtype):
        want = want.astype(got.dtype)
    wrong = ~_fits(got, want, tolerance)
    return _shown(name, got, want, wrong, tolerance) if wrong.any() else None


def _is_exact(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iub"


def _fits(got: Array, want: Array, tolerance: Tolerance) -> Array:
    if _is_exact(got.dtype) and _is_exact(want.dtype) and tolerance == EXACT:
        return np.asarray(got == want)
    with np.errstate(all="ignore"):
        x, y = got.astype(np.float64), want.astype(np.float64)
        near = np.abs(x - y) <= tolerance.relative * np.abs(y) + tolerance.absolute
        return np.asarray((near & np.isfinite(y)) | (x == y) | (np.isnan(x) & np.isnan(y)))


def _shown(name: str, got: Array, want: Array, wrong: Array, tolerance: Tolerance) -> str:
    where = np.argwhere(wrong)
    count = f"{len(where):,} of {got.size:,} elements of {name} ({got.dtype})"
    allowed = "" if tolerance == EXACT else f" by more than {tolerance}"
    lines = [f"{count} differ from what is expected{allowed}"]
    for at in map(tuple, where[:_SHOWN].tolist()):
        x, y = got[at], want[at]
        apart = "" if _is_exact(got.dtype) else f", off by {abs(float(x) - float(y)):.3g}"
        lines.append(f"  {name}[{', '.join(map(str, at))}]: got {x}, expected {y}{apart}")
    if len(where) > _SHOWN:
        lines.append(f"  … and {len(where) - _SHOWN:,} more, the last {_span(name, where[-1])}")
    return "\n".join(lines)


def _span(name: str, at: Array) -> str:
    return f"{name}[{', '.join(map(str, at.tolist()))}]"
