"""Softmax and RMSNorm of rows in Triton; `columns` need not fill their blocks.

A row that fits into a block is held in registers, some rows a program; longer ones are read twice.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softmax_held(x, y, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """y = softmax(x), `ROWS` whole rows a program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    here = (row < rows) & (column < columns)
    values = tl.load(x + row * columns + column, here, -float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, 1)[:, None])
    result = powers / tl.sum(powers, 1)[:, None]
    tl.store(y + row * columns + column, result.to(y.dtype.element_ty), here)


@triton.jit
def softmax_looped(x, y, columns, BLOCK: tl.constexpr):
    """y = softmax(x), a row a program: maxima and sums of each lane first, then the result."""
    start = tl.program_id(0).to(tl.int64) * columns
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        values = tl.load(x + start + column, column < columns, -float("inf")).to(tl.float32)
        higher = tl.maximum(largest, values)
        total = total * tl.exp(largest - higher) + tl.exp(values - higher)
        largest = higher
    top = tl.max(largest, 0)
    scale = 1.0 / tl.sum(total * tl.exp(largest - top), 0)
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        values = tl.load(x + start + column, column < columns, 0.0).to(tl.float32)
        result = tl.exp(values - top) * scale
        tl.store(y + start + column, result.to(y.dtype.element_ty), column < columns)


@triton.jit
def rms_norm_held(
    x, weight, y, rows, columns, EPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """y = x / rms(x) * weight, `ROWS` whole rows a program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    here = (row < rows) & (column < columns)
    values = tl.load(x + row * columns + column, here, 0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 1) / columns + EPS)[:, None]
    weights = tl.load(weight + column, column < columns, 0.0).to(tl.float32)
    result = values * scale * weights
    tl.store(y + row * columns + column, result.to(y.dtype.element_ty), here)


@triton.jit
def rms_norm_looped(x, weight, y, columns, EPS: tl.constexpr, BLOCK: tl.constexpr):
    """y = x / rms(x) * weight, a row a program: the sum of squares first, then the result."""
    start = tl.program_id(0).to(tl.int64) * columns
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        values = tl.load(x + start + column, column < columns, 0.0).to(tl.float32)
        squares += values * values
    scale = tl.rsqrt(tl.sum(squares, 0) / columns + EPS)
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        values = tl.load(x + start + column, column < columns, 0.0).to(tl.float32)
        weights = tl.load(weight + column, column < columns, 0.0).to(tl.float32)
        result = values * scale * weights
        tl.store(y + start + column, result.to(y.dtype.element_ty), column < columns)
