"""Two products and a function of both on sm_80, in the simulator with all checks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from fuse.test_gated_sm90 import assert_close, exact, operands
from kdsl_core.dtypes import dtype_of
from kdsl_fuse.kernels.gated_sm80 import gated_sm80, plan_gated
from kdsl_fuse.kernels.gated_sm90_plan import gated, gelu, silu
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig
from kdsl_runtime.assemble import assemble

BF16 = ml_dtypes.bfloat16


@pytest.mark.parametrize("dtype", (BF16, np.float16, np.float32))
@pytest.mark.parametrize("m, n, k", ((1, 8, 8), (70, 67, 129), (136, 96, 200)))
def test_sizes(dtype: Any, m: int, n: int, k: int) -> None:
    """The planned configuration, where all edges hang over."""
    a, gate, up = operands(m, n, k, dtype)
    c = np.full((m, n), np.nan, dtype)
    config, grid, block = plan_gated(m, n, k, dtype_of(dtype))
    kwargs = {"epilogue": gated(silu), "config": config}
    kd.simulate(gated_sm80, grid=grid, block=block, args=(a, gate, up, c), kwargs=kwargs)
    assert_close(c, exact(a, gate, up))


@pytest.mark.parametrize("w_major", (0, 1))
def test_biases(w_major: int) -> None:
    """A bias for each product; weights contiguous along either mode."""
    a, gate, up = operands(70, 40, 64)
    gate, up = (w if w_major else np.ascontiguousarray(w.T).T for w in (gate, up))
    biases = [np.random.default_rng(i).standard_normal(40).astype(BF16) for i in range(2)]
    rows = [np.broadcast_to(bias, (70, 40)) for bias in biases]
    c = np.full((70, 40), np.nan, np.float32)
    config, grid, block = plan_gated(70, 40, 64, kd.bf16)
    kwargs = {"epilogue": gated(gelu), "config": config}
    kd.simulate(gated_sm80, grid=grid, block=block, args=(a, gate, up, c, *rows), kwargs=kwargs)
    assert_close(c, exact(a, gate, up, *biases, act=gelu))


def test_bad_input() -> None:
    """Weights that do not lie alike are refused."""
    a, gate, up = operands(70, 40, 64)
    config, grid, block = plan_gated(70, 40, 64, kd.bf16)
    args = (a, gate, np.ascontiguousarray(up.T).T, np.empty((70, 40), BF16))
    kwargs = {"epilogue": gated(silu), "config": config}
    with pytest.raises(kd.TypeMismatch) as caught:
        kd.simulate(gated_sm80, grid=grid, block=block, args=args, kwargs=kwargs)
    assert caught.value.code == "K476"


@pytest.mark.parametrize("tile, warps", (((128, 256, 64), (2, 4)), ((128, 128, 64), (2, 2))))
def test_builds_are_clean(tile: tuple[int, int, int], warps: tuple[int, int]) -> None:
    """The large tiles neither spill nor warn."""
    config = GemmConfig("SM80_16x8x16_F32BF16BF16F32_TN", tile, warps, 3)
    matrix = kd.spec("bf16", (4096, 4096))
    module = gated_sm80.module(
        matrix, matrix, matrix, matrix, target="sm_80", block=config.threads,
        epilogue=gated(silu), config=config,
    )  # fmt: skip
    report = assemble(module, "sm_80").report
    assert (report.warnings, report.spill_stores, report.stack) == ((), 0, 0)
