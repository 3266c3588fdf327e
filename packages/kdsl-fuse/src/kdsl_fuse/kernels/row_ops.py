"""The usual row-wise operators on arrays: one launch each, results in memory that is given."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kdsl_core.errors import ArgumentError
from kdsl_fuse import arrays
from kdsl_fuse.kernels import row_programs as programs
from kdsl_fuse.kernels.rows_plan import RowsPlan, choose


def _spec(array: Any) -> arrays.Spec:
    spec = arrays.spec_of(array)
    if spec is None:
        raise ArgumentError(
            f"expected an array, got {type(array).__name__}",
            code="K948",
            fix="pass arrays of NumPy, torch, CuPy or with DLPack",
        )
    return spec


def _fast(*outputs: Any) -> bool:
    """Whether results are rounded so far that the hardware's fast functions do not show."""
    return all(_spec(x).dtype.bits <= 16 for x in outputs)


@lru_cache(maxsize=1024)
def _program(name: str, *options: Any, **more: Any) -> programs.RowProgram:
    """One object for each program: kernels of equal programs are found by comparing once."""
    make: Any = getattr(programs, name)
    found: programs.RowProgram = make(*options, **more)
    return found


def _plan(name: str, operands: tuple[Any, ...], *options: Any, **more: Any) -> RowsPlan:
    """The plan of a program that has a form with fewer phases, for rows that are read for each.

    A phase less saves a pass and a meeting of a row's blocks, and costs a held row registers.
    """
    in_turns = _program(name, *options, **more, online=True)
    return choose(_program(name, *options, **more), *operands, in_turns=in_turns)


def _powers_plan(name: str, operands: tuple[Any, ...], **options: Any) -> RowsPlan:
    """The plan of a program of powers."""
    for operand in operands:
        _spec(operand)
    return _plan(name, operands, **options)


def softmax_plan(x: Any, y: Any) -> RowsPlan:
    """The plan of `softmax`."""
    return _powers_plan("softmax", (y, x), fast=_fast(y))


def softmax(x: Any, y: Any) -> None:
    """y = e^x / Σ e^x along the last axis."""
    softmax_plan(x, y).run(y, x)


def log_softmax_plan(x: Any, y: Any) -> RowsPlan:
    """The plan of `log_softmax`."""
    return _powers_plan("log_softmax", (y, x), fast=_fast(y))


def log_softmax(x: Any, y: Any) -> None:
    """y = x − log Σ e^x along the last axis."""
    log_softmax_plan(x, y).run(y, x)


def _norm(
    centred: bool, x: Any, y: Any, weight: Any, bias: Any, eps: float, residual: Any, total: Any
) -> None:
    operands = tuple(a for a in (y, total, x, residual, weight, bias) if a is not None)
    plan = _plan(
        "norm", operands, float(eps), centred=centred, weight=weight is not None,
        bias=bias is not None, residual=residual is not None, total=total is not None,
    )  # fmt: skip
    plan.run(*operands)


def rms_norm(
    x: Any, y: Any, weight: Any = None, *, eps: float = 1e-6, residual: Any = None,
    total: Any = None,
) -> None:  # fmt: skip
    """y = s / √(mean s² + eps) · weight along the last axis, of s = x, or x + residual.

    `total` gets s.
    """
    _norm(False, x, y, weight, None, eps, residual, total)


def layer_norm(
    x: Any, y: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5,
    residual: Any = None, total: Any = None,
) -> None:  # fmt: skip
    """y = (s − mean s) / √(var s + eps) · weight + bias along the last axis, of s = x (+ residual).

    `total` gets s.
    """
    _norm(True, x, y, weight, bias, eps, residual, total)


def cross_entropy(logits: Any, labels: Any, losses: Any, *, ignore_index: int = -100) -> None:
    """Each row's −log softmax(logits)[label], and 0 where the label is to be ignored.

    Raises: ArgumentError K949 for labels that are not integers or rows without columns.
    """
    x, named = _spec(logits), _spec(labels)
    if not named.dtype.is_int or not x.shape or x.shape[-1] == 0:
        raise ArgumentError(
            f"cross-entropy takes logits (…, classes) and integer labels, got {x} and {named}",
            code="K949",
            fix="pass class numbers as i32 or i64",
        )
    cross_entropy_plan(logits, labels, losses, ignore_index).run(losses, logits, labels)


def cross_entropy_plan(logits: Any, labels: Any, losses: Any, ignore_index: int) -> RowsPlan:
    """The plan of `cross_entropy`."""
    fast = _spec(logits).dtype.bits <= 16
    operands = (losses, logits, labels)
    return _powers_plan("cross_entropy", operands, fast=fast, ignore_index=ignore_index)


def reduce_rows(name: str, x: Any, y: Any) -> None:
    """y = "sum", "mean", "max", "min" or "prod" of x along the last axis.

    Floats are computed in f32 (f64 in f64), integers in 32 bits, or 64 where x has them.
    Raises: ArgumentError K950 for another name, and for extremes of nothing.
    """
    spec = _spec(x)
    known = name in programs.REDUCTIONS
    if not known or (name in ("max", "min") and spec.shape[-1:] == (0,)):
        raise ArgumentError(
            f"{name} of {spec}: " + ("no value to choose" if known else "no such reduction"),
            code="K950",
            fix=f"there are {', '.join(programs.REDUCTIONS)}; max and min need a column",
        )
    choose(_program("reduction", name), y, x).run(y, x)
