"""A matrix product without a pipeline: what the first kernel of a newcomer uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from kdsl_core.collective.fragments import FragmentLoader
from kdsl_core.collective.tiles import access_elements, contiguous_mode, line_copy, shared_tile
from kdsl_core.lang.copy import convert_fragment, copy
from kdsl_core.lang.memory import rmem, smem
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.tiled import TiledMma, gemm
from kdsl_core.lang.tracer import current
from kdsl_core.lang.words import cp_async_commit, cp_async_wait, sync_threads, thread_rank
from kdsl_core.layout import Layout


def mma_tile(mma: TiledMma, a: Tensor, b: Tensor, acc: Tensor) -> None:
    """acc += a · bᵀ for tiles a (M, K) and b (N, K) in global memory.

    Shapes: static, whole tiles inside their matrices; M, N, K multiples of the mma's tile.
    Threads: the block, which has as many threads as the mma.
    Memory: stages both tiles in shared memory, with a barrier before and after.
    """
    thread = thread_rank()
    operands: tuple[tuple[Literal["A", "B"], Tensor, Callable[..., Tensor]], ...] = (
        ("A", a, mma.make_fragment_A),
        ("B", b, mma.make_fragment_B),
    )
    loaders = []
    sync_threads()
    for name, tile, make in operands:
        contiguous = contiguous_mode(tile)
        shared = _staged(name, tile, contiguous)
        vector = access_elements(tile, contiguous)
        plan = line_copy(tile.dtype, tile.shape, contiguous, vector, mma.size)
        part = plan.get_slice(thread)
        copy(part.partition_S(tile), part.partition_D(shared[..., 0]), atom=plan)
        fragment = make((tile.shape[0], mma.tile_shape[2]))
        loaders.append((FragmentLoader(name, mma, shared, contiguous, thread), fragment))
    cp_async_commit()
    cp_async_wait(0)
    sync_threads()
    for k in range(a.shape[1] // mma.tile_shape[2]):
        for loader, fragment in loaders:
            loader.load(fragment, k, 0)
        gemm(mma, loaders[0][1], loaders[1][1], acc)


def _staged(name: str, tile: Tensor, contiguous: int) -> Tensor:
    """The shared tile of an operand, one for all calls with its shape in a kernel."""
    facts, key = current().facts, f"mma_tile {name} {tile.dtype} {tile.shape} {contiguous}"
    if key not in facts:
        rows, depth = tile.shape
        facts[key] = smem(tile.dtype, shared_tile(tile.dtype, rows, depth, contiguous), name=name)
    staged: Tensor = facts[key]
    return staged


def store_tile(mma: TiledMma, acc: Tensor, c: Tensor) -> None:
    """Write accumulators to a global tile (M, N), converted to its type.

    Shapes: the tile lies inside its matrix.
    Threads: the block, which has as many threads as the mma.
    """
    part = mma.get_slice(thread_rank()).partition_C(c)
    result = rmem(c.dtype, Layout(acc.shape))
    convert_fragment(acc, result)
    copy(result, part)
