"""Rows through rings of shared memory: any number of them, for any number of blocks that stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from covering import combined
from fuse.row_runs import Array, log_softmax, normalised, simulated, softmax
from kdsl_core.errors import ArgumentError
from kdsl_fuse.kernels import row_programs, rows_plan
from kdsl_fuse.kernels.rows import RowConfig
from kdsl_fuse.kernels.rows_sharing import ringed_by

bf16 = ml_dtypes.bfloat16
CONFIGS = {
    "one group": RowConfig(8, 64, 2, early=False),
    "three groups": RowConfig(8, 32, 2, groups=3),
    "cluster": RowConfig(8, 64, 1, cluster=2, load="cs"),
    "cluster, two groups": RowConfig(8, 32, 1, groups=2, cluster=4),
}


def numbers(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Random numbers around 0."""
    return (3 * np.random.default_rng(seed).standard_normal(shape)).astype(bf16)


def through_a_ring(
    name: str, columns: int, clusters: int, inputs: int = 1, spare: int = 1
) -> RowConfig:
    """A named configuration whose rings have `spare` stages more than a row takes."""
    made = ringed_by(CONFIGS[name], columns, 2 * inputs, 1)
    assert made is not None
    return replace(made, clusters=clusters, ring=made.staged + spare)


# -- results ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name, rows, clusters, columns, spare",
    combined([*CONFIGS], [1, 2, 9, 14], [1, 3, 4], [8, 1024, 2048, 2504], [0, 1, 7], together=2),
)
def test_softmax_of_any_shape(
    name: str, rows: int, clusters: int, columns: int, spare: int
) -> None:
    """More and fewer rows than clusters, ends within a turn and within a block, long rings."""
    x = numbers((rows, columns))
    config = through_a_ring(name, columns, clusters, spare=spare)
    for online, order in ((True, "linear"), (False, "shuffle")):
        y, program = np.empty_like(x), row_programs.softmax(fast=True, online=online)
        simulated(program, y, x, config=config, order=order)
        np.testing.assert_allclose(y.astype(np.float64), softmax(x), rtol=2.0**-8)


@pytest.mark.parametrize("online", [False, True], ids=["two phases", "one phase"])
@pytest.mark.parametrize("name", CONFIGS)
def test_norm_of_a_sum(name: str, online: bool) -> None:
    """Two inputs in each stage, weights read a turn ahead or not, two outputs."""
    x, residual = (numbers((7, 2056), seed) for seed in (1, 2))
    weight, bias = (numbers((2056,), seed) for seed in (3, 4))
    y, total = np.empty_like(x), np.empty_like(x)
    program = row_programs.norm(
        1e-5, centred=True, bias=True, residual=True, total=True, online=online
    )
    config = through_a_ring(name, 2056, 2, inputs=2)
    simulated(program, y, total, x, residual, weight, bias, config=config)
    exact = x.astype(np.float64) + residual
    expected = normalised(exact, 1e-5, True) * weight.astype(np.float64) + bias
    np.testing.assert_allclose(total.astype(np.float64), exact, rtol=2.0**-8)
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=2.0**-8, atol=1e-2)


@pytest.mark.parametrize("online", [False, True], ids=["two phases", "one phase"])
@pytest.mark.parametrize("name", CONFIGS)
def test_losses(name: str, online: bool) -> None:
    """Nothing but a number is written: stages are free after the last phase."""
    x, losses = numbers((7, 1544)), np.empty(7, np.float32)
    labels = np.array([0, 1543, 3, -1, 5, -1, 1])
    program = row_programs.cross_entropy(fast=False, ignore_index=-1, online=online)
    simulated(program, losses, x, labels, config=through_a_ring(name, 1544, 2))
    exact = -np.take_along_axis(log_softmax(x), np.maximum(labels, 0)[:, None], 1)[:, 0]
    np.testing.assert_allclose(losses, np.where(labels == -1, 0, exact), rtol=2e-6, atol=1e-6)


def test_bits_of_staged_rows() -> None:
    """The same threads add up in the same order, whether blocks stay or not."""
    x = numbers((5, 2504))
    found = [np.empty_like(x) for _ in range(2)]
    ring = through_a_ring("cluster", 2504, 2)
    staged = replace(ring, ring=0, clusters=0)
    for y, config in zip(found, (ring, staged), strict=True):
        simulated(row_programs.softmax(fast=True), y, x, config=config)
    assert found[0].tobytes() == found[1].tobytes()


def test_rows_of_axes_that_do_not_join() -> None:
    """Copied from where they lie; one row for all of the second input."""
    x, shared = numbers((4, 3, 512)).transpose(1, 0, 2), numbers((512,), 1)
    y = np.empty(x.shape, bf16)
    program = row_programs.norm(1e-5, centred=False, weight=False, residual=True)
    simulated(program, y, x, shared, config=through_a_ring("three groups", 512, 2, inputs=2))
    exact = normalised(x.astype(np.float64) + shared.astype(np.float64), 1e-5, False)
    np.testing.assert_allclose(y.astype(np.float64), exact, rtol=2.0**-7, atol=1e-3)


# -- traffic, registers ----------------------------------------------------------------------------
@pytest.mark.parametrize("cluster, groups", [(1, 1), (2, 2), (4, 1)])
def test_traffic(cluster: int, groups: int) -> None:
    """The copy engine reads each row once; results go out by whole sectors, without conflicts."""
    x = numbers((5, 16384))
    y = np.empty_like(x)
    config = ringed_by(RowConfig(8, 256, 2, groups=groups, cluster=cluster), x.shape[1], 2, 1)
    assert config is not None
    for online in (False, True):
        program = row_programs.softmax(fast=True, online=online)
        profile = simulated(program, y, x, config=replace(config, clusters=2))
        assert profile.totals["global_load_sectors"] == 0
        assert profile.totals["global_store_sectors"] == x.nbytes / 32
        assert profile.bank_conflicts == 0
        np.testing.assert_allclose(y.astype(np.float64), softmax(x), rtol=2.0**-8)


LONG = [  # columns, cluster, lanes, vectors, groups, blocks that share a multiprocessor
    (65536, 1, 512, 2, 1, 1), (65536, 2, 256, 2, 2, 1), (131072, 2, 512, 2, 1, 1),
    (131072, 2, 256, 4, 1, 1), (131072, 4, 256, 2, 3, 1), (131072, 4, 512, 1, 1, 2),
    (128256, 2, 512, 2, 1, 1), (128256, 4, 256, 2, 2, 1),
]  # fmt: skip


@pytest.mark.parametrize("columns, cluster, lanes, vectors, groups, resident", LONG)
def test_assembles_without_spilling(
    columns: int, cluster: int, lanes: int, vectors: int, groups: int, resident: int
) -> None:
    """Softmax, RMSNorm and LayerNorm of long rows fit in registers and shared memory."""
    from kdsl_runtime.assemble import assemble

    x, weight = kd.spec("bf16", (8192, columns)), kd.spec("bf16", (columns,))
    shape = RowConfig(8, lanes, vectors, groups=groups, cluster=cluster)
    config = ringed_by(shape, columns, 2, resident)
    assert config is not None
    for program, operands in (
        (row_programs.softmax(fast=True, online=True), (x, x)),
        (row_programs.norm(1e-5, centred=False), (x, x, weight)),
        (row_programs.norm(1e-5, centred=True, bias=True, online=True), (x, x, weight, weight)),
    ):
        plan = replace(rows_plan.choose(program, *operands), config=config)
        module = rows_plan.rows.module(
            *plan.described(operands), target="sm_90a", block=config.threads,
            cluster=plan.cluster, **plan.statics,
        )  # fmt: skip
        report = assemble(module, "sm_90a").report
        assert report.spill_stores == report.spill_loads == 0
        threads = -(-config.threads // 128) * 128
        assert report.registers * threads * resident <= 65536
        assert resident * (module.shared_bytes + 1024) <= 228 << 10
        assert plan.grid == config.clusters * cluster <= 132 * resident


# -- what fits -------------------------------------------------------------------------------------
def test_rings_fill_shared_memory() -> None:
    """None without room for a row, or for the copying warp."""
    config = ringed_by(RowConfig(8, 512, 2, cluster=2), 131072, 2, 1)
    assert config is not None
    assert (config.staged, config.ring, config.clusters, config.threads) == (8, 14, 66, 544)
    assert ringed_by(RowConfig(8, 512, 2), 131072, 2, 1) is None
    assert ringed_by(RowConfig(8, 512, 2, cluster=2), 131072, 2, 2) is None
    assert ringed_by(RowConfig(8, 512, 1, groups=2, cluster=4), 65536, 2, 1) is None


def test_no_more_clusters_than_rows() -> None:
    """The grid follows from the rows where they are few."""
    config = through_a_ring("cluster", 2048, 66)
    assert [config.grid(height) for height in (1, 65, 66, 1000)] == [2, 130, 132, 132]


@pytest.mark.parametrize(
    "change",
    [{"ring": 1}, {"staged": 0}, {"kept": 1}, {"together": 2}, {"lanes": 16}, {"clusters": 0},
     {"partial": True}],
    ids=str,
)  # fmt: skip
def test_rings_that_cannot_be(change: dict[str, Any]) -> None:
    """A ring without room for a row would never be filled."""
    with pytest.raises(ArgumentError, match="ring of a group holds all staged turns") as caught:
        replace(through_a_ring("one group", 4096, 2), **change)
    assert caught.value.code == "K937"
