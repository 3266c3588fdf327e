"""Operands that ask what a tensor core does where its model is not settled: kinds of problems.

Each kind gives A (P, M, K), B (P, N, K) and C (P, M, N) of an instruction, from a seed.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

import kdsl_core as kd
from kdsl_core.dtypes import DType, e4m3, f32, tf32
from kdsl_core.isa.wgmma_shapes import TYPES

Array: TypeAlias = np.ndarray[Any, Any]
Problem: TypeAlias = tuple[Array, Array, Array]
Shapes: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def problems(atom: Any, kind: str, count: int) -> Problem:
    """`count` problems of a kind for an instruction, always the same."""
    m, n, k = atom.shape_mnk
    rng = np.random.default_rng(zlib.crc32(f"{atom.name} {kind}".encode()))
    shapes = ((count, m, k), (count, n, k), (count, m, n))
    return kinds_of(atom)[kind](rng, (atom.a, atom.b, atom.d), shapes)


def kinds_of(atom: Any) -> dict[str, Callable[..., Problem]]:
    """The kinds of problems for an instruction, by name."""
    if atom.a.is_int:
        return {"bits": _bits, "extremes": _extremes}
    special = {"low bits": _low_bits} if atom.a is tf32 else {}
    return _FLOATS | special


# -- numbers ---------------------------------------------------------------------------------------
def _cast(values: Array, dtype: DType) -> Array:
    """Numbers of a type; tf32 without the bits that it ignores."""
    with np.errstate(over="ignore"):
        held = values.astype(dtype.numpy)
    if dtype is tf32:
        return (held.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return held


def _normal(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    return _cast(rng.standard_normal(shape), dtype)


def _random_bits(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape)) * dtype.bytes
    raw = rng.integers(0, 256, count, np.uint8).view(dtype.numpy).reshape(shape)
    return _cast(raw, dtype) if dtype is tf32 else raw


def _largest(dtype: DType) -> float:
    kind = np.float32 if dtype is tf32 else dtype.numpy
    return float(ml_dtypes.finfo(kind).max)


def _each(make: Callable[..., Array]) -> Callable[..., Problem]:
    """A kind whose three matrices are made alike."""

    def build(rng: np.random.Generator, types: tuple[DType, ...], shapes: Shapes) -> Problem:
        a, b, c = (make(rng, t, shape) for t, shape in zip(types, shapes, strict=True))
        return a, b, c

    return build


# -- kinds -----------------------------------------------------------------------------------------
def _finite(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Bits of all finite numbers, so that exponents are far apart and sums overflow."""
    raw = _random_bits(rng, dtype, shape)
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(raw), raw, raw.dtype.type(0))


def _with_infinities(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Normal numbers, a tenth of them zero, and a few infinities where the type has them."""
    values = rng.standard_normal(shape) * (rng.random(shape) > 0.1)
    if dtype is not e4m3:
        values = np.where(_few(rng, shape), np.copysign(np.inf, values), values)
    return _cast(values, dtype)


def _with_nans(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Normal numbers and a few NaN of every sign and payload."""
    raw = np.unique(np.frombuffer(rng.bytes(1 << 15), np.uint8).view(dtype.numpy).view(_raw(dtype)))
    pool = _nan_bits(raw, dtype)
    values = _normal(rng, dtype, shape)
    chosen = pool[rng.integers(0, len(pool), shape)]
    return np.where(_few(rng, shape), chosen, values.view(_raw(dtype))).view(dtype.numpy)


def _few(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """About two of a hundred elements, at least one."""
    chosen = rng.random(shape) < 0.02
    chosen.flat[rng.integers(chosen.size)] = True
    return chosen


def _raw(dtype: DType) -> Any:
    return np.dtype(f"u{dtype.bytes}")


def _nan_bits(raw: Array, dtype: DType) -> Array:
    """Bit patterns that are NaN: those among `raw` with the highest exponent, or e4m3's two."""
    ones = {2: 0x7C00 if dtype.name == "f16" else 0x7F80, 4: 0x7F800000}
    high = raw | raw.dtype.type(ones.get(dtype.bytes, 0x7F if dtype is e4m3 else 0x7C))
    if dtype is tf32:
        high = high & np.uint32(0xFFFFE000)
    with np.errstate(invalid="ignore"):
        return high[np.isnan(high.view(dtype.numpy))]


def _large(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    """The upper three binades of the type, both signs."""
    size = _largest(dtype) * rng.uniform(0.125, 1.0, shape)
    return _cast(np.copysign(size, rng.standard_normal(shape)), dtype)


def _at_the_top(rng: np.random.Generator, types: tuple[DType, ...], shapes: Shapes) -> Problem:
    """C within a few steps of the largest number, and products as large as such a step."""
    top = _largest(types[2])
    wanted = np.sqrt(top) * 2.0**-6
    scales = [min(wanted, _largest(t) / 8) for t in types[:2]]
    a, b = (
        _cast(rng.standard_normal(shape) * scale, t)
        for t, shape, scale in zip(types, shapes, scales, strict=False)
    )
    steps = rng.integers(0, 4, shapes[2]) * 2.0**-10
    return a, b, _cast(np.copysign(top * (1 - steps), rng.standard_normal(shapes[2])), types[2])


def _subnormal(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Half of the numbers have exponent 0, the others are normal."""
    mantissa = {"f16": 10, "bf16": 7, "e4m3": 3, "e5m2": 2}.get(dtype.name, 23)
    raw = _random_bits(rng, dtype, shape).view(_raw(dtype))
    sign_and_mantissa = raw.dtype.type(1 << (dtype.bits - 1) | (1 << mantissa) - 1)
    small = raw & sign_and_mantissa
    values = _normal(rng, dtype, shape).view(_raw(dtype))
    return np.where(rng.random(shape) < 0.5, small, values).view(dtype.numpy)


def _cancelling(rng: np.random.Generator, types: tuple[DType, ...], shapes: Shapes) -> Problem:
    """Pairs of products that cancel, and a small C."""
    a, b = (_normal(rng, t, shape) for t, shape in zip(types[:2], shapes[:2], strict=True))
    a[..., 1::2], b[..., 1::2] = -a[..., ::2], b[..., ::2]
    return a, b, _cast(rng.standard_normal(shapes[2]) * 2.0**-12, types[2])


def _cancelling_overflow(
    rng: np.random.Generator, types: tuple[DType, ...], shapes: Shapes
) -> Problem:
    """Products around the largest number of D; pairs cancel, but for an eighth that nearly do."""
    middle = math.sqrt(_largest(types[2]))
    a, b = (
        _spread(rng, t, shape, min(middle, _largest(t) / 64))
        for t, shape in zip(types[:2], shapes[:2], strict=True)
    )
    steps = rng.random(b[..., ::2].shape) < 0.125
    a[..., 1::2], b[..., 1::2] = (
        -a[..., ::2],
        (b.view(_raw(types[1]))[..., ::2] + steps).view(b.dtype),
    )
    return a, b, _spread(rng, types[2], shapes[2], _largest(types[2]) / 64)


def _spread(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], middle: float) -> Array:
    """Eight binades around a number, both signs."""
    size = middle * 2.0 ** rng.uniform(-4, 4, shape)
    return _cast(np.copysign(size, rng.standard_normal(shape)), dtype)


def _low_bits(rng: np.random.Generator, types: tuple[DType, ...], shapes: Shapes) -> Problem:
    """tf32 whose ignored bits are not zero."""
    return _each(lambda rng, dtype, shape: _normal(rng, f32, shape))(rng, types, shapes)


def _extremes(rng: np.random.Generator, types: tuple[DType, ...], shapes: Shapes) -> Problem:
    """The ends of every integer type: do sums wrap or saturate?"""

    def ends(dtype: DType, shape: tuple[int, ...]) -> Array:
        info = np.iinfo(dtype.numpy)
        pool = np.array([info.min, info.min, info.max, info.max, 0, 1], dtype.numpy)
        return pool[rng.integers(0, len(pool), shape)]

    a, b, c = (ends(t, shape) for t, shape in zip(types, shapes, strict=True))
    a[0], b[0] = (np.iinfo(t.numpy).max for t in types[:2])  # every sum is as large as it can be
    return a, b, c


_bits = _each(_random_bits)
_FLOATS: dict[str, Callable[..., Problem]] = {
    "normal": _each(_normal),
    "bits": _bits,
    "finite bits": _each(_finite),
    "infinities": _each(_with_infinities),
    "nans": _each(_with_nans),
    "overflow": _each(_large),
    "at the top": _at_the_top,
    "subnormals": _each(_subnormal),
    "cancelling": _cancelling,
    "cancelling overflow": _cancelling_overflow,
}


def atoms() -> dict[str, Any]:
    """The instructions that are asked, by name: all of `mma.sync`, and `wgmma` in a few widths."""
    found = [atom for atom in kd.atoms.ALL_MMA_ATOMS if "mma.sync" in atom.mnemonic]
    for d, a, b in TYPES:
        found += [kd.atoms.wgmma(n, a, b, d) for n in (8, 16, 64, 256)]
        found.append(kd.atoms.wgmma(8, a, b, d, a_from="registers"))
    return {atom.name: atom for atom in found}
