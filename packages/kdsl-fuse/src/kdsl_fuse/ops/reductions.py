"""Reductions over axes: sum, mean, extremes and product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kdsl_core.loc import Loc
from kdsl_fuse.graph import Node, Op
from kdsl_fuse.ops.declare import OpDef, ValueType, axes_of, require


def _infer(kind: str) -> Callable[[Op, Sequence[Node], Loc | None], ValueType]:
    def infer(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
        (x,) = operands
        require(kind, op, operands, loc)
        axes = axes_of(op, op["axes"], x.rank, loc)
        kept = 1 if op["keepdims"] else None
        sizes = [kept if axis in axes else size for axis, size in enumerate(x.shape)]
        return tuple(size for size in sizes if size is not None), x.dtype

    return infer


def _over(function: Callable[..., Any]) -> Callable[..., Any]:
    def reference(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return function(x, axis=axes, keepdims=keepdims).astype(x.dtype)

    return reference


REDUCTIONS = (
    OpDef("ReduceSum", _infer("number"), _over(np.sum)),
    OpDef("ReduceMean", _infer("float"), _over(np.mean)),
    OpDef("ReduceMax", _infer("number"), _over(np.max)),
    OpDef("ReduceMin", _infer("number"), _over(np.min)),
    OpDef("ReduceProd", _infer("number"), _over(np.prod)),
)
