"""A matrix product with any pointwise epilogue for tensor cores of sm_80 and everything newer.

Blocks walk the K axis through a ring of shared-memory stages that `cp.async` fills ahead of the
`mma.sync` instructions; fragments are double-buffered in registers. M, N and K may have any size,
and each operand may be contiguous along either of its modes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_core.ir.target import Target, target_of


@dataclass(frozen=True)
class GemmConfig:
    """How a block computes its tile.

    `tile` is (M, N, K) of a block and `warps` how its warps (threads, for f32 without tensor
    cores) divide M and N; `stages` is the depth of the ring; `group` the rows of tiles that
    neighbouring blocks share. `atom` names the matrix instruction.
    """

    atom: str
    tile: tuple[int, int, int]
    warps: tuple[int, int]
    stages: int
    group: int = 8

    def __post_init__(self) -> None:
        covered = self.tiled_mma.tile_shape
        if any(t % c for t, c in zip(self.tile, covered, strict=True)):
            raise kd.ArgumentError(
                f"the tile {self.tile} is no multiple of {covered}, which {self.warps} of "
                f"{self.atom} cover",
                code="K930",
                fix="enlarge the tile or use fewer warps",
            )
        if self.stages < 2 or self.tile[2] // covered[2] < 2:
            raise kd.ArgumentError(
                f"the pipeline needs 2 stages and 2 steps of K {covered[2]} in a tile, got "
                f"{self.stages} stages and a tile of K {self.tile[2]}",
                code="K931",
                fix="use more stages, or a deeper tile",
            )

    @property
    def tiled_mma(self) -> kd.TiledMma:
        """The instruction over the block's warps, 16 rows and columns of each side by side."""
        atom = getattr(kd.atoms, self.atom)
        m, n = self.warps
        if atom.threads == 1:  # neighbouring threads take neighbouring columns
            return kd.tiled_mma(atom, kd.Layout((m, n), (n, 1)))
        return kd.tiled_mma(atom, self.warps, permutation=(16 * m, 16 * n))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tiled_mma.size

    def shared_bytes(self, element_bytes: int) -> int:
        """Shared memory of a block."""
        m, n, k = self.tile
        return (m + n) * k * element_bytes * self.stages


@kd.kernel
def gemm_sm80(
    A: kd.Tensor["f16|bf16|f32", "m k"],
    B: kd.Tensor["=A", "n k"],
    C: kd.Tensor["f16|bf16|f32", "m n"],
    *extras: kd.Tensor,
    epilogue: kd.Static,
    config: kd.Static,
):
    """C = epilogue(A · Bᵀ, extras…): accumulated in f32, rounded once to C's type."""
    write_tile(A, B, C, extras, epilogue, config)


@kd.kernel
def batch_gemm_sm80(
    A: kd.Tensor["f16|bf16|f32", "m k l"],
    B: kd.Tensor["=A", "n k l"],
    C: kd.Tensor["f16|bf16|f32", "m n l"],
    *extras: kd.Tensor,
    epilogue: kd.Static,
    config: kd.Static,
):
    """The same for a batch of products along mode 2 of all arrays, the third axis of the grid."""
    at = None, None, kd.block_idx()[2]
    write_tile(A[at], B[at], C[at], [extra[at] for extra in extras], epilogue, config)


def write_tile(A, B, C, extras, epilogue, config):
    """The block's tile of C = epilogue(A · Bᵀ, extras…)."""
    mma, (tile_m, tile_n, tile_k), stages = config.tiled_mma, config.tile, config.stages
    tiles = kd.ceil_div(C.shape, (tile_m, tile_n))
    m, n = kd.collective.grouped_raster(kd.block_idx()[0], *tiles, config.group)
    thread = kd.thread_rank()

    load_a = kd.collective.TileLoader(A, (tile_m, tile_k), m, stages, mma.size, thread)
    load_b = kd.collective.TileLoader(B, (tile_n, tile_k), n, stages, mma.size, thread)
    acc = multiply(config, load_a, load_b, A.shape[1])
    out = kd.collective.EpilogueStage(
        mma, (tile_m, tile_n), mma.size, thread, scratch=load_a.shared
    )
    out.store(acc, C, (m * tile_m, n * tile_n), epilogue, extras)


@kd.func
def multiply(config, load_a, load_b, depth):
    """The accumulators of A · Bᵀ over `depth` elements of K. Threads: the whole block."""
    mma, (tile_m, tile_n, tile_k), stages = config.tiled_mma, config.tile, config.stages
    thread = kd.thread_rank()
    read_a = kd.collective.FragmentLoader("A", mma, load_a.shared, load_a.contiguous, thread)
    read_b = kd.collective.FragmentLoader("B", mma, load_b.shared, load_b.contiguous, thread)
    step = mma.tile_shape[2]
    fragments = [
        (mma.make_fragment_A((tile_m, step)), mma.make_fragment_B((tile_n, step))) for _ in range(2)
    ]
    acc = mma.make_fragment_C((tile_m, tile_n)).fill(0.0)

    for stage in range(stages - 1):
        load_a.load(stage, stage)
        load_b.load(stage, stage)
        kd.cp_async_commit()
    kd.cp_async_wait(stages - 2)
    kd.sync_threads()
    read_a.load(fragments[0][0], 0, 0)
    read_b.load(fragments[0][1], 0, 0)

    blocks = tile_k // step
    reading, filling = 0, stages - 1
    for k_tile in kd.range(kd.ceil_div(depth, tile_k)):
        for block in range(blocks):
            if block == blocks - 1:  # the next fragments come from the next stage
                kd.cp_async_wait(stages - 2)
                kd.sync_threads()
                reading = kd.where(reading == stages - 1, 0, reading + 1)
            if block == 0:  # before the reads: copies behind them would hold back the next ones
                load_a.load(k_tile + (stages - 1), filling)
                load_b.load(k_tile + (stages - 1), filling)
                kd.cp_async_commit()
                filling = kd.where(filling == stages - 1, 0, filling + 1)
            a, b = fragments[(block + 1) % 2]
            read_a.load(a, (block + 1) % blocks, reading)
            read_b.load(b, (block + 1) % blocks, reading)
            kd.gemm(mma, *fragments[block % 2], acc)
    kd.cp_async_wait(0)
    return acc


def plan_gemm(
    m: int,
    n: int,
    k: int,
    dtype: DType,
    *,
    target: str | Target = "sm_80",
    f32_precision: str = "ieee",
) -> tuple[GemmConfig, tuple[int, int, int], tuple[int, int, int]]:
    """A configuration, grid and block for a product of these sizes.

    The largest tile is taken that fits the target's shared memory and still gives most of the
    chip a block; `f32_precision` "tf32" lets f32 operands use tensor cores, rounded to 10 mantissa
    bits, where "ieee" keeps every bit on the ordinary cores.
    """
    if f32_precision not in ("ieee", "tf32"):
        raise kd.ArgumentError(
            f'f32_precision is "ieee" or "tf32", got {f32_precision!r}',
            code="K932",
            fix='leave it out for "ieee"',
        )
    limit = target_of(target).shared_bytes
    config = next(
        (c for c in _candidates(dtype, f32_precision) if _suits(c, m, n, dtype.bytes, limit)),
        _candidates(dtype, f32_precision)[-1],
    )
    tiles = -(-m // config.tile[0]) * -(-n // config.tile[1])
    return config, (tiles, 1, 1), (config.threads, 1, 1)


_FEW_BLOCKS = 96  # fewer blocks than this leave part of a large chip idle


def _suits(config: GemmConfig, m: int, n: int, element_bytes: int, limit: int) -> bool:
    tiles = -(-m // config.tile[0]) * -(-n // config.tile[1])
    return tiles >= _FEW_BLOCKS and config.shared_bytes(element_bytes) <= limit


def _candidates(dtype: DType, f32_precision: str) -> tuple[GemmConfig, ...]:
    """Configurations for operands of a type, largest tile first."""
    if dtype is kd.f32 and f32_precision == "ieee":
        atom = "UNIVERSAL_FMA_F32"
        return (
            GemmConfig(atom, (128, 128, 16), (16, 16), 3),
            GemmConfig(atom, (64, 64, 16), (16, 16), 3),
            GemmConfig(atom, (32, 32, 16), (16, 16), 3),
        )
    if dtype is kd.f32:
        atom = "SM80_16x8x8_F32TF32TF32F32_TN"
        return (
            GemmConfig(atom, (128, 128, 32), (2, 4), 3),
            GemmConfig(atom, (64, 64, 32), (2, 2), 3),
        )
    name = "BF16BF16" if dtype is kd.bf16 else "F16F16"
    atom = f"SM80_16x8x16_F32{name}F32_TN"
    return (
        GemmConfig(atom, (128, 256, 64), (2, 4), 3),
        GemmConfig(atom, (128, 128, 64), (2, 2), 3),
        GemmConfig(atom, (64, 128, 64), (2, 2), 3),
        GemmConfig(atom, (64, 64, 64), (2, 2), 3),
    )


def identity(acc: Any) -> Any:
    """The epilogue that changes nothing."""
    return acc
