"""Matrix products as kernels read them, and why a kernel cannot compute one at all."""

from __future__ import annotations

import math
import re

from kdsl_fuse import calls
from kdsl_fuse.calls import Operand
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.patterns.base import Options
from kdsl_fuse.patterns.folds import Fold, as_batch, as_rows
from kdsl_fuse.patterns.tails import FLOATS
from kdsl_fuse.reasons import Reason

OLDEST_ARCHITECTURE = 80  # mma.sync on bf16 and tf32, and cp.async


def fold_of(graph: Graph, product: Node) -> Fold:
    """How kernels see values of the product's shape: as one matrix where B is one, else a batch."""
    b = graph.operands(product)[1]
    return as_rows if math.prod(b.shape[:-2]) == 1 else as_batch


def left(graph: Graph, product: Node) -> Operand | None:
    """A as (m, k), or (m, k, batch); None where strides do not allow it."""
    a, _ = graph.operands(product)
    read, fold = calls.operand(graph, a), fold_of(graph, product)
    layout = read.layout
    if fold is as_batch:
        layout = layout.broadcast((*product.shape[:-2], *a.shape[-2:]))
    seen = fold(layout)
    return None if seen is None else read.seen_as(seen)


def right(graph: Graph, product: Node) -> Operand | None:
    """B, turned, as (n, k), or (n, k, batch); None where strides do not allow it."""
    _, b = graph.operands(product)
    read = calls.operand(graph, b)
    if fold_of(graph, product) is as_batch:
        layout = as_batch(read.layout.broadcast((*product.shape[:-2], *b.shape[-2:])))
    else:
        layout = as_rows(read.layout)
    if layout is None:
        return None
    return read.seen_as(layout.permuted((1, 0, *range(2, len(layout.shape)))))


def guard(graph: Graph, product: Node, options: Options) -> Reason | None:
    """Why no kernel computes this product."""
    a, b = graph.operands(product)
    return (
        _rank(graph, product, options)
        or _sizes(a, b)
        or _dtypes(a, b)
        or target_refusal(options.target)
        or _strides(a, left(graph, product))
        or _strides(b, right(graph, product))
    )


def _rank(graph: Graph, product: Node, options: Options) -> Reason | None:
    if options.gemm is None or fold_of(graph, product) is as_rows:
        return None
    a, b = graph.operands(product)
    return Reason(
        "KF-RANK",
        f"the kernel given as gemm= multiplies by a matrix, got {a} and {b}",
        fix="multiply each matrix of the batch by itself, or all by one: x @ w",
    )


def _sizes(a: Node, b: Node) -> Reason | None:
    if min(*a.shape, *b.shape) > 0:
        return None
    return Reason("KF-SHAPE", f"the GEMM kernel needs sizes of at least 1, got {a} and {b}")


def _dtypes(a: Node, b: Node) -> Reason | None:
    if a.dtype is b.dtype and a.dtype in FLOATS:
        return None
    return Reason(
        "KF-DTYPE",
        f"the GEMM kernel multiplies f16, bf16 or f32, both operands alike, got {a} and {b}",
        fix="cast the arrays before the call",
    )


def target_refusal(target: str, kernel: str = "gemm_sm80") -> Reason | None:
    """Why `kernel`, which multiplies as matrix products do, is none for this target."""
    found = re.match(r"sm_(\d+)", target)
    if found is None or int(found[1]) >= OLDEST_ARCHITECTURE:
        return None
    return Reason(
        "KF-TARGET",
        f"{kernel} needs sm_80 or newer, the target is {target}",
        fix='plan for a newer GPU: @kf.fuse(target="sm_80")',
    )


def _strides(node: Node, read: Operand | None) -> Reason | None:
    if read is not None and 1 in read.strides[:2]:
        return None
    what = f"the axes of {node} merged into rows or a batch" if read is None else f"{read}"
    name = node.name if read is None else read.value
    return Reason(
        "KF-LAYOUT",
        f"the GEMM kernel needs one axis with stride 1 of a matrix, got {what}",
        fix=f"copy {name} to a dense array: numpy.ascontiguousarray({name})",
    )
