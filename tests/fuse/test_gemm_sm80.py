"""The sm_80 GEMM: every edge, every major order, every type, against NumPy and against its bits."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from covering import combined
from execution import Executor
from kdsl_core.isa.tensor_core import multiply_accumulate
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, gemm_sm80, identity, plan_gemm

EDGES = (1, 7, 8, 15, 16, 17, 31, 33, 64, 129)
BF16 = np.dtype(ml_dtypes.bfloat16)
SMALL = {
    "bf16": GemmConfig("SM80_16x8x16_F32BF16BF16F32_TN", (64, 64, 32), (2, 2), 3),
    "f16": GemmConfig("SM80_16x8x16_F32F16F16F32_TN", (64, 64, 32), (2, 2), 3),
    "tf32": GemmConfig("SM80_16x8x8_F32TF32TF32F32_TN", (64, 64, 32), (2, 2), 3),
    "f32": GemmConfig("UNIVERSAL_FMA_F32", (32, 32, 16), (16, 16), 3),
}
TYPES = {"bf16": BF16, "f16": np.dtype("f2"), "tf32": np.dtype("f4"), "f32": np.dtype("f4")}


def operands(
    m: int, n: int, k: int, dtype: Any, majors: str = "TN"
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Random A (m, k) and B (n, k); a letter N makes the operand contiguous along M or N."""
    rng = np.random.default_rng(m * 10007 + n * 101 + k)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (n, k)))
    if majors[0] == "N":
        a = np.ascontiguousarray(a.T).T
    if majors[1] == "T":
        b = np.ascontiguousarray(b.T).T
    return a, b


def product(
    execute: Executor, a: Any, b: Any, config: GemmConfig, out: Any = None, **options: Any
) -> np.ndarray[Any, Any]:
    """C = A · Bᵀ by the kernel; C starts as NaN, so that an element not written shows."""
    c = np.full((a.shape[0], b.shape[0]), np.nan, out or a.dtype)
    tile_m, tile_n, _ = config.tile
    grid = -(-a.shape[0] // tile_m) * -(-b.shape[0] // tile_n)
    arguments = {"epilogue": identity, **options}
    extras = arguments.pop("extras", ())
    result = execute(gemm_sm80, grid, config.threads, a, b, c, *extras, config=config, **arguments)
    return result[2]


def assert_close(c: np.ndarray[Any, Any], a: Any, b: Any, k: int, name: str) -> None:
    """C is the f64 product up to the input and output types' rounding."""
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    size = np.sqrt(k) * {"bf16": 2**-8, "f16": 2**-11, "tf32": 2**-10, "f32": 2**-22}[name]
    np.testing.assert_allclose(c.astype(np.float64), exact, rtol=2**-7, atol=4 * size)


@pytest.mark.parametrize("position", range(3), ids="MNK")
@pytest.mark.parametrize("edge", EDGES)
def test_edges(execute: Executor, edge: int, position: int) -> None:
    """Any size in any position, the others odd: what hangs over a tile neither reads nor writes."""
    sizes = [40, 24, 48]
    sizes[position] = edge
    a, b = operands(*sizes, BF16)
    c = product(execute, a, b, SMALL["bf16"])
    assert_close(c, a, b, sizes[2], "bf16")


@pytest.mark.parametrize(
    "name, majors, sizes",
    combined([*SMALL], ("TN", "TT", "NN", "NT"), ((64, 64, 64), (33, 72, 40), (17, 9, 19))),
)
def test_types_and_majors(
    execute: Executor, name: str, majors: str, sizes: tuple[int, int, int]
) -> None:
    """Every type and every pair of contiguous modes, aligned and not."""
    a, b = operands(*sizes, TYPES[name], majors)
    c = product(execute, a, b, SMALL[name])
    assert_close(c, a, b, sizes[2], name)


@pytest.mark.parametrize("name", ("bf16", "f16"))
def test_bits_are_those_of_the_tensor_core(execute: Executor, name: str) -> None:
    """C is the exact model of the instruction applied along K in steps of 16, rounded once."""
    a, b = operands(64, 64, 96, TYPES[name])
    c = product(execute, a, b, SMALL[name], out=np.float32)
    acc = np.zeros((64, 64), np.float32)
    for k in range(0, 96, 16):
        acc = multiply_accumulate(a[:, k : k + 16], b[:, k : k + 16], acc)
    assert c.tobytes() == acc.tobytes()


def test_f32_is_a_chain_of_fused_multiply_adds(execute: Executor) -> None:
    """The f32 kernel adds k by k with one rounding each."""
    a, b = operands(32, 32, 24, np.float32)
    c = product(execute, a, b, SMALL["f32"])
    acc = np.zeros((32, 32))
    for k in range(24):
        exact = acc + np.multiply.outer(a[:, k].astype(np.float64), b[:, k].astype(np.float64))
        acc = exact.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(c, acc, rtol=2**-22, atol=2**-22)


def test_epilogue_with_bias_and_residual(execute: Executor) -> None:
    """Extras are read at the element's place: a broadcast row, and a matrix."""
    a, b = operands(40, 56, 64, BF16)
    rng = np.random.default_rng(1)
    bias = np.broadcast_to(rng.standard_normal(56).astype(np.float32), (40, 56))
    residual = rng.standard_normal((40, 56)).astype(np.float32)
    c = np.zeros((40, 56), np.float32)

    def tail(acc: Any, row: Any, other: Any) -> Any:
        return kd.maximum(acc + row, 0.0) * 2.0 + other

    kernel = gemm_sm80[1, SMALL["bf16"].threads]
    kernel(a, b, c, bias, residual, epilogue=tail, config=SMALL["bf16"])
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    want = np.maximum(exact + bias, 0) * 2 + residual
    np.testing.assert_allclose(c, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "dtype, precision", [(dtype, p) for dtype in ("bf16", "f16", "f32") for p in ("ieee", "tf32")]
)
def test_plans_fit_every_target(dtype: str, precision: str) -> None:
    """Whatever the sizes, the planned block fits the shared memory of the target."""
    kind = getattr(kd, dtype)
    for target, size in itertools.product(("sm_80", "sm_89", "sm_90a"), (16, 300, 4096, 16384)):
        config, grid, block = plan_gemm(
            size, size, size, kind, target=target, f32_precision=precision
        )
        assert config.shared_bytes(kind.bytes) <= kd.target_of(target).shared_bytes
        assert grid[0] * config.tile[0] * config.tile[1] >= size * size
        assert block[0] == config.threads <= 1024


@pytest.mark.parametrize("majors", ("TN", "NT"))
@pytest.mark.parametrize("name", ("bf16", "tf32"))
def test_no_bank_conflicts(name: str, majors: str) -> None:
    """Shared memory takes no wavefront too many, and global memory no sector too many."""
    a, b = operands(64, 64, 64, TYPES[name], majors)
    statics = {"epilogue": identity, "config": SMALL[name]}
    c = np.zeros((64, 64), a.dtype)
    result = kd.simulate(gemm_sm80, grid=1, block=128, args=(a, b, c), kwargs=statics)
    assert result.profile.bank_conflicts == 0
    assert result.profile.sector_efficiency == 1.0


@pytest.mark.parametrize("target", ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"))
def test_assembles_without_spills(target: str) -> None:
    """Every planned configuration builds on every target, and keeps its registers."""
    from kdsl_runtime.assemble import assemble
    from kdsl_runtime.toolchain import default_toolchain

    for dtype in (kd.bf16, kd.f32):
        config, _, block = plan_gemm(8192, 8192, 8192, dtype, target=target)
        specs = [kd.spec(dtype, (8192, 8192)) for _ in range(3)]
        module = gemm_sm80.module(
            *specs, target=target, block=block, epilogue=identity, config=config
        )
        report = assemble(module, target, default_toolchain()).report
        assert (report.spill_stores, report.spill_loads) == (0, 0)


@pytest.mark.parametrize(
    ("tile", "stages", "code"),
    [((64, 48, 32), 3, "K930"), ((64, 64, 16), 3, "K931"), ((64, 64, 32), 1, "K931")],
)
def test_impossible_configurations(tile: tuple[int, int, int], stages: int, code: str) -> None:
    """A tile that the warps do not cover evenly, or a pipeline without depth, is refused."""
    with pytest.raises(kd.ArgumentError) as caught:
        GemmConfig("SM80_16x8x16_F32BF16BF16F32_TN", tile, (2, 2), stages)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("tile", "warps"), [((64, 96, 64), (2, 2)), ((96, 64, 64), (2, 2)), ((32, 96, 32), (1, 2))]
)
def test_tiles_that_are_no_powers_of_two(
    execute: Executor, tile: tuple[int, int, int], warps: tuple[int, int]
) -> None:
    """K-major operands allow any M and N of whole warps; no thread writes what another one does."""
    a, b = operands(100, 200, 128, BF16)
    config = GemmConfig("SM80_16x8x16_F32BF16BF16F32_TN", tile, warps, 3)
    assert_close(product(execute, a, b, config), a, b, 128, "bf16")


def test_unknown_precision() -> None:
    """Only the two ways of f32 that the kernel has are accepted."""
    with pytest.raises(kd.ArgumentError) as caught:
        plan_gemm(8, 8, 8, kd.f32, f32_precision="fp8")
    assert caught.value.code == "K932"
