"""A matrix product whose rows are reduced in its epilogue, for sm_80 and everything newer.

The main loop is the GEMM's (`gemm_sm80`). Tiles are as wide as the result, up to 256 columns. Rows
of accumulators are spread over several warps; they pass through shared memory, as in
`kd.collective.EpilogueStage`, from which each warp takes whole rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_core.ir.target import Target, target_of
from kdsl_core.lang.arguments import facts_of
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, multiply
from kdsl_fuse.kernels.row_fragments import RowArrays, RowSum
from kdsl_fuse.kernels.row_programs import RowProgram
from kdsl_fuse.kernels.vectors import common_width, neighbours, put, widened

WARP = 32
MOST_WIDTH = 4  # neighbours of f32 in an access of 16 bytes


@kd.kernel
def gemm_rows_sm80(
    A: kd.Tensor["f16|bf16|f32", "m k"],
    B: kd.Tensor["=A", "n k"],
    *arrays: kd.Tensor,
    program: kd.Static,
    config: kd.Static,
    columns: kd.Static,
    width: kd.Static = 1,
):
    """Outputs, row outputs = program(A · Bᵀ, further inputs, extras, row inputs).

    `arrays` are these in this order, all but A · Bᵀ; `columns` is n, no more than the tile has.
    `width` neighbours of all arrays can be accessed at a time.
    """
    mma, (tile_m, tile_n, tile_k), stages = config.tiled_mma, config.tile, config.stages
    m, thread = kd.block_idx()[0], kd.thread_rank()
    load_a = kd.collective.TileLoader(A, (tile_m, tile_k), m, stages, mma.size, thread)
    load_b = kd.collective.TileLoader(B, (tile_n, tile_k), 0, stages, mma.size, thread)
    acc = multiply(config, load_a, load_b, A.shape[1])
    stage = kd.collective.EpilogueStage(
        mma, (tile_m, tile_n), mma.size, thread, scratch=load_a.shared
    )
    rows = WarpRows(program, arrays, stage.slab, (A.shape[0], columns), width)
    for block in range(tile_m // stage.rows):
        kd.sync_threads()
        kd.copy(acc[None, block, None], stage.own[None, 0, None])
        kd.sync_threads()
        write_rows(rows, m * tile_m + block * stage.rows, stage.rows, mma.size // WARP)


@kd.func
def write_rows(rows, first, count, warps):
    """Write `count` rows of the slab, of which number 0 is row `first`. Threads: the block."""
    warp = kd.warp_uniform(kd.warp_idx())
    for turn in kd.range(count // warps):
        row = warp + turn * warps
        rows.write(row, first + row)


class WarpRows:
    """What a row program makes of rows of accumulators in shared memory, a warp for each.

    A lane takes `width` neighbours, then those a warp's width further.
    """

    def __init__(
        self,
        program: RowProgram,
        arrays: Sequence[Any],
        slab: Any,
        extent: tuple[Any, int],
        width: int,
    ) -> None:
        self.slab, self.extent, self.width = slab, extent, width
        self.row_sum = RowSum(program, extent[1], WARP)
        self.arrays = RowArrays(program, arrays)
        vectors = -(-extent[1] // (WARP * width))
        self.starts = [(v * WARP + kd.lane_idx()) * width for v in range(vectors)]
        whole = extent[1] % (WARP * width) == 0
        self.reached = [None if whole else kd.as_scalar(x < extent[1]) for x in self.starts]

    def write(self, line: Any, row: Any) -> None:
        """Compute row `row` of the result from line `line` of the slab."""
        exists = kd.as_scalar(row < self.extent[0])
        spots = [
            ((row, start), exists if reached is None else exists & reached)
            for start, reached in zip(self.starts, self.reached, strict=True)
        ]
        values = [self._values(line, *spot) for spot in spots]
        there = [reached for reached in self.reached for _ in range(self.width)]
        flat = [value for vector in values for value in vector]
        stats = self.row_sum.statistics(flat, there)
        labels = tuple(widened(x.load(row, exists)) for x in self.arrays.row_inputs)
        columns = [start + i for start in self.starts for i in range(self.width)]
        picked = self.row_sum.picked(flat, columns, labels, exists)
        self.row_sum.write_row(
            self.arrays, row, (stats, labels, picked), exists & (kd.lane_idx() == 0)
        )
        if self.arrays.outputs:
            for spot, vector in zip(spots, values, strict=True):
                self._store(*spot, vector, stats)

    def _values(self, line: Any, place: tuple[Any, Any], inside: Any) -> list[Any]:
        """The values of a vector, from its products and the other inputs."""
        products = self.slab.load_vector((line, place[1]), self.width, inside)
        read = [neighbours(x, place, 1, self.width, inside) for x in self.arrays.inputs]
        return [self.row_sum.value(*each) for each in zip(products, *read, strict=True)]

    def _store(
        self, place: tuple[Any, Any], inside: Any, values: Sequence[Any], stats: Any
    ) -> None:
        """Compute and write a vector of each output."""
        read = [neighbours(x, place, 1, self.width, inside) for x in self.arrays.extras]
        found = [
            self.row_sum.results(value, [part[i] for part in read], stats)
            for i, value in enumerate(values)
        ]
        for output, results in zip(self.arrays.outputs, zip(*found, strict=True), strict=True):
            put(output, place, 1, [kd.as_scalar(x) for x in results], inside)


def access_width(arrays: Sequence[Any], columns: int) -> int:
    """Neighbours of a row in all arrays, or `kd.spec`s, that are accessed at a time: at most four.

    Arrays whose neighbours lie apart are accessed one by one.
    """
    dense = [x for x in arrays if facts_of(x, "array").strides[1] == 1]
    widths = [common_width(dense, 1)] if dense else []
    return math.gcd(columns, MOST_WIDTH, *widths)


def plan_gemm_rows(
    m: int,
    n: int,
    dtype: DType,
    *,
    target: str | Target = "sm_80",
    f32_precision: str = "ieee",
) -> tuple[GemmConfig, tuple[int, ...], tuple[int, ...]]:
    """A configuration, grid and block for rows of up to 256 results.

    The narrowest tile that holds a row, with as many rows as give most of the chip a block, in the
    target's shared memory.
    """
    limit = target_of(target).shared_bytes
    fitting = [
        config
        for config in _candidates(dtype, f32_precision)
        if config.tile[1] >= n and config.shared_bytes(dtype.bytes) <= limit
    ]
    narrow = [config for config in fitting if config.tile[1] == fitting[0].tile[1]]
    tall = (config for config in narrow if -(-m // config.tile[0]) >= _FEW_BLOCKS)
    config = next(tall, narrow[-1])
    return config, (-(-m // config.tile[0]),), (config.threads,)


def behind_us(
    rows: GemmConfig, other: GemmConfig, sizes: tuple[int, int, int], multiprocessors: int
) -> float:
    """How much longer a product takes by tiles of whole rows than by the `other` ones, roughly.

    Each multiprocessor computes one tile after the other, at the rate of its instruction.
    """
    m, n, k = sizes

    def microseconds(config: GemmConfig) -> float:
        tile_m, tile_n, _ = config.tile
        waves = -(-(-(-m // tile_m) * -(-n // tile_n)) // multiprocessors)
        return waves * 2 * tile_m * tile_n * k / _RATES[config.atom]

    return max(microseconds(rows) - microseconds(other), 0.0)


# Operations a µs of one multiprocessor, about what the kernels reach of those of an A100.
_RATES = {
    "UNIVERSAL_FMA_F32": 1e5,
    "SM80_16x8x8_F32TF32TF32F32_TN": 7e5,
    "SM80_16x8x16_F32BF16BF16F32_TN": 1.4e6,
    "SM80_16x8x16_F32F16F16F32_TN": 1.4e6,
}
MULTIPROCESSORS = 108  # of an A100
_FEW_BLOCKS = 96  # fewer blocks than this leave part of a large chip idle


def _candidates(dtype: DType, f32_precision: str) -> tuple[GemmConfig, ...]:
    """Configurations for operands of a type: narrow tiles first, tall ones before low ones."""
    if dtype is kd.f32 and f32_precision == "ieee":
        atom = "UNIVERSAL_FMA_F32"
        return tuple(
            GemmConfig(atom, (rows, columns, 16), (16, 16), stages)
            for columns, rows, stages in (
                (64, 64, 3),
                (64, 32, 3),
                (128, 128, 3),
                (128, 64, 3),
                (256, 64, 3),
            )
        )
    if dtype is kd.f32:
        atom = "SM80_16x8x8_F32TF32TF32F32_TN"
        return tuple(
            GemmConfig(atom, (rows, columns, 32), warps, stages)
            for columns, rows, warps, stages in (
                (64, 64, (2, 2), 3), (128, 64, (2, 4), 3), (256, 64, (2, 4), 2),
            )
        )  # fmt: skip
    atom = f"SM80_16x8x16_F32{'BF16BF16' if dtype is kd.bf16 else 'F16F16'}F32_TN"
    return tuple(
        GemmConfig(atom, (rows, columns, depth), warps, 3)
        for columns, rows, depth, warps in (
            (64, 128, 64, (2, 2)), (64, 64, 64, (2, 2)), (128, 128, 64, (2, 2)),
            (128, 64, 64, (2, 2)), (256, 128, 64, (2, 4)), (256, 64, 32, (2, 4)),
        )
    )  # fmt: skip
