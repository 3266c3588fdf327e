"""Products whose rows are reduced where they are computed: schedules, edges, refusals, builds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
import kdsl_fuse as kf
from covering import combined
from fuse.row_runs import normalised
from fuse.test_sm90_kernels_build import assert_clean
from kdsl_core.errors import ArgumentError
from kdsl_fuse.kernels import row_programs as programs
from kdsl_fuse.kernels.gemm_rows_sm80 import plan_gemm_rows
from kdsl_fuse.kernels.gemm_rows_sm90 import gemm_rows_sm90
from kdsl_fuse.kernels.gemm_rows_sm90_plan import candidates, choose
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_runtime.assemble import assemble

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
Matrix = np.ndarray[Any, Any]
CONFIGS = {
    "one warp group": Sm90Config((64, 48, 64), 3, consumers=1),
    "two warp groups": Sm90Config((128, 48, 64), 3),
    "two blocks of rows each": Sm90Config((256, 48, 64), 2),
    "by turns": Sm90Config((64, 48, 64), 3, "pingpong"),
    "multicast": Sm90Config((64, 48, 64), 3, consumers=1, cluster=(2, 1)),
    "registers": Sm90Config((128, 48, 64), 2, registers=(40, 232)),
}


def normal(*shape: int, dtype: Any = BF16) -> Matrix:
    """Normal numbers."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def softmax_of(x: Matrix) -> Matrix:
    """In f64."""
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def assert_close(got: Matrix, want: Matrix, terms: int) -> None:
    """Up to one rounding of the result's type and the order of sums."""
    eps = float(ml_dtypes.finfo(got.dtype).eps)
    bound = eps * np.abs(want) + terms * 2.0**-22 * max(1.0, float(np.abs(want).max()))
    assert (np.abs(got.astype(np.float64) - want) <= bound).all()


def simulated(config: Sm90Config, columns: int, program: Any, *arrays: Matrix, blocks: int) -> None:
    """Run the Hopper kernel with all checks on operands and what the program reads and writes."""
    cluster = (config.blocks_together, 1, 1) if config.blocks_together > 1 else None
    kd.simulate(
        gemm_rows_sm90, grid=blocks, block=config.threads, cluster=cluster, args=arrays,
        kwargs={"program": program, "config": config, "columns": columns},
        checks=("all", "unwritten"), overlap=True,
    )  # fmt: skip


@pytest.mark.parametrize("columns", [48, 44])
@pytest.mark.parametrize("name", CONFIGS)
def test_configurations(name: str, columns: int) -> None:
    """Schedules, multicast and registers; rows as wide as the tile, and rows that are not."""
    config, a, b = CONFIGS[name], normal(300, 88), normal(columns, 88) * BF16(0.1)
    y = np.empty((300, columns), BF16)
    simulated(config, columns, programs.softmax(fast=True), a, b, y, blocks=2)
    assert_close(y, softmax_of(a.astype(np.float64) @ b.astype(np.float64).T), 88)


def test_moments_in_one_phase() -> None:
    """What lies behind the end of a row is no part of its mean."""
    config, a, b = CONFIGS[next(iter(CONFIGS))], normal(300, 88), normal(44, 88)
    y = np.empty((300, 44), BF16)
    program = programs.norm(1e-5, centred=True, weight=False, online=True)
    simulated(config, 44, program, a, b, y, blocks=2)
    assert_close(y, normalised(a.astype(np.float64) @ b.astype(np.float64).T, 1e-5, True), 88)


def test_all_parts_of_a_program() -> None:
    """Two outputs, a row output, a residual before, a weight behind and a label for each row."""

    def epilogue(value: Any, extras: Any, stats: Any) -> Any:
        return (value - stats[0]) * extras[0], value

    def row_results(stats: Any, labels: Any, picked: Any) -> Any:
        return (picked * stats[0] + labels[0].to(kd.f32),)

    def picks(label: Any, columns: Any, first: Any) -> Any:
        return first & (label < columns)

    program = programs.RowProgram(
        (programs.Extreme(),), programs.add, epilogue, row_results, picks,
        inputs=2, extras=1, row_inputs=1, outputs=2, row_outputs=1,
    )  # fmt: skip
    m, n, k = 70, 40, 24
    a, b, residual, weight = normal(m, k), normal(n, k), normal(m, n, dtype=F32), normal(n)
    labels = (np.arange(m) % (n + 2)).astype(np.int32)
    first, second, row = (np.empty(shape, F32) for shape in ((m, n), (m, n), (m,)))
    spread = np.broadcast_to(weight, (m, n))
    config = Sm90Config((64, 48, 64), 2, consumers=1)
    arrays = (a, b, first, second, row, residual, spread, labels)
    simulated(config, n, program, *arrays, blocks=2)
    value = a.astype(np.float64) @ b.astype(np.float64).T + residual
    top = value.max(axis=1)
    picked = np.where(labels < n, value[np.arange(m), np.minimum(labels, n - 1)], 0)
    assert_close(second, value, k)
    assert_close(first, (value - top[:, None]) * weight.astype(np.float64), k)
    assert_close(row, picked * top + labels, 20 * k)


def test_tiles_that_hold_no_rows_are_refused() -> None:
    """Too narrow a tile, or parts of sums, are K933."""
    a, y = kd.spec("bf16", (64, 64)), kd.spec("bf16", (64, 64))
    for config in (Sm90Config((64, 48, 64), 2, consumers=1), Sm90Config((128, 64, 64), 2, peers=2)):
        with pytest.raises(ArgumentError, match="whole sums of K") as caught:
            gemm_rows_sm90.module(
                a, a, y, target="sm_90a", block=config.threads,
                program=programs.softmax(fast=True), config=config, columns=64,
            )  # fmt: skip
        assert caught.value.code == "K933"


def layer(x: Any, w: Any, b: Any) -> Any:
    """A product, a bias and a norm."""
    return kf.layer_norm(x @ w + b)


def specs(m: int, n: int, k: int) -> list[Any]:
    """The layer's arrays."""
    return [kd.spec("bf16", shape) for shape in ((m, k), (k, n), (n,))]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_rows_wider_than_a_tile_stay_apart(target: str) -> None:
    """256 results are one launch, 264 two, and the plan says why."""
    fused = kf.fuse(target=target)(layer)
    (call,) = fused.plan(*specs(8192, 256, 64)).calls
    assert call.name == {"sm_80": "gemm_rows_sm80", "sm_90a": "gemm_rows_sm90"}[target]
    plan = fused.plan(*specs(8192, 264, 64))
    assert [call.name for call in plan.calls][1:] == ["rows"]
    reason = plan.cover.apart["layernormalization0"]
    assert reason.code == "KF-SHAPE" and "up to 256" in reason.sentence
    assert reason.sentence in plan.explain()


def test_a_product_that_others_read_stays_apart() -> None:
    """The row's values may be stored too, what leads to them may not; batches are not rows."""

    def sums(x: Any, w: Any, b: Any) -> Any:
        y = x @ w + b
        return kf.softmax(y), y

    def products(x: Any, w: Any, b: Any) -> Any:
        y = x @ w
        return kf.softmax(y + b), y

    names = [
        [call.name for call in kf.fuse(function).plan(*specs(64, 32, 16)).calls]
        for function in (sums, products)
    ]
    assert names == [["gemm_rows_sm80"], ["gemm_sm80", "rows"]]
    batch = [kd.spec("bf16", shape) for shape in ((2, 64, 16), (2, 16, 32), (32,))]
    assert [c.name for c in kf.fuse(sums).plan(*batch).calls] == ["batch_gemm_sm80", "rows"]


def test_a_reshape_between_goes_behind() -> None:
    """Rows of a matrix that were made rows of sequences are reduced as they are computed."""

    def sequences(x: Any, w: Any, r: Any) -> Any:
        y = (x.reshape(-1, 16) @ w).reshape(4, 16, 32)
        return kf.relu(kf.softmax(y + r) * 2)

    args = normal(4, 16, 16, dtype=F32), normal(16, 32, dtype=F32), normal(4, 16, 32, dtype=F32)
    fused = kf.fuse(sequences)
    (call,) = fused.plan(*args).calls
    assert call.name == "gemm_rows_sm80"
    x, w, r = (a.astype(np.float64) for a in args)
    want = softmax_of((x.reshape(64, 16) @ w) + r.reshape(64, 32)) * 2
    assert_close(fused(*args), want.reshape(4, 16, 32), 64)


def test_few_rows_and_a_long_sum_are_two_launches() -> None:
    """Where tiles of whole rows leave most of the chip idle, the product is split instead."""
    for target, name in (("sm_90a", "sm90"), ("sm_80", "sm80")):
        fused = kf.fuse(target=target)(layer)
        few, many = (fused.plan(*specs(*size)) for size in ((64, 256, 65536), (8192, 256, 1024)))
        assert [call.name for call in few.calls] == [f"gemm_{name}", "rows"]
        assert few.cover.apart["layernormalization0"].code == "KF-COST"
        assert "faster" in few.explain()
        assert [call.name for call in many.calls] == [f"gemm_rows_{name}"]


def test_plans_hold_rows() -> None:
    """Tiles are as wide as the rows, the first plan is the model's best, and all can be run."""
    found = candidates(300, 40, 72, kd.bf16)
    assert [plan.behind_us for plan in found] == sorted(plan.behind_us for plan in found)
    assert found[0] == choose(300, 40, 72, kd.bf16) and {x.plan.config.tile[1] for x in found} == {
        48
    }
    a, w, y = normal(300, 72), normal(40, 72) * BF16(0.1), np.empty((300, 40), BF16)
    for plan in found[:3]:
        plan.run(a, w, y, program=programs.softmax(fast=True))
        assert_close(y, softmax_of(a.astype(np.float64) @ w.astype(np.float64).T), 72)


def residual_norm(x: Any, w: Any, b: Any, r: Any, s: Any, t: Any) -> Any:
    """All that a norm of a product may have around it."""
    return kf.gelu(kf.layer_norm(x @ w + b + r, s, t)) + r


def wide_softmax(x: Any, w: Any, b: Any, r: Any, s: Any, t: Any) -> Any:
    """Results of f32, and the sums."""
    y = kf.cast(x @ w, "f32") + b + r
    return kf.softmax(y) * s, y


def powers(x: Any, w: Any, b: Any, r: Any, s: Any, t: Any) -> Any:
    """Powers and the sums that they are of, both stored by TMA."""
    y = x @ w + b
    return kf.softmax(y), y


def largest(x: Any, w: Any, b: Any, r: Any, s: Any, t: Any) -> Any:
    """No matrix is stored."""
    return kf.max(x @ w + b + r, axis=-1)


def rounded(x: Any, w: Any, b: Any, r: Any, s: Any, t: Any) -> Any:
    """Products that are rounded before anything is added."""
    y = kf.cast(x @ w, "bf16")
    return kf.max(y, axis=-1), y


FUNCTIONS = {x.__name__: x for x in (residual_norm, wide_softmax, powers, largest, rounded)}
BUILDS = combined(FUNCTIONS, (256, 208, 128, 48), (65536, 4096), together=1)


def planned(function: Callable[..., Any], n: int, m: int, target: str) -> Any:
    """The one call of a build."""
    shapes = (m, 512), (512, n), (n,), (m, n), (n,), (n,)
    plan = kf.fuse(target=target)(function).plan(*(kd.spec("bf16", shape) for shape in shapes))
    (call,) = plan.calls
    return call


@pytest.mark.parametrize("function, n, rows", BUILDS)
def test_builds_on_hopper_are_clean(function: Callable[..., Any], n: int, rows: int) -> None:
    """Neither spills nor warnings, with one tile a block and with many."""
    call = planned(function, n, rows, "sm_90a")
    assert call.name == "gemm_rows_sm90"
    assert_clean(call.module("sm_90a"), call.block[0])


@pytest.mark.parametrize("function, n, rows", BUILDS)
def test_builds_elsewhere_are_clean(function: Callable[..., Any], n: int, rows: int) -> None:
    """The same for tensor cores of sm_80."""
    call = planned(function, n, rows, "sm_80")
    report = assemble(call.module("sm_80"), "sm_80").report
    assert report.warnings == ()
    assert (report.spill_stores, report.spill_loads, report.stack) == (0, 0, 0)


@pytest.mark.parametrize("target", ["sm_80", "sm_86"])
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_every_width_has_a_tile_elsewhere(dtype: str, precision: str, target: str) -> None:
    """The narrowest tile that holds the row; few rows get low tiles, many get tall ones."""
    made = [
        plan_gemm_rows(m, n, getattr(kd, dtype), target=target, f32_precision=precision)
        for m in (64, 65536)
        for n in (1, 64, 65, 128, 200, 256)
    ]
    widths = [config.tile[1] for config, _, _ in made]
    assert widths == [64, 64, 128, 128, 256, 256] * 2
    assert all(
        grid == (-(-m // c.tile[0]),)
        for m, (c, grid, _) in zip([64] * 6 + [65536] * 6, made, strict=True)
    )
