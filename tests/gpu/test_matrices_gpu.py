"""Matrix instructions through the language: the tensor core's model in the simulator, on a GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from execution import Executor
from kdsl_core.isa.tensor_core import multiply_accumulate

BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)


def rng(seed: int = 0) -> np.random.Generator:
    """Random numbers, the same every time."""
    return np.random.default_rng(seed)


def bits(array: Any) -> bytes:
    """The bytes of an array, in C order."""
    return np.ascontiguousarray(array).tobytes()


@kd.kernel
def multiplies(
    a: kd.Tensor["f16|bf16", "16 k"],
    b: kd.Tensor["=a", "16 k"],
    c: kd.Tensor["f16|f32", "16 16"],
    atom: kd.Static,
) -> None:
    """One warp: global → shared → `ldmatrix` → `mma`, for one K-slice of the instruction."""
    depth = atom.shape_mnk[2]
    lane, kind = kd.thread_idx()[0], a.dtype
    mma = kd.tiled_mma(atom, permutation=(16, 16))
    tiles = [kd.smem(kind, kd.Layout((16, depth), (depth, 1)), name=name) for name in "ab"]
    for source, tile in zip((a, b), tiles, strict=True):
        for k in range(16 * depth // 32):
            row, column = (k * 32 + lane) // depth, (k * 32 + lane) % depth
            tile[row, column] = source[row, column]
    kd.sync_threads()
    left, right = mma.make_fragment_A((16, depth)), mma.make_fragment_B((16, depth))
    acc = mma.make_fragment_C((16, 16)).fill(0.0)
    load = kd.atoms.SM75_U32x4_LDSM_N
    for make, tile, held in (
        (kd.tiled_copy_A, tiles[0], left),
        (kd.tiled_copy_B, tiles[1], right),
    ):
        part = make(load, mma).get_slice(lane)
        view = held.as_dtype(kind)
        kd.copy(part.partition_S(tile), part.retile(view), atom=load)
    kd.gemm(mma, left, right, acc)
    kd.copy(acc, mma.get_slice(lane).partition_C(c))


MATRIX = [
    ("SM80_16x8x16_F32F16F16F32_TN", "f2", "f4"),
    ("SM80_16x8x16_F32BF16BF16F32_TN", BF16, "f4"),
    ("SM80_16x8x16_F16F16F16F16_TN", "f2", "f2"),
]


@pytest.mark.parametrize(("atom", "kind", "out"), MATRIX, ids=[row[0] for row in MATRIX])
def test_matrix_product(execute: Executor, atom: str, kind: Any, out: str) -> None:
    """The bits are those of the tensor core's model."""
    a, b = (rng(seed).standard_normal((16, 16)).astype(kind) for seed in (0, 1))
    c = np.full((16, 16), np.nan, out)
    got = execute(multiplies, 1, 32, a, b, c, atom=getattr(kd.atoms, atom))[2]
    want = multiply_accumulate(a, b, np.zeros((16, 16), out))
    assert bits(got) == bits(want)


@kd.kernel
def multiplies_directly(
    a: kd.Tensor["f32|e4m3|e5m2|i8", "16 k"],
    b: kd.Tensor["=a", "8 k"],
    c: kd.Tensor["f32|i32", "16 8"],
    atom: kd.Static,
) -> None:
    """One instruction whose operands come straight from global memory, element by element."""
    depth = atom.shape_mnk[2]
    mma = kd.tiled_mma(atom)
    part = mma.get_slice(kd.thread_idx()[0])
    left, right = mma.make_fragment_A((16, depth)), mma.make_fragment_B((8, depth))
    acc = mma.make_fragment_C((16, 8)).fill(0)
    kd.copy(part.partition_A(kd.local_tile(a, (16, depth), (0, 0))), left.as_dtype(a.dtype))
    kd.copy(part.partition_B(kd.local_tile(b, (8, depth), (0, 0))), right.as_dtype(b.dtype))
    kd.gemm(mma, left, right, acc)
    kd.copy(acc, part.partition_C(c))


NARROW = [
    ("SM80_16x8x8_F32TF32TF32F32_TN", "f4", "f4"),
    ("SM89_16x8x32_F32E4M3E4M3F32_TN", E4M3, "f4"),
    ("SM89_16x8x32_F32E5M2E5M2F32_TN", E5M2, "f4"),
    ("SM80_16x8x32_S32S8S8S32_TN", "i1", "i4"),
]


@pytest.mark.parametrize(("atom", "kind", "out"), NARROW, ids=[row[0] for row in NARROW])
def test_matrix_product_of_words_and_bytes(
    execute: Executor, atom: str, kind: Any, out: str
) -> None:
    """tf32, fp8 and 8-bit integers: the model's bits, and exact sums of integers."""
    row = getattr(kd.atoms, atom)
    depth = row.shape_mnk[2]
    a, b = (rng(n).integers(-60, 60, (n, depth)).astype(kind) for n in (16, 8))
    got = execute(multiplies_directly, 1, 32, a, b, np.zeros((16, 8), out), atom=row)[2]
    want = multiply_accumulate(a, b, np.zeros((16, 8), out))
    assert bits(got) == bits(want)


@kd.kernel
def loads_narrow(
    a: kd.Tensor["bf16", "16 k"], b: kd.Tensor["bf16", "8 k"], c: kd.Tensor["f32", "16 8"]
) -> None:
    """A warp with one column of instructions reads B two matrices at a time."""
    mma = kd.tiled_mma(kd.atoms.SM80_16x8x16_F32BF16BF16F32_TN)
    acc = mma.make_fragment_C((16, 8)).fill(0.0)
    left, right = kd.local_tile(a, (16, 32), (0, None)), kd.local_tile(b, (8, 32), (0, None))
    for k in kd.range(kd.size(left, 2)):
        kd.collective.mma_tile(mma, left[..., k], right[..., k], acc)
    kd.collective.store_tile(mma, acc, kd.local_tile(c, (16, 8), (0, 0)))


def test_two_matrices_at_a_time(execute: Executor) -> None:
    """`ldmatrix.x2` gives the lanes what `x4` would."""
    a, b = (rng(n).standard_normal((n, 64)).astype(BF16) for n in (16, 8))
    got = execute(loads_narrow, 1, 32, a, b, np.zeros((16, 8), np.float32))[2]
    want = np.zeros((16, 8), np.float32)
    for k in range(0, 64, 16):
        want = multiply_accumulate(a[:, k : k + 16], b[:, k : k + 16], want)
    assert bits(got) == bits(want)
    ptx = loads_narrow.ptx(a, b, got, target="sm_80", block=32)
    assert "ldmatrix.sync.aligned.m8n8.x2" in ptx


@kd.kernel
def stores_matrices(
    x: kd.Tensor["f16", "16 16"], y: kd.Tensor["f16", "16 16"], matrices: kd.Static
) -> None:
    """Accumulators to shared memory through `stmatrix`."""
    lane = kd.thread_idx()[0]
    mma = kd.tiled_mma(kd.atoms.SM80_16x8x16_F16F16F16F16_TN, permutation=(16, 16))
    acc = mma.make_fragment_C((16, 16))
    kd.copy(mma.get_slice(lane).partition_C(x), acc)
    tile = kd.smem(kd.f16, kd.Layout((16, 16), (16, 1)))
    plan = kd.tiled_copy_C(kd.atoms.stmatrix(matrices), mma, kd.f16)
    part = plan.get_slice(lane)
    kd.copy(part.retile(acc), part.partition_D(tile), atom=plan)
    kd.sync_threads()
    for k in range(8):
        y[(k * 32 + lane) // 16, lane % 16] = tile[(k * 32 + lane) // 16, lane % 16]


@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_matrix_stores(execute: Executor, matrices: int) -> None:
    """One, two or four matrices at a time, the tile arrives as it was."""
    x = rng().standard_normal((16, 16)).astype(np.float16)
    got = execute(stores_matrices, 1, 32, x, x * 0, matrices=matrices)[1]
    assert bits(got) == bits(x)
