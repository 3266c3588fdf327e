"""Attention in Triton: softmax(Q · Kᵀ · scale) · V, the scores in registers only."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _step(
    k, v, queries, largest, total, result, batch, head, first, row, keys, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """The running softmax over `KEYS` keys from `first`; `MASKED` where not all of them count."""
    block = k.load([batch, first, head, 0]).reshape(KEYS, DIM)
    scores = tl.dot(queries, block.T) * scale
    if MASKED:
        column = first + tl.arange(0, KEYS)[None, :]
        seen = column < keys
        if CAUSAL:
            seen = seen & (column <= row[:, None])
        scores = tl.where(seen, scores, -float("inf"))
    higher = tl.maximum(largest, tl.max(scores, 1))
    powers = tl.exp2(scores - higher[:, None])
    shrunk = tl.exp2(largest - higher)
    total = total * shrunk + tl.sum(powers, 1)
    block = v.load([batch, first, head, 0]).reshape(KEYS, DIM)
    result = tl.dot(powers.to(block.dtype), block, result * shrunk[:, None])
    return higher, total, result


@triton.jit
def forward(
    q, k, v, out, heads, shared, queries, keys, scale,
    CAUSAL: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """`QUERIES` queries of a head; descriptors are of (batch, sequence, head, dimension).

    `shared` query heads read one head of keys; a causal mask is top-left. `scale` is for powers of
    two. Blocks of keys that all queries see need no mask, and come first.
    """
    tile, place = tl.program_id(0), tl.program_id(1)
    batch, head = place // heads, place % heads
    start = tile * QUERIES
    row = start + tl.arange(0, QUERIES)
    mine = q.load([batch, start, head, 0]).reshape(QUERIES, DIM)
    largest = tl.full((QUERIES,), -float("inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    result = tl.zeros((QUERIES, DIM), tl.float32)
    end = min(keys, start + QUERIES) if CAUSAL else keys
    whole = (min(keys, start) if CAUSAL else keys) // KEYS * KEYS
    for first in range(0, whole, KEYS):
        largest, total, result = _step(
            k, v, mine, largest, total, result, batch, head // shared, first, row, keys, scale,
            False, CAUSAL, KEYS, DIM,
        )  # fmt: skip
    for first in range(whole, end, KEYS):
        largest, total, result = _step(
            k, v, mine, largest, total, result, batch, head // shared, first, row, keys, scale,
            True, CAUSAL, KEYS, DIM,
        )  # fmt: skip
    found = (result / total[:, None]).to(out.dtype)
    out.store([batch, start, head, 0], found.reshape(1, QUERIES, 1, DIM))
