"""Grouped convolutions in the simulator, with all checks: widths, windows, edges, tails, plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from covering import combined
from fuse.grouped_runs import BF16, Images, assert_close, exact, operands, simulated
from kdsl_fuse.kernels import conv_grouped_table as table
from kdsl_fuse.kernels.conv_grouped_config import GroupedConfig
from kdsl_fuse.kernels.conv_grouped_plan import (
    GroupedPlan,
    candidates,
    choose,
    conv_grouped,
    problem_of,
    stageable,
)
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.gemm_sm90_plan import DEVICE

COPIES = ("tma", "cp.async")
SMALL = GroupedConfig((3, 3), (8, 8), padding=(1, 1), rows=2, columns=16, steps=3, stages=4)
IMAGES = Images(2, 9, 14, 8)


@pytest.mark.parametrize(
    "width, paired, copies", combined((4, 8, 16, 32, 64), ("rows", "columns", "images"), COPIES)
)
def test_widths(width: int, paired: str, copies: str) -> None:
    """Groups of every width, two of them in one matrix or several matrices for one.

    Images in pairs leave one over.
    """
    octets = {16: 2, 32: 2}.get(width, 1)
    config = replace(
        SMALL, group=(width, width), paired=paired, copies=copies, octets=octets, warps=8
    )
    simulated(config, Images(3 if paired == "images" else 1, 9, 14, 64 // width))


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize(
    "group, line, octets",
    (((8, 16), 64, 2), ((8, 4), 64, 1), ((4, 8), 32, 1), ((16, 32), 16, 4), ((32, 16), 32, 2),
     ((2, 4), 64, 2)),
)  # fmt: skip
def test_filters(group: tuple[int, int], line: int, octets: int, copies: str) -> None:
    """More filters than channels in a group, and fewer."""
    config = replace(SMALL, group=group, line=line, octets=octets, copies=copies, buffers=8)
    config = replace(config, warps=config.parts, buffers=SMALL.buffers)  # one team
    simulated(config, Images(1, 5, 14, 128 // group[0]))


WINDOWS: dict[str, dict[str, Any]] = {
    "1x1": {"kernel": (1, 1), "padding": (0, 0)},
    "1x1, stride 2": {"kernel": (1, 1), "padding": (0, 0), "stride": (2, 2), "columns": 8},
    "stride 2": {"stride": (2, 2), "columns": 8},
    "stride 2 down": {"stride": (2, 1)},
    "stride 3 across": {"stride": (1, 3), "columns": 8},
    "dilation": {"dilation": (2, 2), "padding": (2, 2), "stages": 5},
    "dilation and stride": {
        "dilation": (2, 3), "padding": (2, 3), "stride": (2, 2), "columns": 8, "stages": 5,
    },
    "no padding": {"padding": (0, 0)},
    "much padding": {"padding": (3, 4), "columns": 24, "steps": 7},
    "wide": {"kernel": (1, 7), "padding": (0, 3)},
    "high": {"kernel": (5, 1), "padding": (2, 0), "stages": 5},
    "2x2": {"kernel": (2, 2), "padding": (0, 1)},
    "7x7": {"kernel": (7, 7), "padding": (3, 3), "stages": 6},
}  # fmt: skip


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str, copies: str) -> None:
    """Kernels, strides, dilations and paddings; no access of shared memory has a conflict."""
    run = simulated(replace(SMALL, copies=copies, **WINDOWS[name]), Images(1, 9, 15, 8))
    assert run.profile.bank_conflicts == 0


SCHEDULES: dict[str, dict[str, Any]] = {
    "one step": {"rows": 10, "steps": 1, "stages": 2},
    "high steps": {"rows": 4},
    "all down": {"steps": 5},
    "many stages": {"stages": 9},
    "one buffer": {"buffers": 1},
    "three buffers": {"buffers": 3},
    "two teams": {"warps": 16},
    "three teams of two": {"line": 16, "warps": 6, "stages": 5, "buffers": 4},
    "strips together": {"columns": 40, "together": 2},
    "all strips together": {"columns": 24, "together": 3, "warps": 16},
    "narrow tiles": {"columns": 8},
    "narrow lines": {"line": 16, "warps": 2},
    "half lines": {"line": 32, "warps": 4},
    "shared weights": {"weights": "shared"},
    "shared weights of two": {"weights": "shared", "octets": 2, "group": (16, 16)},
    "two octets apart": {"octets": 2, "warps": 4},
    "three octets": {"octets": 3, "warps": 8, "group": (8, 24), "line": 64},
    "registers for two": {"blocks_per_sm": 2},
    "images by two": {"paired": "images", "rows": 3, "stages": 5},
    "small images by two": {"paired": "images", "rows": 9, "steps": 1, "stages": 2, "warps": 16},
}


@pytest.mark.parametrize("name, copies", combined([*SCHEDULES], COPIES, together=1))
def test_schedules(name: str, copies: str) -> None:
    """Every way to cut the work, several items for each block, without conflicts."""
    config = replace(SMALL, copies=copies, **SCHEDULES[name])
    run = simulated(config, replace(IMAGES, groups=128 // config.group[0]), blocks=2)
    assert run.profile.bank_conflicts == 0


@pytest.mark.parametrize("copies", COPIES)
def test_order(copies: str) -> None:
    """Blocks and warps in another order give the same bits."""
    for seed in range(3):
        simulated(replace(SMALL, copies=copies), IMAGES, order="shuffle", seed=seed)


def test_ragged_channels() -> None:
    """Channels that end inside of a line, and in f16."""
    for groups in (1, 5, 9):
        simulated(SMALL, Images(1, 5, 14, groups), dtype=np.float16)


def relu(acc: Any, bias: Any, residual: Any) -> Any:
    """Bias, residual, ReLU."""
    return kd.maximum(acc + bias.to(kd.f32) + residual.to(kd.f32), 0.0)


@pytest.mark.parametrize("paired", ("rows", "columns", "images"))
@pytest.mark.parametrize(
    "copies, staged, buffers",
    (("tma", None, 2), ("tma", 1, 2), ("tma", 1, 3), ("tma", 1, 4), ("cp.async", None, 2)),
)
def test_tails(copies: str, staged: int | None, buffers: int, paired: str) -> None:
    """A tail of an operand for each filter and one of the result's shape, staged or not."""
    rng = np.random.default_rng(1)
    bias = rng.standard_normal(64).astype(np.float32)
    residual = rng.standard_normal((2, 9, 14, 64)).astype(BF16)
    simulated(
        replace(SMALL, paired=paired, copies=copies, staged=staged, buffers=buffers),
        IMAGES, bias, residual, epilogue=relu,
        tail=lambda y: np.maximum(y + bias + residual.astype(np.float64), 0.0),
    )  # fmt: skip


def test_tail_by_pixel() -> None:
    """An operand for each pixel, alike for all filters, and a number."""
    scale = np.random.default_rng(1).standard_normal((2, 9, 14, 1)).astype(np.float32)
    simulated(
        SMALL, IMAGES, scale, np.float32([3.0]), epilogue=lambda acc, s, t: acc * s + t,
        tail=lambda y: y * scale + 3.0,
    )  # fmt: skip


# -- plans -------------------------------------------------------------------------------------
PROBLEMS = [
    ConvProblem(256, 56, 56, 128, 128, (3, 3), (1, 1), (1, 1), groups=32),
    ConvProblem(256, 28, 28, 256, 256, (3, 3), (1, 1), (1, 1), groups=32),
    ConvProblem(256, 14, 14, 512, 512, (3, 3), (1, 1), (1, 1), groups=32),
    ConvProblem(256, 7, 7, 1024, 1024, (3, 3), (1, 1), (1, 1), groups=32),
    ConvProblem(64, 56, 56, 256, 256, (3, 3), (1, 1), (1, 1), groups=32),
    ConvProblem(64, 56, 56, 64, 64, (3, 3), (1, 1), (1, 1), groups=2),
    ConvProblem(32, 56, 56, 256, 256, (3, 3), (2, 2), (1, 1), groups=32),
    ConvProblem(8, 100, 300, 48, 96, (5, 5), (1, 1), (2, 2), groups=6),
    ConvProblem(8, 30, 30, 64, 64, (7, 7), (1, 1), (3, 3), groups=2),
]


@pytest.mark.parametrize("problem, target", combined(PROBLEMS, ("sm_80", "sm_90a"), together=1))
def test_plans_fit(problem: ConvProblem, target: str) -> None:
    """Every candidate, and the chosen plan, covers the result and fits a multiprocessor."""
    limit = kd.target_of(target).shared_bytes
    found = candidates(problem, kd.target_of(target))
    measured = table.TABLE.find(DEVICE, problem) is not None and target == "sm_90a"
    assert measured or found[0] == choose(problem, target=target)
    for plan in [choose(problem, target=target), *found]:
        c, (rows, columns) = plan.config, problem.output
        assert c.shared_bytes * c.blocks_per_sm <= limit
        assert c.registers_wanted <= c.registers_allowed
        items = -(-problem.batch // c.images) * -(-columns // c.columns)
        items *= -(-rows // (c.rows * c.steps))
        assert plan.items == items and 1 <= plan.grid // plan.chunks <= items
        assert plan.grid % plan.chunks == 0


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_words(problem: ConvProblem) -> None:
    """A plan's words say all of it, and so does what tables and the tuner have of it."""
    for plan in candidates(problem, kd.target_of("sm_90a"))[::7]:
        assert table.parse(str(plan), problem) == plan.config
        assert table.configured(problem, **table.TABLE.options_of(plan.config)) == plan.config


def test_chosen_plan() -> None:
    """What is chosen for small images runs on all multiprocessors of a small chip."""
    problem = ConvProblem(3, 11, 13, 64, 64, (3, 3), (1, 1), (1, 1), groups=8)
    plan = choose(problem, multiprocessors=4)
    x, w = operands(plan.config, Images(3, 11, 13, 8))
    want = exact(plan.config, x, w)
    y = np.full(want.shape, np.nan, BF16)
    plan.run(x, w, y)
    assert_close(y, want, float(np.abs(want).max()))
    assert str(plan).startswith(f"{plan.config.rows}x16x{plan.config.line} ")


def plus(acc: Any, bias: Any) -> Any:
    """Adds a bias."""
    return acc + bias


def test_function() -> None:
    """The function of arrays: output made or given, strides by one number, operands broadcast."""
    config = replace(SMALL, stride=(2, 2))
    x, w = operands(config, Images(1, 9, 14, 8))
    bias = np.linspace(-1, 1, 64, dtype=np.float32)
    want = exact(config, x, w)
    scale = float(np.abs(want).max())
    assert_close(conv_grouped(x, w, groups=8, stride=2, padding=1), want, scale)
    out = np.full(want.shape, np.nan, BF16)
    same = conv_grouped(x, w, out, bias, groups=8, stride=2, padding=(1, 1), epilogue=plus)
    assert same is out
    assert_close(out, want + bias, scale)
    by_words = conv_grouped(x, w, groups=8, stride=2, padding=1, target="sm_80")
    assert_close(by_words, want, scale)
    residual = np.ones(want.shape, BF16)
    assert stageable(out, [bias, residual]) == 1 and stageable(out, [bias]) is None
    more = conv_grouped(x, w, None, bias, residual, groups=8, stride=2, padding=1, epilogue=relu)
    assert_close(more, np.maximum(want + bias + 1, 0), scale)


# -- refusals ----------------------------------------------------------------------------------
X, W = np.zeros((1, 8, 8, 64), BF16), np.zeros((64, 3, 3, 8), BF16)
BAD_CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "groups": ("K995", {"groups": 4}),
    "no groups": ("K995", {"groups": 0}),
    "filters": ("K995", {"w": W[:60]}),
    "rank": ("K995", {"x": X[0]}),
    "empty": ("K995", {"x": X[:0]}),
    "negative padding": ("K995", {"padding": -1}),
    "no stride": ("K995", {"stride": 0}),
    "large kernel": ("K995", {"dilation": 4}),
    "out": ("K995", {"out": np.zeros((1, 8, 8, 64), BF16)}),
    "types": ("K996", {"w": W.astype(np.float16)}),
    "f32": ("K996", {"x": X.astype(np.float32), "w": W.astype(np.float32)}),
    "transposed": ("K997", {"x": np.asfortranarray(X)}),
    "start": ("K997", {"x": np.zeros(8 * 8 * 64 + 1, BF16)[1:].reshape(X.shape)}),
    "pitch": ("K997", {"x": np.zeros((1, 8, 8, 68), BF16)[..., :64]}),
    "odd width": ("K994", {"x": np.zeros((1, 8, 8, 72), BF16), "w": np.zeros((72, 3, 3, 9), BF16)}),
    "wide groups": (
        "K994", {"x": np.zeros((1, 8, 8, 256), BF16), "w": np.zeros((64, 3, 3, 128), BF16),
                 "groups": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls(name: str) -> None:
    """Operands that do not fit are named before anything runs."""
    code, changes = BAD_CALLS[name]
    call: dict[str, Any] = {"x": X, "w": W, "groups": 8, **changes}
    with pytest.raises(kd.ArgumentError) as refused:
        conv_grouped(**call)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "code, changes",
    (
        ("K990", {"rows": 3}),
        ("K990", {"columns": 12}),
        ("K990", {"columns": 8, "paired": "columns"}),
        ("K991", {"stages": 2}),
        ("K991", {"columns": 256}),
        ("K992", {"group": (24, 8)}),
        ("K992", {"line": 24}),
        ("K992", {"group": (8, 20)}),
        ("K993", {"warps": 5}),
        ("K993", {"octets": 5}),
        ("K993", {"copies": "memcpy"}),
        ("K993", {"warps": 16, "buffers": 1}),
        ("K993", {"staged": 0, "buffers": 1}),
        ("K993", {"staged": 0, "copies": "cp.async"}),
    ),
)
def test_bad_configs(code: str, changes: dict[str, Any]) -> None:
    """Configurations that cannot be are refused where they are made."""
    with pytest.raises(kd.ArgumentError) as refused:
        replace(SMALL, **changes)
    assert refused.value.code == code


def test_extra_shape() -> None:
    """An operand of the tail that does not broadcast to the result."""
    with pytest.raises(kd.ArgumentError, match="does not broadcast") as refused:
        conv_grouped(X, W, None, np.zeros(63, np.float32), groups=8, padding=1, epilogue=plus)
    assert refused.value.code == "K995"


def test_problem() -> None:
    """The sizes of arrays, with one number for both directions or two."""
    found = problem_of(X, W, 8, (2, 1), 1, 2)
    assert found.output == (3, 6)
    assert GroupedPlan(found, SMALL).chunks == 1


@pytest.mark.parametrize("problem", PROBLEMS[:7], ids=str)
def test_counters(problem: ConvProblem) -> None:
    """Chosen plans read and write shared memory without conflicts, and whole sectors by TMA."""
    config = choose(problem).config
    groups = config.line // config.group[0]
    run = simulated(
        config, Images(config.images, problem.height, problem.width, groups), blocks=1,
        numerics="fast",
    )  # fmt: skip
    counts = run.profile.totals
    assert run.profile.bank_conflicts == 0
    for kind in ("tma_load", "tma_store"):
        assert counts[f"{kind}_sectors"] == counts[f"{kind}_ideal_sectors"] > 0
