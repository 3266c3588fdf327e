"""Products of warp groups from every layout of operands: in the simulator and on a GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from execution import Executor
from kdsl_core.isa.tensor_core import multiply_accumulate

Array = np.ndarray[Any, Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)


@kd.func
def stage(source, tile):
    """All threads copy a matrix to shared memory, element by element."""
    count = kd.size(tile) // 256
    for i in kd.range(count):
        index = i * 256 + kd.thread_rank()
        at = (index % kd.size(tile, 0), index // kd.size(tile, 0))
        tile[at] = source[at].to(tile.dtype)


@kd.kernel
def product(
    a: kd.Tensor["f16|bf16|f32|e4m3|e5m2|i8|u8", "m k"],
    b: kd.Tensor["f16|bf16|f32|e4m3|e5m2|i8|u8", "n k"],
    c: kd.Tensor["f16|f32|i32", "m n"],
    atom: kd.Static,
    shape: kd.Static,
    swizzle: kd.Static,
):
    """Two warp groups of each block multiply (m, n, k) from one stage of shared memory.

    Block i takes rows i · m … of A and C.
    """
    (m, n, k), block = shape, kd.block_idx()[0]
    layouts = (
        kd.atoms.shared_operand(atom.a, (m, k), major=atom.a_major, swizzle=swizzle),
        kd.atoms.shared_operand(atom.b, (n, k), major=atom.b_major, swizzle=swizzle),
    )
    tiles = [
        kd.smem(atom.a, layouts[0], name="a")[..., 0],
        kd.smem(atom.b, layouts[1], name="b")[..., 0],
    ]
    stage(a.tile((m, k), (block, 0)), tiles[0])
    stage(b, tiles[1])
    kd.fence_proxy_async()
    kd.sync_threads()
    mma = kd.tiled_mma(atom, warps=(2, 1))
    view = mma.get_slice(kd.thread_rank())
    left, right = view.partition_A(tiles[0]), view.partition_B(tiles[1])
    if atom.a_from == "registers":
        held = mma.make_fragment_A((m, k))
        for i in range(kd.size(held)):
            held[i] = left[i]
        left = held
    acc = mma.make_fragment_C((m, n))
    kd.wgmma_fence()
    kd.gemm(mma, left, right, acc, accumulate=False)
    kd.wgmma_commit()
    kd.wgmma_wait(0)
    kd.copy(acc, view.partition_C(c.tile((m, n), (block, 0))))


@kd.kernel
def looped(
    a: kd.Tensor["f16", "m k"],
    b: kd.Tensor["f16", "n k"],
    c: kd.Tensor["f32", "m n"],
    majors: kd.Static,
):
    """The same from stages of 64 along K, chosen at run time, with one product in flight."""
    atom = kd.atoms.wgmma(64, a.dtype, a_major=majors[0], b_major=majors[1])
    mma = kd.tiled_mma(atom, warps=(2, 1))
    left = kd.smem(a.dtype, kd.atoms.shared_operand(a.dtype, (128, 64), major=majors[0], stages=3))
    right = kd.smem(b.dtype, kd.atoms.shared_operand(b.dtype, (64, 64), major=majors[1], stages=3))
    for k in kd.range(3):
        stage(a.tile((128, 64), (0, k)), left[..., k])
        stage(b.tile((64, 64), (0, k)), right[..., k])
    kd.fence_proxy_async()
    kd.sync_threads()
    view = mma.get_slice(kd.thread_rank())
    tiles = view.partition_A(left), view.partition_B(right)
    acc = mma.make_fragment_C((128, 64))
    for k in kd.range(3):
        kd.wgmma_fence()
        kd.gemm(mma, tiles[0][..., k], tiles[1][..., k], acc, accumulate=k > 0)
        kd.wgmma_commit()
        kd.wgmma_wait(1)
    kd.wgmma_wait(0)
    kd.copy(acc, view.partition_C(c.tile((128, 64), (0, 0))))


def matrices(atom: Any, shape: tuple[int, int, int], seed: int = 0) -> tuple[Array, Array, Array]:
    """A, B of random numbers and a place for C."""
    m, n, k = shape
    rng = np.random.default_rng(seed)

    def random(dtype: kd.DType, rows: int) -> Array:
        if dtype.is_int:
            return rng.integers(0, 127, (rows, k)).astype(dtype.numpy)
        values = rng.standard_normal((rows, k)).astype(np.float32)
        if dtype is kd.tf32:
            return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        return values.astype(dtype.numpy)

    return random(atom.a, m), random(atom.b, n), np.zeros((m, n), atom.d.numpy)


def expected(atom: Any, a: Array, b: Array, c: Array) -> Array:
    """One instruction along K after another."""
    step, d = atom.shape_mnk[2], c
    for k in range(0, a.shape[1], step):
        d = multiply_accumulate(a[:, k : k + step], b[:, k : k + step], d, family="wgmma")
    return d


def check(execute: Executor, atom: Any, shape: tuple[int, int, int], swizzle: int | None) -> None:
    """The kernel's bits are the model's."""
    a, b, c = matrices(atom, shape)
    statics = {"atom": atom, "shape": shape, "swizzle": swizzle}
    _, _, got = execute(product, 1, 256, a, b, c, **statics)
    np.testing.assert_array_equal(got, expected(atom, a, b, c))


@pytest.mark.parametrize("swizzle", [128, 64, 32, 0])
@pytest.mark.parametrize("majors", ["K K", "MN K", "K MN", "MN MN"])
def test_every_layout_of_16_bit_operands(execute: Executor, majors: str, swizzle: int) -> None:
    """Both majors, every swizzle, several atoms along M, N and K."""
    a_major, b_major = majors.split()
    atom = kd.atoms.wgmma(64, kd.bf16, a_major=a_major, b_major=b_major)
    check(execute, atom, (256, 128, 128), swizzle)


@pytest.mark.parametrize("swizzle", [128, 64, 32, 0])
@pytest.mark.parametrize("majors", ["K K", "MN K", "K MN", "MN MN"])
@pytest.mark.parametrize("blocks", [2, 4])
def test_blocks_of_a_cluster(execute: Executor, blocks: int, majors: str, swizzle: int) -> None:
    """Descriptors of every block of a cluster, whose shared addresses name the block."""
    a_major, b_major = majors.split()
    atom, shape = kd.atoms.wgmma(128, kd.f16, a_major=a_major, b_major=b_major), (128, 128, 64)
    a, b, _ = matrices(atom, (blocks * 128, 128, 64))
    c = np.zeros((blocks * 128, 128), atom.d.numpy)
    statics = {"atom": atom, "shape": shape, "swizzle": swizzle}
    _, _, got = execute(product, blocks, 256, a, b, c, cluster=blocks, **statics)
    np.testing.assert_array_equal(got, expected(atom, a, b, c))


@pytest.mark.parametrize("swizzle", [128, 64, 32, 0])
@pytest.mark.parametrize("types", ["tf32", "e4m3", "e4m3 e5m2", "e5m2 e4m3 f16", "i8", "u8 i8"])
def test_every_layout_of_other_operands(execute: Executor, types: str, swizzle: int) -> None:
    """K-major operands of each type under every swizzle."""
    atom = kd.atoms.wgmma(48, *types.split())
    check(execute, atom, (128, 96, 256 // atom.a.bytes), swizzle)


@pytest.mark.parametrize("types", ["f16", "bf16", "f16 f16 f16", "tf32", "e4m3", "i8"])
def test_a_in_registers(execute: Executor, types: str) -> None:
    """A's fragments go to the instruction from registers."""
    check(execute, kd.atoms.wgmma(24, *types.split(), a_from="registers"), (128, 24, 64), None)


@pytest.mark.parametrize("n", [8, 40, 96, 136, 192, 256])
def test_widths(execute: Executor, n: int) -> None:
    """Narrow and wide instructions, with N inside a swizzle's span where it is MN-major."""
    check(execute, kd.atoms.wgmma(n, kd.f16), (128, n, 64), None)
    check(execute, kd.atoms.wgmma(n, kd.f16, b_major="MN"), (128, n, 32), None)


@pytest.mark.parametrize("majors", [("K", "K"), ("MN", "MN")])
def test_stages_and_accumulation_chosen_at_run_time(execute: Executor, majors: Any) -> None:
    """Descriptors move by the stage; the first product replaces unwritten accumulators."""
    atom = kd.atoms.wgmma(64, kd.f16)
    a, b, c = matrices(atom, (128, 64, 192))
    _, _, got = execute(looped, 1, 256, a, b, c, majors=majors)
    np.testing.assert_array_equal(got, expected(atom, a, b, c))
