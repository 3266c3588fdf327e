"""Matrix products in Triton, plain and gated: what a user of Triton would write for this shape.

Operands come through tensor descriptors, so their rows must start at multiples of 16 bytes; tails
are zero on loads and dropped on stores. Tiles go column by column within bands of `BAND` rows of
tiles, so that tiles which run at a time share operands in the L2 cache.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _gelu(x):
    """GELU by the tanh formula, as a logistic function."""
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def _place(tile, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BAND: tl.constexpr):
    """The first row and column of a tile."""
    across = tl.cdiv(n, BLOCK_N)
    top = tile // (BAND * across) * BAND
    height = min(tl.cdiv(m, BLOCK_M) - top, BAND)
    within = tile % (BAND * across)
    return (top + within % height) * BLOCK_M, within // height * BLOCK_N


@triton.jit(do_not_specialize=("m",))
def product(
    a, w, c, bias, m, n, k,
    BIAS: tl.constexpr, GELU: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """C = tail(A · Wᵀ) of descriptors; `bias` is a pointer that only a tail with `BIAS` reads.

    Programs take tile after tile, as many apart as there are programs.
    """
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        row, column = _place(tile, m, n, BLOCK_M, BLOCK_N, BAND)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for depth in range(0, k, BLOCK_K):
            total = tl.dot(a.load([row, depth]), w.load([column, depth]).T, total)
        if BIAS:
            columns = column + tl.arange(0, BLOCK_N)
            total += tl.load(bias + columns, columns < n, 0.0).to(tl.float32)[None, :]
        if GELU:
            total = _gelu(total)
        c.store([row, column], total.to(c.dtype))


@triton.jit(do_not_specialize=("m",))
def gated_product(
    x, gate, up, c, m, n, k,
    ACT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    BAND: tl.constexpr,
):  # fmt: skip
    """C = act(X · Gᵀ) * (X · Uᵀ) of descriptors, with SiLU ("swiglu") or GELU ("geglu")."""
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        row, column = _place(tile, m, n, BLOCK_M, BLOCK_N, BAND)
        first = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        second = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for depth in range(0, k, BLOCK_K):
            rows = x.load([row, depth])
            first = tl.dot(rows, gate.load([column, depth]).T, first)
            second = tl.dot(rows, up.load([column, depth]).T, second)
        opened = first * tl.sigmoid(first) if ACT == "swiglu" else _gelu(first)
        c.store([row, column], (opened * second).to(c.dtype))
