"""Sources, and the matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kdsl_core.errors import FusionError
from kdsl_core.loc import Loc
from kdsl_fuse.graph import Node, Op
from kdsl_fuse.ops.declare import OpDef, ValueType, promote, require
from kdsl_fuse.strided import broadcasts


def _infer_source(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    raise FusionError(f"{op.name} has no operands to infer a type from", code="K912", loc=loc)


def _no_reference(*_: Any, **__: Any) -> Any:
    raise FusionError("a source has no formula: its array comes from outside", code="K912")


def _infer_matmul(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    a, b = operands
    require("number", op, operands, loc)
    dtype = promote(op, operands, loc)
    if min(a.rank, b.rank) < 2 or a.shape[-1] != b.shape[-2]:
        raise FusionError(
            f"a @ b needs a: […, m, k] and b: […, k, n], got {list(a.shape)} and {list(b.shape)}",
            code="K903",
            loc=loc,
            notes=[a.note(), b.note()],
            fix="transpose one with .T, or give a vector its second axis",
        )
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise FusionError(
            f"a @ b cannot broadcast the batch axes {list(a.shape[:-2])} and {list(b.shape[:-2])}",
            code="K918",
            loc=loc,
            notes=[a.note(), b.note()],
        ) from None
    return (*batch, a.shape[-2], b.shape[-1]), dtype


def _infer_gemm(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    a, b, *c = operands
    require("number", op, operands, loc)
    left = a.shape[::-1] if op["transA"] else a.shape
    right = b.shape[::-1] if op["transB"] else b.shape
    result = (*left[:1], *right[1:])
    added = c[0].shape if c else ()
    if not (a.rank == b.rank == 2 and left[1] == right[0] and broadcasts(added, result)):
        raise FusionError(
            "gemm needs alpha·a·b + beta·c with a: [m, k], b: [k, n] and c that broadcasts to "
            f"[m, n], got {', '.join(map(str, operands))}",
            code="K960",
            loc=loc,
            notes=[node.note() for node in operands],
            fix="transA and transB turn a and b; a @ b takes more than two axes",
        )
    return result, promote(op, operands, loc)


def _gemm_reference(
    a: Any, b: Any, c: Any = 0, *, alpha: float, beta: float, transA: bool, transB: bool
) -> Any:
    return alpha * ((a.T if transA else a) @ (b.T if transB else b)) + beta * c


STRUCTURAL = (
    OpDef("Input", _infer_source, _no_reference),
    OpDef("Constant", _infer_source, _no_reference),
    OpDef("MatMul", _infer_matmul, np.matmul),
    OpDef("Gemm", _infer_gemm, _gemm_reference),
)
