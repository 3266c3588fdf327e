"""What of a matrix product a wrong result lacks, and how far rounding may move it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from kdsl_core.lang.signature import Signature
from kdsl_runtime.compare.recording import Array

_WIDTHS = (8, 16, 32, 64, 128, 256, 4, 2, 1)  # of a step of K, the likely ones first
_STEPS = 512  # unknowns of a fit
_SAMPLES = 4  # differing elements for each unknown
_SURE = 0.2  # how far a coefficient may be from a whole number


@dataclass(frozen=True)
class Product:
    """C = A · Bᵀ: `a` (M, K) and `b` (N, K) under their names."""

    names: tuple[str, str]
    a: Array
    b: Array

    def rows(self, at: Array) -> tuple[Array, Array]:
        """The rows (S, K) of both operands behind elements (S, 2) of C."""
        return self.a[at[:, 0]], self.b[at[:, 1]]


@dataclass(frozen=True)
class LeftOut:
    """A part [begin, end) of K that is in one result `times` more often than in the other."""

    begin: int
    end: int
    times: int

    def __str__(self) -> str:
        return f"k = {self.begin} … {self.end - 1}"


def product_of(signature: Signature, arguments: Mapping[str, Any], out: str) -> Product | None:
    """The product that an output is, as the sizes in the signature say; None where it is none."""
    dims = {p.name: p.tensor.dims for p in signature.parameters if p.kind == "tensor"}
    wanted = dims.get(out)
    if wanted is None or len(wanted) != 2:
        return None
    matrices = [n for n, d in dims.items() if n != out and d and len(d) == 2 and n in arguments]
    for first, second in permutations(matrices, 2):
        (m, k), pair = dims[first] or (), dims[second] or ()
        if m != wanted[0] or {*pair} != {wanted[1], k} or k in wanted:
            continue
        b = arguments[second] if pair[1] == k else arguments[second].T
        return Product((first, second), arguments[first], b)
    return None


def left_out(product: Product, got: Array, want: Array, at: Array) -> list[LeftOut]:
    """The parts of K whose contribution is what the results differ by at elements `at` (S, 2).

    `times` is positive where `want` has more of it. Empty where no parts explain the differences:
    a fit of the contributions of all steps must give whole numbers.
    """
    depth = product.a.shape[1]
    at = at[
        np.isfinite(got[*at.T].astype(np.float64)) & np.isfinite(want[*at.T].astype(np.float64))
    ]
    at = (
        at[np.linspace(0, len(at) - 1, min(len(at), _SAMPLES * _STEPS)).astype(int)]
        if len(at)
        else at
    )
    for width in _WIDTHS:
        steps = -(-depth // width)
        if steps > _STEPS or steps * _SAMPLES > len(at):
            continue
        whole = _fit(
            product, (want[*at.T].astype(np.float64) - got[*at.T].astype(np.float64)), at, width
        )
        if whole is not None:
            return _merged(whole, width, depth)
    return []


def _fit(product: Product, apart: Array, at: Array, width: int) -> Array | None:
    """How often each step of K explains differences (S,); None where whole numbers do not."""
    a, b = (x.astype(np.float64) for x in product.rows(at))
    shares = np.add.reduceat(a * b, np.arange(0, a.shape[1], width), axis=1)
    try:
        found = np.linalg.solve(shares.T @ shares, shares.T @ apart)
    except np.linalg.LinAlgError:  # steps that contribute nothing, or the same
        return None
    whole = np.rint(found)
    rest = apart - shares @ whole
    sure = (np.abs(found - whole) < _SURE).all() and whole.any()
    return whole if sure and np.sum(rest**2) < 0.1 * np.sum(apart**2) else None


def _merged(whole: Array, width: int, depth: int) -> list[LeftOut]:
    """Neighbouring steps with the same count as one part."""
    parts: list[LeftOut] = []
    for step, times in enumerate(whole.astype(int).tolist()):
        begin, end = step * width, min((step + 1) * width, depth)
        if not times:
            continue
        if parts and parts[-1].end == begin and parts[-1].times == times:
            begin = parts.pop().begin
        parts.append(LeftOut(begin, end, times))
    return parts


def rounding_bound(product: Product, want: Array, at: Array) -> Array:
    """How far sums at elements `at` (S, 2) may be apart that only round in another order.

    As for roundings of random sign: 4 √K units of the accumulator, which is f16 at the least, on
    the sum of magnitudes, and one unit of the result.
    """
    a, b = (np.abs(x.astype(np.float64)) for x in product.rows(at))
    unit = 2.0**-11 if want.dtype == np.float16 else 2.0**-24
    own = 2.0**-7 if want.dtype.itemsize == 2 and want.dtype != np.float16 else 2.0**-10
    own = 2.0**-23 if want.dtype.itemsize >= 4 else own
    magnitude = np.abs(want[*at.T].astype(np.float64))
    return np.asarray(4 * a.shape[1] ** 0.5 * unit * np.sum(a * b, axis=1) + own * magnitude)
