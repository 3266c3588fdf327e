"""Triton's sides of the benchmarks: each kernel in a few configurations, as an autotuner has them.

Whoever measures checks every configuration and times the quickest by turns with the other programs.
Without Triton there are no sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

try:
    import triton_attention
    import triton_products
    import triton_rows
    from triton.errors import TritonError
    from triton.tools.tensor_descriptor import TensorDescriptor

    PRESENT = True
except ImportError:
    PRESENT = False

Side = Callable[[Any], torch.Tensor]  # of one set of buffers; gives the result
BAND = 8  # rows of tiles that share operands in the L2 cache
FEW_ROWS = 64
HELD_COLUMNS, LOOPED_COLUMNS = 32768, 8192  # of a row in registers; of a block of a longer one
ROW_ELEMENTS = 4096  # of short rows that a program takes
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Tile:
    """Rows, columns and depth of a block, warps, and blocks in flight."""

    m: int
    n: int
    k: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} w{self.warps} s{self.stages}"

    @property
    def options(self) -> dict[str, int]:
        """For the launch of a product."""
        return {
            "BLOCK_M": self.m, "BLOCK_N": self.n, "BLOCK_K": self.k, "BAND": BAND,
            "num_warps": self.warps, "num_stages": self.stages,
        }  # fmt: skip


LARGE = (
    Tile(128, 256, 64, 8, 3),
    Tile(128, 128, 64, 8, 4),
    Tile(128, 128, 64, 4, 4),
    Tile(64, 128, 64, 4, 4),
)
SMALL = (Tile(64, 128, 128, 4, 3), Tile(64, 64, 128, 4, 5), Tile(64, 32, 128, 4, 6))
FEW = (Tile(16, 64, 128, 4, 5), Tile(16, 32, 256, 4, 4))  # for at most 16 rows
GATED_LARGE = (Tile(128, 128, 64, 8, 3), Tile(128, 128, 64, 8, 4), Tile(64, 128, 64, 4, 4))
GATED_SMALL = (Tile(64, 64, 128, 4, 3), Tile(64, 32, 128, 4, 4))
ATTENTION = {  # by dimension: queries, keys of a step, warps, stages
    64: ((128, 128, 8, 3), (128, 64, 4, 3)),
    128: ((128, 128, 8, 2), (128, 64, 8, 3)),
    256: ((128, 64, 8, 2), (64, 64, 4, 2)),
}


def products(case: Any, sets: list[Any]) -> dict[str, Callable[[int], Any]]:
    """C = tail(A · Wᵀ) of `shapes.Case` and `operands.Buffers`; bf16 and f16, rows of 16 bytes."""
    if not PRESENT or case.dtype not in ("bf16", "f16") or case.n % 8 or case.k % 8:
        return {}
    sides = {
        f"Triton {words}": _product(case, tile, programs)
        for tile in tiles_of(case.m, FEW, SMALL, LARGE)
        for words, programs in _grids(tile, case.m, case.n)
    }
    return {name: _of_sets(side, sets) for name, side in sides.items()}


def gated(m: int, inner: int, hidden: int, act: str) -> dict[str, Side]:
    """act(x · gateᵀ) * (x · upᵀ) of sets with `x`, `gate`, `up` and `c`."""
    if not PRESENT or inner % 8 or hidden % 8:
        return {}

    def side(tile: Tile, programs: int) -> Side:
        def launch(s: Any) -> torch.Tensor:
            operands = _described(s.x, tile.m, tile.k), _described(s.gate, tile.n, tile.k)
            result = _described(s.up, tile.n, tile.k), _described(s.c, tile.m, tile.n)
            triton_products.gated_product[programs,](
                *operands, *result, m, inner, hidden, ACT=act, **tile.options
            )
            return s.c

        return _told(launch)

    return {
        f"Triton {words}": side(tile, programs)
        for tile in tiles_of(m, (), GATED_SMALL, GATED_LARGE)
        for words, programs in _grids(tile, m, inner)
    }


def attention(problem: Any, causal: bool) -> dict[str, Side]:
    """Attention of sets with `q`, `k`, `v`, `out`: (batch, sequence, heads, dimension)."""
    if not PRESENT or problem.dim not in ATTENTION:
        return {}
    p, scale = problem, LOG2_E / math.sqrt(problem.dim)

    def side(queries: int, keys: int, warps: int, stages: int) -> Side:
        def launch(s: Any) -> torch.Tensor:
            mine, theirs = (1, queries, 1, p.dim), (1, keys, 1, p.dim)
            given = _described(s.q, *mine), _described(s.k, *theirs), _described(s.v, *theirs)
            triton_attention.forward[-(-p.queries // queries), p.batch * p.heads](
                *given, _described(s.out, *mine), p.heads, p.heads // p.key_heads,
                p.queries, p.keys, scale, CAUSAL=causal, QUERIES=queries, KEYS=keys, DIM=p.dim,
                num_warps=warps, num_stages=stages,
            )  # fmt: skip
            return s.out

        return _told(launch)

    return {
        f"Triton {queries}x{keys} w{warps} s{stages}": side(queries, keys, warps, stages)
        for queries, keys, warps, stages in ATTENTION[p.dim]
    }


def rows(op: str, sets: list[Any], epsilon: float) -> dict[str, Callable[[int], Any]]:
    """Softmax and RMSNorm of `rows.py`, whose sets are lists of outputs and of inputs."""
    if not PRESENT or op not in ("softmax", "rms_norm"):
        return {}
    more = {"EPS": epsilon} if op == "rms_norm" else {}
    count, columns = sets[0][1][0].shape
    held = columns <= HELD_COLUMNS
    kernel = getattr(triton_rows, f"{op}_{'held' if held else 'looped'}")
    block = 1 << (columns - 1).bit_length() if held else LOOPED_COLUMNS
    at_once = max(ROW_ELEMENTS // block, 1)
    shape = {"ROWS": at_once, "BLOCK": block} if held else {"BLOCK": block}
    sizes = (count, columns) if held else (columns,)

    def side(warps: int) -> Side:
        def launch(s: Any) -> torch.Tensor:
            (y,), inputs = s
            kernel[-(-count // at_once),](*inputs, y, *sizes, **shape, **more, num_warps=warps)
            return y

        return _told(launch)

    sides = {f"Triton w{warps}": side(warps) for warps in warps_of(block)}
    return {name: _of_sets(launch, sets) for name, launch in sides.items()}


def warps_of(block: int) -> tuple[int, ...]:
    """Warps that are tried for rows in blocks of so many columns."""
    if block <= ROW_ELEMENTS:
        return (4, 8)
    return (8, 16) if block <= 4 * ROW_ELEMENTS else (16, 32)


def tiles_of(
    m: int, few: tuple[Tile, ...], small: tuple[Tile, ...], large: tuple[Tile, ...]
) -> tuple[Tile, ...]:
    """The tiles that are tried for so many rows."""
    if m <= FEW[0].m:
        return few + small
    return small if m <= FEW_ROWS else large


def _grids(tile: Tile, m: int, n: int) -> Iterator[tuple[str, int]]:
    """A program for each tile; and, where there are fewer, for each multiprocessor."""
    tiles = -(-m // tile.m) * -(-n // tile.n)
    yield str(tile), tiles
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    if tiles > multiprocessors:
        yield f"{tile} persistent", multiprocessors


def _product(case: Any, tile: Tile, programs: int) -> Side:
    tail = {"BIAS": "bias" in case.epilogue, "GELU": "gelu" in case.epilogue}

    def launch(s: Any) -> torch.Tensor:
        operands = _described(s.a, tile.m, tile.k), _described(s.w, tile.n, tile.k)
        bias = s.c if s.bias is None else s.bias
        triton_products.product[programs,](
            *operands, _described(s.c, tile.m, tile.n), bias, *case.shape, **tail, **tile.options
        )  # fmt: skip
        return s.c

    return _told(launch)


def _described(tensor: torch.Tensor, *block: int) -> Any:
    return TensorDescriptor.from_tensor(tensor, list(block))


def _of_sets(side: Side, sets: list[Any]) -> Callable[[int], Any]:
    return lambda i: side(sets[i % len(sets)])


def _told(launch: Side) -> Side:
    """A launch whose errors of Triton's compiler are of a kind that benchmarks expect."""

    def told(s: Any) -> torch.Tensor:
        try:
            return launch(s)
        except TritonError as problem:
            raise RuntimeError(f"Triton: {problem}") from problem

    return told
