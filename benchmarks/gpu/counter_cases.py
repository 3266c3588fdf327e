"""Launches whose counters are compared: small, and each with another pattern of accesses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import kdsl_core as kd

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
THREADS = 256
GROUP = 128  # threads of a warp group


@dataclass(frozen=True)
class Case:
    """A kernel and the keyword arguments of `kd.simulate` for it."""

    kernel: Any
    grid: Any
    block: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    cluster: int | None = None


@kd.kernel
def copies(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], step: kd.Static):
    """Every `step`th element, so that requests touch more sectors than they need."""
    i = (kd.block_idx()[0] * THREADS + kd.thread_idx()[0]) * step
    y[i] = x[i]


@kd.kernel
def copies_in_background(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"]):
    """By `cp.async` of 16 bytes and vectors of four."""
    t = kd.thread_idx()[0]
    tile = kd.smem(kd.f32, kd.Layout((THREADS, 4), (4, 1)), align=16)
    source = kd.local_tile(x, (THREADS * 4,), (kd.block_idx()[0],))
    target = kd.local_tile(y, (THREADS * 4,), (kd.block_idx()[0],))
    four = kd.Layout(4)
    kd.copy(
        source.with_layout(four, 4 * t), tile.with_layout(four, 4 * t), atom=kd.atoms.cp_async(16)
    )
    kd.cp_async_commit()
    kd.cp_async_wait(0)
    kd.sync_threads()
    kd.copy(tile.with_layout(four, 4 * t), target.with_layout(four, 4 * t))


@kd.kernel
def shared_vectors(y: kd.Tensor["f32", "n"], width: kd.Static, step: kd.Static, group: kd.Static):
    """Vectors of `width` words; `group` neighbours read one, and the groups lie `step` apart."""
    t = kd.thread_idx()[0]
    tile = kd.smem(kd.f32, 32 * width * step, align=16)
    held = kd.rmem(kd.f32, kd.Layout(width)).fill(1.0)
    place = tile.with_layout(kd.Layout(width), t // group * step * width)
    kd.copy(held, place)
    kd.sync_threads()
    kd.copy(place, held)
    total = held[0]
    for i in range(1, width):
        total = total + held[i]
    y[t] = total


@kd.kernel
def shared_picks(y: kd.Tensor["f32", "n"], width: kd.Static):
    """Vectors of `width` words, of which lanes read the same ones in other ways on each line."""
    t = kd.thread_idx()[0]
    tile = kd.smem(kd.f32, 32 * width, align=16)
    held = kd.rmem(kd.f32, kd.Layout(width)).fill(1.0)
    kd.copy(held, tile.with_layout(kd.Layout(width), t * width))
    kd.sync_threads()
    found = [
        tile.load_vector(t // 2 * width, width, None),  # the next lane's, too
        tile.load_vector((t // 4 * 2 + t % 2) * width, width, None),  # that of the lane two further
        tile.load_vector((t // 8 * 4 + t % 4) * width, width, None),  # four further
        tile.load_vector(t % 16 * width, width, None),  # that of the other half
        tile.load_vector(kd.where(t < 16, t // 2, t) * width, width, None),  # pairs in one half
        tile.load_vector(kd.where(t == 1, 31, t // 2) * width, width, None),  # pairs but for one
        tile.load_vector(t * width, width, t % 2 == 0),  # every other lane
        tile.load_vector(t * width, width, t < 16),  # half of the lanes
        tile.load_vector(t // 2 * width, width, t < 16),  # pairs in half of the lanes
        tile.load_vector(kd.where(t < 16, t // 4 * 2 + t % 2, t // 2) * width, width, None),  # both
    ]
    total = 0.0
    for vector in found:
        for value in vector:
            total = total + value
    y[t] = total


@kd.kernel
def wide_loads(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], spread: kd.Static):
    """Each lane reads 16 bytes: all the same, or each quarter of a warp some of every line."""
    t = kd.thread_idx()[0]
    four = kd.Layout(4)
    held = kd.rmem(kd.f32, four)
    kd.copy(x.with_layout(four, (t % 4 * 8 + t // 4) * 4 if spread else t // 32 * 4), held)
    kd.copy(held, y.with_layout(four, t * 4))


@kd.kernel
def counts(x: kd.Tensor["u32", "n"], bins: kd.Tensor["u32", "m"], weighted: kd.Static):
    """A histogram: atomics in shared memory, then in global memory."""
    t = kd.thread_idx()[0]
    own = kd.smem(kd.u32, THREADS)
    own[t] = 0
    kd.sync_threads()
    key = x[kd.block_idx()[0] * THREADS + t]
    kd.atomic_add(own, key, key if weighted else 1)
    kd.sync_threads()
    kd.atomic_add(bins, t, own[t])


@kd.kernel
def neighbours(x: kd.Tensor["f32", "b t"], y: kd.Tensor["f32", "b t"]):
    """Each block of a cluster reads and writes shared memory of the next one."""
    t, block = kd.thread_rank(), kd.block_idx()[0]
    own, given = kd.smem(kd.f32, THREADS, name="own"), kd.smem(kd.f32, THREADS, name="given")
    following = (kd.cluster_rank() + 1) % kd.cluster_dim()[0]
    own[t] = x[block, t]
    kd.cluster_sync()
    kd.peer(given, following)[t] = kd.peer(own, following)[THREADS - 1 - t]
    kd.cluster_sync()
    y[block, t] = given[t]


@kd.kernel
def multiplies(c: kd.Tensor["f32", "m n"], width: kd.Static, major: kd.Static, a_from: kd.Static):
    """One warp group's products of 64 × `width` × 64 ones, by wgmma."""
    t = kd.thread_rank()
    a = kd.smem(kd.bf16, kd.atoms.shared_operand(kd.bf16, (64, 64), major=major))[..., 0]
    b = kd.smem(kd.bf16, kd.atoms.shared_operand(kd.bf16, (width, 64), major=major))[..., 0]
    for tile, rows in ((a, 64), (b, width)):
        for i in kd.range(rows * 64 // GROUP):
            tile[(i * GROUP + t) // 64, (i * GROUP + t) % 64] = 1.0
    kd.fence_proxy_async()
    kd.sync_threads()
    majors = {"a_major": "K" if a_from == "registers" else major, "b_major": major}
    mma = kd.tiled_mma(kd.atoms.wgmma(width, kd.bf16, a_from=a_from, **majors))
    part = mma.get_slice(t)
    acc = mma.make_fragment_C((64, width)).fill(0.0)
    left = part.partition_A(a)
    if a_from == "registers":
        left = mma.make_fragment_A((64, 64)).fill(1.0)
    kd.wgmma_fence()
    kd.gemm(mma, left, part.partition_B(b), acc)
    kd.wgmma_commit()
    kd.wgmma_wait(0)
    place = part.partition_C(kd.identity_tensor((64, width)))
    for i in range(kd.size(acc)):
        c[place[i]] = acc[i]


def floats(*shape: int, dtype: Any = np.float32) -> Any:
    """Random numbers."""
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def example(name: str) -> Any:
    """A module of the folder `examples`."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(EXAMPLES))


def copy(step: int) -> Case:
    """A copy, coalesced or not."""
    x = floats(4 * THREADS * step)
    return Case(copies, 4, THREADS, (x, np.zeros_like(x)), {"step": step})


def background() -> Case:
    """A copy by `cp.async`."""
    x = floats(16 * THREADS)
    return Case(copies_in_background, 4, THREADS, (x, np.zeros_like(x)))


def vectors(width: int, step: int, group: int) -> Case:
    """One warp's vectors in shared memory."""
    sizes = {"width": width, "step": step, "group": group}
    return Case(shared_vectors, 1, 32, (np.zeros(32, np.float32),), sizes)


def picks(width: int) -> Case:
    """One warp's loads of vectors that lanes share."""
    return Case(shared_picks, 1, 32, (np.zeros(32, np.float32),), {"width": width})


def transpose(swizzle: bool) -> Case:
    """Through shared memory, with or without conflicts."""
    x = floats(128, 128)
    args = (x, np.zeros_like(x))
    return Case(example("transpose").transpose, (4, 4), 256, args, {"swizzle": swizzle})


def softmax() -> Case:
    """Whole rows of a warp each, so that no lane is predicated off."""
    x = floats(16, 256)
    return Case(example("softmax").softmax, 4, 128, (x, np.zeros_like(x)))


def wide(spread: bool) -> Case:
    """Vectors of 16 bytes in global memory that are not in the order of the lanes."""
    x = floats(128)
    return Case(wide_loads, 1, 32, (x, np.zeros_like(x)), {"spread": spread})


def histogram(weighted: bool) -> Case:
    """Atomics with and without lanes that meet; `weighted` adds other numbers than 1."""
    x = np.random.default_rng(0).integers(0, THREADS, 4 * THREADS).astype(np.uint32)
    bins = np.zeros(THREADS, np.uint32)
    return Case(counts, 4, THREADS, (x, bins), {"weighted": weighted})


def wgmma(width: int, major: str, a_from: str) -> Case:
    """What wgmma reads of shared memory."""
    statics = {"width": width, "major": major, "a_from": a_from}
    return Case(multiplies, 1, GROUP, (np.zeros((64, width), np.float32),), statics)


def gemm_sm80() -> Case:
    """`cp.async`, `ldmatrix` and `mma.sync`."""
    from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, gemm_sm80, identity

    config = GemmConfig("SM80_16x8x16_F32BF16BF16F32_TN", (64, 64, 32), (2, 2), 3)
    a, b = (floats(128, 128, dtype=ml_dtypes.bfloat16) for _ in range(2))
    args = (a, b, np.zeros_like(a))
    return Case(gemm_sm80, 4, config.threads, args, {"epilogue": identity, "config": config})


def gemm_sm90() -> Case:
    """TMA and wgmma."""
    gemm = example("hopper_gemm")
    return Case(gemm.by_hand, **gemm.example_by_hand())


def tma_transpose() -> Case:
    """TMA both ways, `ldmatrix` and `stmatrix` between."""
    x = floats(128, 128, dtype=ml_dtypes.bfloat16)
    args = (x, np.zeros_like(x))
    return Case(example("tma_transpose").transpose, (2, 2), 128, args, {"swizzle": True})


def cluster() -> Case:
    """Shared memory of another block."""
    x = floats(8, THREADS)
    return Case(neighbours, 8, THREADS, (x, np.zeros_like(x)), cluster=4)


CASES: dict[str, Callable[[], Case]] = {
    "copy": lambda: copy(1),
    "copy_strided": lambda: copy(3),
    "copy_background": background,
    "transpose": lambda: transpose(False),
    "transpose_swizzled": lambda: transpose(True),
    "tma_transpose": tma_transpose,
    "gemm_sm80": gemm_sm80,
    "gemm_sm90": gemm_sm90,
    "softmax": softmax,
    "histogram": lambda: histogram(False),
    "histogram_weighted": lambda: histogram(True),
    "cluster": cluster,
    "wide_loads_of_one": lambda: wide(False),
    "wide_loads_spread": lambda: wide(True),
    **{
        f"wgmma_{width}_{major}_{a_from}": lambda w=width, m=major, a=a_from: wgmma(w, m, a)
        for width, major, a_from in (
            (8, "K", "shared"),
            (256, "K", "shared"),
            (64, "K", "registers"),
            (128, "MN", "shared"),
        )
    },
    "picks_8": lambda: picks(2),
    "picks_16": lambda: picks(4),
    **{
        f"vectors_{width * 4}_step{step}_group{group}": lambda w=width, s=step, g=group: vectors(
            w, s, g
        )
        for width in (1, 2, 4)
        for step, group in ((1, 1), (2, 1), (1, 2), (1, 4), (1, 32))
    },
}
"""Launches by name. The vectors find out how wide accesses of equal addresses are split."""
