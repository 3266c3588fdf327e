"""The conversion instructions of the GPU: one per pair of types, rounding and saturation."""

from __future__ import annotations

from functools import cache, partial

import numpy as np

from kdsl_core.dtypes import DType, bf16, e4m3, e5m2, f16, f32, f64, tf32
from kdsl_core.ir import Array, Need
from kdsl_core.ir.target import BASELINE
from kdsl_core.isa import rounding
from kdsl_core.isa.instruction import Evaluate, Instruction

ROUNDINGS = ("rn", "rz", "rm", "rp")
FP8 = Need(sm=89, ptx=(8, 1))
_CVT_FLOATS = (f16, f32, f64)


@cache
def direct(source: DType, target: DType, mode: str | None, saturate: bool) -> Instruction | None:
    """The instruction from one type to another; None when there is none.

    `mode` is the rounding, None for the usual one of the pair.
    """
    if mode is not None and mode not in ROUNDINGS:
        return None
    if source.is_int and target.is_int:
        return _int_to_int(source, target, saturate)
    if source.is_int:
        return None if saturate else _int_to_float(source, target, mode or "rn")
    if target.is_int:
        return _float_to_int(source, target, mode or "rz")
    special = _special().get((source, target))
    if special is not None:
        fp8_saturates = target in (e4m3, e5m2)
        return special if mode in (None, "rn") and (fp8_saturates or not saturate) else None
    return None if saturate else _float_to_float(source, target, mode or "rn")


def _row(
    source: DType,
    target: DType,
    ptx: str,
    evaluate: Evaluate,
    temps: tuple[str, ...] = (),
    need: Need = BASELINE,
) -> Instruction:
    return Instruction(f"to_{target.name}", (source,), target, ptx, evaluate, temps, need)


# -- integers ----------------------------------------------------------------------------------
def _int_to_int(source: DType, target: DType, saturate: bool) -> Instruction:
    if saturate and not np.can_cast(source.numpy, target.numpy):
        text = f"cvt.sat.{target.ptx}.{source.ptx} {{d}}, {{a}}"
        return _row(source, target, text, partial(_clip, dtype=target))
    if source.bits == target.bits:
        text = f"mov.{target.reg} {{d}}, {{a}}"
    else:
        sign = "s" if source.kind == "i" else "u"  # the source's sign decides how it is extended
        text = f"cvt.{sign}{target.bits}.{source.ptx} {{d}}, {{a}}"
    return _row(source, target, text, lambda x: x.astype(target.numpy))


def _clip(x: Array, dtype: DType) -> Array:
    to, own = np.iinfo(dtype.numpy), np.iinfo(x.dtype)
    return np.clip(x, max(to.min, own.min), min(to.max, own.max)).astype(dtype.numpy)


def _int_to_float(source: DType, target: DType, mode: str) -> Instruction | None:
    if target not in _CVT_FLOATS or (target == f16 and mode not in ("rn", "rz")):
        return None
    text = f"cvt.{mode}.{target.ptx}.{source.ptx} {{d}}, {{a}}"
    return _row(source, target, text, partial(_from_integer, dtype=target, mode=mode))


def _from_integer(x: Array, dtype: DType, mode: str) -> Array:
    if dtype == f16:  # integers that f64 would round are beyond f16 anyway
        return _round(x.astype(np.float64), dtype, mode)
    nearest = x.astype(dtype.numpy)
    if mode == "rn":
        return nearest
    rounded, exact = np.vectorize(int, otypes=[object])(nearest), x.astype(object)
    above, below = (rounded > exact).astype(bool), (rounded < exact).astype(bool)
    return _step(nearest, above, below, exact > 0, mode)


def _float_to_int(source: DType, target: DType, mode: str) -> Instruction | None:
    if source not in _CVT_FLOATS:
        return None
    text = f"cvt.{mode}i.{target.ptx}.{source.ptx} {{d}}, {{a}}"
    wide = source == f64 or target.bits == 64
    nan = 1 << (target.bits - 1) if wide else 0  # PTX ISA 9.0, cvt: what NaN becomes
    return _row(source, target, text, partial(_to_integer, dtype=target, mode=mode + "i", nan=nan))


def _to_integer(x: Array, dtype: DType, mode: str, nan: int) -> Array:
    result = rounding.to_integer(x, dtype.numpy, mode)
    return np.where(np.isnan(x), np.uint64(nan).astype(dtype.numpy), result) if nan else result


# -- floats ------------------------------------------------------------------------------------
def _float_to_float(source: DType, target: DType, mode: str) -> Instruction | None:
    if (source, target) != (f32, bf16) and not {source, target} <= set(_CVT_FLOATS):
        return None
    if source.bits < target.bits:
        return _row(source, target, f"cvt.{target.ptx}.{source.ptx} {{d}}, {{a}}", _widen(target))
    if target == bf16 and mode not in ("rn", "rz"):
        return None
    text = f"cvt.{mode}.{target.ptx}.{source.ptx} {{d}}, {{a}}"
    return _row(source, target, text, partial(_round, dtype=target, mode=mode))


def _widen(target: DType) -> Evaluate:
    def evaluate(x: Array) -> Array:
        wide = x.astype(target.numpy)
        if target == f64:  # NaN keeps its payload and becomes quiet (seen on an H200)
            return np.where(np.isnan(wide), wide + 0.0, wide)
        return rounding.canonical_nan(wide)

    return evaluate


def _upper_half(x: Array) -> Array:
    """bf16 as the upper half of an f32, whatever its bits."""
    return (x.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _round(x: Array, dtype: DType, mode: str) -> Array:
    if mode == "rz":
        result = rounding.to_zero(x, dtype.numpy)
    else:
        result = rounding.to_nearest(x, dtype.numpy)
        if mode != "rn":
            back = result.astype(np.float64)
            result = _step(result, back > x, back < x, x > 0, mode)
    return rounding.quiet_nan(x, result) if x.dtype == np.float64 else result


def _step(nearest: Array, above: Array, below: Array, positive: Array, mode: str) -> Array:
    """Move results that lie on the wrong side of the exact value by one last place."""
    down = np.nextafter(nearest, nearest.dtype.type(-np.inf))
    up = np.nextafter(nearest, nearest.dtype.type(np.inf))
    lower, upper = np.where(above, down, nearest), np.where(below, up, nearest)
    if mode == "rz":
        return np.where(positive.astype(bool), lower, upper)
    return lower if mode == "rm" else upper


@cache
def _special() -> dict[tuple[DType, DType], Instruction]:
    """Pairs with an instruction of their own form; all but f32 → tf32, e4m3, e5m2 are exact."""
    rows = [
        _row(bf16, f32, "mov.b32 {d}, {{0, {a}}}", _upper_half),
        _row(f32, tf32, "cvt.rna.tf32.f32 {d}, {a}", rounding.to_tf32),
        _row(tf32, f32, "mov.b32 {d}, {a}", lambda x: x),
    ]
    for fp8 in (e4m3, e5m2):
        narrow = f"cvt.rn.satfinite.{fp8.ptx}x2.f32 {{d}}, 0f00000000, {{a}}"
        nearest = partial(rounding.to_nearest, dtype=fp8.numpy, satfinite=True)
        rows.append(_row(f32, fp8, narrow, nearest, need=FP8))
        widen = f"cvt.rn.f16x2.{fp8.ptx}x2 {{t0}}, {{a}}; mov.b32 {{{{{{d}}, {{t1}}}}}}, {{t0}}"
        rows.append(_row(fp8, f16, widen, _widen(f16), ("b32", "b16"), FP8))
    return {(row.operands[0], row.result): row for row in rows}
