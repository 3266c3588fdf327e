"""Operators that are not pointwise: sources, matrix product, transpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kdsl_core.errors import FusionError
from kdsl_core.loc import Loc
from kdsl_fuse.graph import Node, Op
from kdsl_fuse.ops.declare import OpDef, ValueType, promote, require


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


def _infer_transpose(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    (x,) = operands
    if x.rank != 2:
        raise FusionError(
            f".T swaps the axes of a matrix, got {x} of rank {x.rank}",
            code="K915",
            loc=loc,
            notes=[x.note()],
        )
    return x.shape[::-1], x.dtype


STRUCTURAL = (
    OpDef("Input", _infer_source, _no_reference),
    OpDef("Constant", _infer_source, _no_reference),
    OpDef("MatMul", _infer_matmul, np.matmul),
    OpDef("Transpose", _infer_transpose, np.transpose),
)
