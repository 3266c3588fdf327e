"""Row-wise kernels: every configuration gives the right rows, by whole sectors, without hazards."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from covering import combined
from fuse.row_runs import Array, log_softmax, normalised, simulated, softmax
from kdsl_core.errors import ArgumentError, HazardError
from kdsl_fuse.kernels import row_ops, row_programs, rows_plan
from kdsl_fuse.kernels.rows import RowConfig
from kdsl_fuse.kernels.rows_sharing import Traffic, shared_out, staged_by

bf16, f16 = ml_dtypes.bfloat16, np.float16
ULPS = {np.float32: 2.0**-19, f16: 2.0**-10, bf16: 2.0**-8}
SHAPES = [(1, 1), (3, 7), (5, 31), (2, 3, 64), (9, 100), (33, 128), (4, 1000), (3, 2048), (2, 4104)]
ringed = partial(RowConfig, clusters=2, partial=False)
CONFIGS = {
    "lane": RowConfig(1, 1, 8, groups=32, ragged=True),
    "part of a warp": RowConfig(8, 2, 3, groups=32, together=2),
    "warp": RowConfig(8, 32, 1, groups=4),
    "narrow": RowConfig(2, 16, 1, groups=4, together=3),
    "two warps": RowConfig(4, 64, 1, groups=2),
    "two warps, two rows": RowConfig(4, 64, 1, groups=2, together=2),
    "three warps": RowConfig(8, 96, 1, groups=2, early=False),
    "cluster": RowConfig(8, 32, 1, cluster=2),
    "cluster, two rows": RowConfig(8, 32, 1, together=2, cluster=2),
    "cluster of three warps": RowConfig(4, 96, 1, cluster=4),
    "streamed": RowConfig(8, 32, 1, streamed=True, load="evict_last", again="evict_first"),
    "streamed by a cluster": RowConfig(2, 32, 1, cluster=2, streamed=True),
    "staged": RowConfig(4, 32, 1, staged=2),
    "staged, the end apart": RowConfig(2, 32, 1, staged=4),
    "staged in part": RowConfig(4, 96, 1, staged=1),
    "staged by a cluster": RowConfig(4, 32, 1, cluster=2, staged=1, load="evict_last"),
    "staged by a cluster in turns": RowConfig(1, 32, 1, cluster=4, staged=2),
    "staged and kept": RowConfig(4, 32, 1, staged=1, kept=1),
    "staged and kept by a cluster": RowConfig(2, 32, 1, cluster=2, staged=1, kept=1, resident=2),
    "staged and kept by a cluster of three": RowConfig(2, 32, 1, cluster=3, staged=1, kept=1),
    "staged, operands late": RowConfig(4, 32, 1, staged=2, early=False),
    "hints": RowConfig(8, 32, 1, groups=2, load="cs", store="cs"),
    "ring": ringed(4, 64, 1, staged=1, ring=2),
    "ring, two groups": ringed(4, 32, 1, groups=2, staged=2, ring=3, load="cs"),
    "ring, no stage to spare": ringed(2, 32, 1, groups=3, staged=4, ring=4, early=False),
    "ring of a cluster": ringed(4, 32, 1, cluster=2, staged=1, ring=2, resident=2),
    "ring of a cluster, two groups": ringed(1, 32, 1, groups=2, cluster=4, staged=2, ring=3),
}
CONFIG_COLUMNS = {"lane": 8, "part of a warp": 40, "narrow": 32}


def numbers(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> Array:
    """Random numbers around 0."""
    return (3 * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def columns_of(name: str) -> int:
    """Columns that a named configuration holds, the last vector not whole in use by all threads."""
    return CONFIG_COLUMNS.get(name, 200)


# -- every way to share rows -----------------------------------------------------------------------
@pytest.mark.parametrize("name, online", combined([*CONFIGS], [False, True], together=1))
def test_softmax_by_each_configuration(name: str, online: bool) -> None:
    """f32 rows in any grouping of threads, with both ways to sum; in any order the same bits."""
    x = numbers((7, columns_of(name)))
    program = row_programs.softmax(fast=False, online=online)
    results = []
    for order in ("linear", "shuffle"):
        y = np.empty_like(x)
        simulated(program, y, x, config=CONFIGS[name], order=order)
        results.append(y)
    np.testing.assert_allclose(results[0], softmax(x), rtol=ULPS[np.float32])
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("online", [False, True], ids=["two phases", "one phase"])
@pytest.mark.parametrize("name", CONFIGS)
def test_layer_norm_by_each_configuration(name: str, online: bool) -> None:
    """Two inputs, two operands of the columns, two outputs."""
    x, residual = (numbers((7, columns_of(name)), f16, seed) for seed in (1, 2))
    weight, bias = (numbers(x.shape[1:], f16, seed) for seed in (3, 4))
    y, total = np.empty_like(x), np.empty_like(x)
    program = row_programs.norm(
        1e-5, centred=True, bias=True, residual=True, total=True, online=online
    )
    simulated(program, y, total, x, residual, weight, bias, config=CONFIGS[name])
    exact = x.astype(np.float64) + residual
    np.testing.assert_allclose(total, exact, rtol=ULPS[f16])
    expected = normalised(exact, 1e-5, True) * weight + bias
    np.testing.assert_allclose(y, expected, rtol=ULPS[f16], atol=1e-3)


@pytest.mark.parametrize("online", [False, True], ids=["two phases", "one phase"])
@pytest.mark.parametrize("level", [0.0, 1e4, -3e6])
def test_moments_of_rows_far_from_zero(level: float, online: bool) -> None:
    """Deviations are from the mean, whatever the level; in one phase equal values have none."""
    x = numbers((7, columns_of("staged"))) + np.float32(level)
    x[0, 0] += 100 * abs(level)
    x[1] = level + 0.25
    y = np.empty_like(x)
    program = row_programs.norm(1e-5, centred=True, weight=False, online=online)
    simulated(program, y, x, config=CONFIGS["staged"])
    errors = np.abs(y - normalised(x, 1e-5, True))[[0, *range(2, 7)]]
    assert errors.max() < 1e-5 + np.spacing(np.float32(abs(level)))
    assert not online or not y[1].any()


@pytest.mark.parametrize("name", CONFIGS)
def test_cross_entropy_by_each_configuration(name: str) -> None:
    """Losses of rows whose labels are first, last, within, or ignored."""
    x = numbers((7, columns_of(name)))
    labels = np.array([0, x.shape[1] - 1, 3, -1, 5, -1, 1])
    losses = np.empty(7, np.float32)
    program = row_programs.cross_entropy(fast=False, ignore_index=-1)
    simulated(program, losses, x, labels, config=CONFIGS[name])
    exact = -np.take_along_axis(log_softmax(x), np.maximum(labels, 0)[:, None], 1)[:, 0]
    np.testing.assert_allclose(losses, np.where(labels == -1, 0, exact), rtol=2e-6, atol=1e-6)


# -- what the plans choose -------------------------------------------------------------------------
@pytest.mark.parametrize(
    "shape, dtype", combined(SHAPES, {"f32": np.float32, "f16": f16, "bf16": bf16}, together=1)
)
def test_operators(shape: tuple[int, ...], dtype: Any) -> None:
    """Softmax, its logarithm and the norms, for lengths that no vector divides as well."""
    x, weight = numbers(shape, dtype), numbers(shape[-1:], dtype, 1)
    y = np.empty_like(x)
    rtol = ULPS[dtype]
    row_ops.softmax(x, y)
    np.testing.assert_allclose(y.astype(np.float64), softmax(x), rtol=rtol, atol=1e-7)
    row_ops.log_softmax(x, y)
    np.testing.assert_allclose(y.astype(np.float64), log_softmax(x), rtol=rtol, atol=1e-6)
    row_ops.rms_norm(x, y, weight, eps=1e-6)
    exact = normalised(x, 1e-6, False) * weight.astype(np.float64)
    np.testing.assert_allclose(y.astype(np.float64), exact, rtol=rtol, atol=1e-7)
    row_ops.layer_norm(x, y)
    exact = normalised(x, 1e-5, True)
    np.testing.assert_allclose(y.astype(np.float64), exact, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", row_programs.REDUCTIONS)
def test_reductions(shape: tuple[int, ...], name: str) -> None:
    """One number a row; those of small integers exactly."""
    x = numbers(shape) if name != "prod" else 1 + numbers(shape) / 100
    y = np.empty(shape[:-1], np.float32)
    row_ops.reduce_rows(name, x, y)
    exact = getattr(np, name)(x.astype(np.float64), axis=-1)
    np.testing.assert_allclose(y, exact, rtol=1e-5, atol=1e-5)
    whole = np.random.default_rng(0).integers(-2, 3, shape).astype(np.int8)
    found = np.empty(shape[:-1], np.float32 if name == "mean" else np.int32)
    row_ops.reduce_rows(name, whole, found)
    expected = getattr(np, name)(whole.astype(np.int32), axis=-1).astype(found.dtype)
    if name == "prod":
        expected = np.prod(whole.astype(np.int32), axis=-1, dtype=np.int32)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_wide_numbers(dtype: Any) -> None:
    """f64 and i64 are computed as they are."""
    x = np.arange(3 * 77).reshape(3, 77).astype(dtype) * 2**33
    y = np.empty(3, dtype)
    for name in ("sum", "max", "min"):
        row_ops.reduce_rows(name, x, y)
        np.testing.assert_array_equal(y, getattr(np, name)(x, axis=-1))


@pytest.mark.parametrize("columns", [140_000, 140_001])
def test_long_rows(columns: int) -> None:
    """Rows beyond what a cluster holds are staged, or streamed where no copy can take them."""
    x = numbers((1, columns), bf16)
    y, labels, losses = np.empty_like(x), np.array([77]), np.empty(1, np.float32)
    config = row_ops.softmax_plan(x, y).config
    assert (config.staged > 0, config.streamed) == (columns % 8 == 0, columns % 8 != 0)
    row_ops.softmax(x, y)
    np.testing.assert_allclose(y.astype(np.float64), softmax(x), rtol=ULPS[bf16])
    row_ops.cross_entropy(x, labels, losses)
    np.testing.assert_allclose(losses[0], -log_softmax(x)[0, 77], rtol=1e-6)


def test_strided_rows() -> None:
    """Rows of a part of a matrix, of a transposed one, and of axes that do not join."""
    part = numbers((6, 80))[:, 8:72]
    turned = numbers((64, 6)).T
    apart = numbers((4, 3, 64)).transpose(1, 0, 2)
    for x in (part, turned, apart):
        y = np.empty(x.shape, np.float32)
        row_ops.softmax(x, y)
        np.testing.assert_allclose(y, softmax(x), rtol=ULPS[np.float32])
        out = np.empty(x.shape[:-1], np.float32)
        row_ops.reduce_rows("max", x, out)
        np.testing.assert_array_equal(out, x.max(-1))
    target = np.empty((3, 4, 64), np.float32).transpose(1, 0, 2)
    row_ops.softmax(numbers((4, 3, 64)), target)
    np.testing.assert_allclose(target, softmax(numbers((4, 3, 64))), rtol=ULPS[np.float32])


def test_rows_of_axes_that_do_not_join() -> None:
    """Copied from where they lie, or held; one row for all of the second input."""
    x, shared = numbers((4, 3, 200)).transpose(1, 0, 2), numbers((200,), np.float32, 1)
    y = np.empty(x.shape, np.float32)
    program = row_programs.norm(1e-5, centred=False, weight=False, residual=True)
    for config in (RowConfig(4, 32, 1, staged=2), RowConfig(4, 32, 2, groups=5)):
        simulated(program, y, x, shared, config=config)
        exact = normalised(x + shared, 1e-5, False)
        np.testing.assert_allclose(y, exact, rtol=1e-5, atol=1e-6)


def test_nothing_to_do() -> None:
    """No rows: no launch. No columns: sums of nothing."""
    row_ops.softmax(np.empty((0, 5), np.float32), np.empty((0, 5), np.float32))
    row_ops.softmax(np.empty((5, 0), np.float32), np.empty((5, 0), np.float32))
    y = np.full(3, 7, np.float32)
    row_ops.reduce_rows("sum", np.empty((3, 0), np.float32), y)
    np.testing.assert_array_equal(y, 0)
    row_ops.reduce_rows("prod", np.empty((3, 0), np.float32), y)
    np.testing.assert_array_equal(y, 1)


def test_special_values() -> None:
    """NaN goes through; −∞ has probability 0; a row of nothing but −∞ is NaN, as elsewhere."""
    x = numbers((4, 40))
    x[0, 3], x[1, 5], x[2] = np.nan, -np.inf, -np.inf
    for online in (False, True):
        y = np.empty_like(x)
        simulated(row_programs.softmax(fast=True, online=online), y, x)
        assert np.isnan(y[[0, 2]]).all()
        np.testing.assert_allclose(y[[1, 3]], softmax(x[[1, 3]]), rtol=1e-5)
    top = np.empty(4, np.float32)
    row_ops.reduce_rows("max", x, top)
    np.testing.assert_array_equal(top, x.max(-1))


def test_large_values_are_shifted() -> None:
    """Fast powers of values around ±3000 are as good as those around 0."""
    x = numbers((2, 64), bf16) + np.array([[3000], [-3000]], bf16)
    y = np.empty(x.shape, np.float32)
    for online in (False, True):
        simulated(row_programs.softmax(fast=True, online=online), y, x)
        np.testing.assert_allclose(y, softmax(x), rtol=2e-5)


# -- traffic ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("columns", [64, 128, 256, 1024, 2048, 8192, 16384, 32768])
def test_traffic(columns: int) -> None:
    """Whole sectors, each once, no bank conflicts, and 16 bytes for each request of a lane."""
    x = numbers((max(16384 // columns, 2), columns), bf16)
    y = np.empty_like(x)
    profile = simulated(row_programs.softmax(fast=True), y, x)
    assert profile.sector_efficiency == 1
    assert profile.bank_conflicts == 0
    assert profile.totals["global_load_sectors"] == x.nbytes / 32
    assert profile.totals["global_store_sectors"] == x.nbytes / 32
    assert profile.totals["requests"] == 2 * x.nbytes / (32 * 16)


def test_weights_cost_no_extra_sectors_of_rows() -> None:
    """The norm with a residual reads and writes each row once; weights come besides."""
    x = numbers((4, 4096), bf16)
    weight = numbers((4096,), bf16)
    y, total = np.empty_like(x), np.empty_like(x)
    program = row_programs.norm(1e-6, centred=False, residual=True, total=True)
    profile = simulated(program, y, total, x, x.copy(), weight)
    assert profile.sector_efficiency == 1
    weights = 4 * weight.nbytes
    assert profile.totals["global_load_sectors"] == (2 * x.nbytes + weights) / 32


@pytest.mark.parametrize("cluster", [1, 4])
def test_traffic_of_staged_rows(cluster: int) -> None:
    """The copy engine reads each row once; results go out by whole sectors, without conflicts."""
    x = numbers((2, 32768), bf16)
    y = np.empty_like(x)
    config = staged_by(RowConfig(8, 512, 2, cluster=cluster), x.shape[1], 2, 3)
    for online in (False, True):
        program = row_programs.softmax(fast=True, online=online)
        profile = simulated(program, y, x, config=config)
        assert profile.totals["global_load_sectors"] == 0
        assert profile.totals["global_store_sectors"] == x.nbytes / 32
        assert profile.bank_conflicts == 0
        np.testing.assert_allclose(y.astype(np.float64), softmax(x), rtol=ULPS[bf16])


@pytest.mark.parametrize("name", ["two warps, two rows", "cluster, two rows"])
def test_rows_taken_together_share_weights(name: str) -> None:
    """Weights and biases are read once for all of them."""
    config = CONFIGS[name]
    x = numbers((2 * config.rows, config.columns), bf16)
    weight, bias = (numbers(x.shape[1:], bf16, seed) for seed in (1, 2))
    y, program = np.empty_like(x), row_programs.norm(1e-5, centred=True, bias=True)
    profile = simulated(program, y, x, weight, bias, config=config)
    weights = 2 * weight.nbytes * len(x) // config.together
    assert profile.totals["global_load_sectors"] == (x.nbytes + weights) / 32


# -- choices ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("height", [1, 100, 1 << 16])
@pytest.mark.parametrize("staged", [0, 2])
def test_every_length_is_covered(width: int, height: int, staged: int) -> None:
    """All columns have a thread, blocks are whole warps of at most 1024 threads."""
    for columns in [*range(width, 3000, 7 * width), *(2**i * width for i in range(10, 18))]:
        columns -= columns % width
        config = shared_out(height, columns, Traffic(width, 4, staged=staged))
        turns = max(config.staged + config.kept, 1)
        assert config.threads % 32 == 0
        assert config.threads <= 1024
        assert config.streamed or turns * config.columns >= columns
        assert config.ragged or turns * config.columns == columns
        spare = turns * config.columns - columns
        assert spare < turns * config.columns / config.vectors or config.lanes == 1
        assert config.staged * config.chunk * staged <= 226 << 10


@pytest.mark.parametrize("size", [2, 4])
def test_norms_share_rows_among_more_threads(size: int) -> None:
    """Threads that would be filled hold half; those of many rows read much for two at once."""

    def shared(height: int, columns: int, later: int) -> tuple[int, int, int]:
        width = 16 // size
        config = shared_out(height, columns, Traffic(width, size, later, written=size))
        assert config.lanes * config.vectors * width >= columns
        return config.lanes, config.groups, config.together

    for columns, lanes in {256: 16, 512: 32, 1024: 64, 2048: 128, 4096: 256}.items():
        groups = max(128 // lanes, 1)
        assert shared(1 << 16, columns, 0)[0] == lanes // 2
        assert shared(1 << 16, columns, size) == (lanes, groups, 1)
        pairs = lanes > 32
        assert shared(1 << 16, columns, 2 * size) == (lanes, -(-groups // (1 + pairs)), 1 + pairs)
        assert shared(1 << 11, columns, 2 * size)[2] == 1
    assert shared(1 << 16, 768, 2 * size) == (32, 4, 1)
    assert shared(1 << 16, 1000, 2 * size) == (32, 4, 1)


def test_few_rows_are_spread() -> None:
    """A few long rows go to several blocks each, many to one each."""
    assert shared_out(16, 16384, Traffic(8, 4)).cluster == 8
    assert shared_out(4096, 16384, Traffic(8, 4)).cluster == 1
    assert shared_out(4096, 131072, Traffic(8, 4)).cluster == 8
    assert not shared_out(16, 131072, Traffic(8, 4, staged=2)).staged


def test_caches_keep_what_is_read_where_results_do_not_fit() -> None:
    """Where L2 can hold the results, and where there are none, nothing is said of it."""
    traffic = Traffic(8, 2, written=2)
    for columns, again in {8192: "", 1 << 20: "evict_first"}.items():
        many = shared_out((1 << 27) // columns, columns, traffic)
        assert (many.load, many.again, many.store) == ("evict_last", again, "cs")
        assert many.streamed == bool(again)
        few = shared_out((1 << 24) // columns, columns, traffic)
        without = shared_out((1 << 27) // columns, columns, Traffic(8, 2))
        assert {x.load + x.again + x.store for x in (few, without)} == {""}


@pytest.mark.parametrize("columns", [16384, 32768, 50304, 65536, 262144])
@pytest.mark.parametrize("column_bytes", [2, 4])
def test_blocks_with_long_rows_share_a_multiprocessor(columns: int, column_bytes: int) -> None:
    """Three of one input, two of several, some of these in registers, or as many as fit."""
    width = 8
    config = shared_out(4096, columns, Traffic(width, 4, staged=column_bytes))
    part = config.staged * config.chunk * column_bytes
    assert config.staged
    assert (config.resident or 3) * (part + 1536) <= 228 << 10
    assert config.resident in (0, 2)
    assert config.kept * config.vectors * width * column_bytes <= 64
    assert config.kept == 0 or column_bytes * width > 16
    assert config.threads <= 512
    shared = columns * column_bytes / config.cluster
    assert config.cluster == 1 or 2 * shared > (128 if column_bytes * width > 16 else 72) << 10


@pytest.mark.parametrize(
    "columns, cluster, kept", [(65544, 3, 2), (98304, 5, 1), (131072, 6, 2), (184320, 8, 2)]
)
def test_several_inputs_of_very_long_rows(columns: int, cluster: int, kept: int) -> None:
    """Three blocks share a multiprocessor, in clusters no larger than registers allow."""
    config = shared_out(4096, columns, Traffic(8, 4, 4, staged=4))
    assert (config.cluster, config.kept, config.resident) == (cluster, kept, 3)
    assert (config.lanes, config.vectors, config.early) == (320, 1, True)
    assert 3 * (config.staged * config.chunk * 4 + 1536) <= 228 << 10


@pytest.mark.parametrize("later", [0, 2, 4])
@pytest.mark.parametrize("columns", [32768, 50304, 65536, 128256, 131072, 262144])
def test_very_long_rows_go_through_rings(columns: int, later: int) -> None:
    """Instead of more than two blocks, or of several where much comes behind the reductions."""
    config = shared_out(4096, columns, Traffic(8, 2, later, staged=2))
    least = 36864 if later == 4 else 73728
    assert (config.ring > 0) == (least < columns <= 131072)
    few = shared_out(128, columns, Traffic(8, 2, later, staged=2))
    assert not few.ring
    if config.ring:
        assert config.cluster == -(-columns // 65536)
        assert config.ring > config.staged
        assert (config.ring * config.chunk * 2 + 1280) <= 228 << 10
        assert config.clusters % (132 // config.cluster) == 0


@pytest.mark.parametrize("columns", [16384, 32768, 65536, 131072])
def test_rows_that_are_read_once_are_streamed(columns: int) -> None:
    """Sums of long rows, losses of very long ones: by one block each; rows with results are not."""
    x = kd.spec("bf16", (4096, columns))
    number, labels = kd.spec("f32", (4096,)), kd.spec("i64", (4096,))
    total = rows_plan.choose(row_programs.reduction("sum"), number, x)
    loss = row_ops.cross_entropy_plan(x, labels, number, -100)
    assert (total.config.streamed, total.config.cluster) == (True, 1)
    assert loss.config.streamed == (columns > 32768)
    assert len(loss.program.phases) == 1
    assert row_ops.softmax_plan(x, x).config.staged


@pytest.mark.parametrize("columns", [16384, 65536])
def test_streamed_totals(columns: int) -> None:
    """Sums, extremes and losses of as many rows as plans stream, three of them in the simulator."""
    x = numbers((3, columns), bf16)
    y, labels, many = np.empty(3, np.float32), np.array([0, columns - 1, 5]), (4096, columns)
    spec, number = kd.spec("bf16", many), kd.spec("f32", many[:1])
    for name in ("sum", "max"):
        program = row_programs.reduction(name)
        simulated(program, y, x, config=rows_plan.choose(program, number, spec).config)
        exact = getattr(np, name)(x.astype(np.float64), -1)
        np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-3)
    plan = row_ops.cross_entropy_plan(spec, kd.spec("i64", many[:1]), number, -100)
    simulated(plan.program, y, x, labels, config=plan.config)
    losses = -np.take_along_axis(log_softmax(x), labels[:, None], 1)[:, 0]
    np.testing.assert_allclose(y, losses, rtol=1e-5)


def test_rows_of_two_inputs_are_kept_in_part() -> None:
    """The plan of many long rows with a residual, one row of it in the simulator."""
    columns = 32768
    x, residual = (numbers((1, columns), bf16, seed) for seed in (1, 2))
    weight, bias = (numbers((columns,), bf16, seed) for seed in (3, 4))
    y, total = np.empty_like(x), np.empty_like(x)
    program = row_programs.norm(
        1e-5, centred=True, bias=True, residual=True, total=True, online=True
    )
    many, line = kd.spec("bf16", (4096, columns)), kd.spec("bf16", (columns,))
    config = rows_plan.choose(program, many, many, many, many, line, line).config
    assert config.kept
    profile = simulated(program, y, total, x, residual, weight, bias, config=config)
    exact = x.astype(np.float64) + residual
    expected = normalised(exact, 1e-5, True) * weight.astype(np.float64) + bias
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=ULPS[bf16], atol=1e-2)
    np.testing.assert_allclose(total.astype(np.float64), exact, rtol=ULPS[bf16])
    assert profile.sector_efficiency == 1
    assert profile.bank_conflicts == 0


# -- bad input -------------------------------------------------------------------------------------
X, Y = np.zeros((4, 8), np.float32), np.zeros(4, np.float32)
BAD = [
    ("K944", lambda: row_ops.rms_norm(X, X.copy(), np.zeros(7, np.float32))),
    ("K945", lambda: row_ops.softmax(X, np.broadcast_to(X[:1], X.shape))),
    ("K947", lambda: row_ops.softmax(X, X[:, :4].copy())),
    ("K947", lambda: row_ops.reduce_rows("sum", X, X)),
    ("K947", lambda: row_ops.softmax(np.float32(1).reshape(()), np.empty((), np.float32))),
    ("K947", lambda: rows_plan.choose(row_programs.softmax(fast=True), X)),
    ("K948", lambda: row_ops.softmax([1.0], X)),
    ("K949", lambda: row_ops.cross_entropy(X, Y, Y)),
    ("K949", lambda: row_ops.cross_entropy(np.zeros((4, 0), np.float32), Y.astype(int), Y)),
    ("K950", lambda: row_ops.reduce_rows("median", X, Y)),
    ("K950", lambda: row_ops.reduce_rows("max", np.zeros((4, 0), np.float32), Y)),
]


@pytest.mark.parametrize(("code", "call"), BAD, ids=range(len(BAD)))
def test_bad_input(code: str, call: Any) -> None:
    """Each mistake has its code."""
    with pytest.raises(ArgumentError) as caught:
        call()
    assert caught.value.code == code


def test_a_label_that_is_no_column() -> None:
    """A device assert says so; memory beside the row is not read."""
    labels = np.array([0, 8, 1, -5])
    with pytest.raises(HazardError, match="a label must be a column") as caught:
        row_ops.cross_entropy(X, labels, Y.copy())
    assert caught.value.code == "K508"


def test_assembles_without_spilling() -> None:
    """Every shape of block is built for Hopper within a thread's share of its registers."""
    from kdsl_runtime.assemble import assemble

    for columns, height in ((128, 1 << 19), (1024, 1 << 16), (8192, 8192), (131072, 512)):
        spec = kd.spec("bf16", (height, columns))
        plan = row_ops.softmax_plan(spec, spec)
        module = rows_plan.rows.module(
            spec, spec, target="sm_90a", block=plan.config.threads, cluster=plan.cluster,
            **plan.statics,
        )  # fmt: skip
        report = assemble(module, "sm_90a").report
        assert report.spill_stores == report.spill_loads == 0
        blocks = plan.config.resident or 2  # that share a multiprocessor
        assert report.registers * plan.config.threads * blocks <= 65536


@pytest.mark.parametrize("columns", [16384, 65536, 131072])
def test_norms_of_long_rows_assemble_without_spilling(columns: int) -> None:
    """The operands of two turns, with one input or two, have room in a thread's registers."""
    from kdsl_runtime.assemble import assemble

    x, weight = kd.spec("bf16", (4096, columns)), kd.spec("bf16", (columns,))
    for centred, residual in ((False, False), (True, False), (True, True)):
        program = row_programs.norm(
            1e-5, centred=centred, bias=centred, residual=residual, total=residual, online=True
        )
        both = (x, x) if residual else (x,)
        operands = [*both, *both, weight, *([weight] if centred else [])]
        plan = rows_plan.choose(program, *operands)
        module = rows_plan.rows.module(
            *plan.described(operands), target="sm_90a", block=plan.config.threads,
            cluster=plan.cluster, **plan.statics,
        )  # fmt: skip
        report = assemble(module, "sm_90a").report
        assert report.spill_stores == report.spill_loads == 0
        blocks = plan.config.resident or 2
        assert report.registers * plan.config.threads * blocks <= 65536
        assert blocks * (module.shared_bytes + 1024) <= 228 << 10
