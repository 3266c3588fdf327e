"""Spaces and tables of grouped and depthwise convolutions: what they list, launch, find right."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import kdsl_core as kd
from fuse.conv_numbers import exact, operands
from kdsl_core.errors import ArgumentError, CacheError
from kdsl_fuse.kernels import conv_depthwise_plan as depthwise
from kdsl_fuse.kernels import conv_depthwise_table as depthwise_table
from kdsl_fuse.kernels import conv_grouped_plan as grouped
from kdsl_fuse.kernels import conv_grouped_table as grouped_table
from kdsl_fuse.kernels.conv_depthwise_model import cycles
from kdsl_fuse.kernels.conv_depthwise_space import first
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_sm90_space import convolved
from kdsl_fuse.kernels.conv_spaces import DEPTHWISE, GROUPED
from kdsl_fuse.kernels.conv_tables import TABLES, ConvTable, conv_of
from kdsl_fuse.kernels.gemm_sm90_plan import DEVICE
from kdsl_runtime import dispatch
from kdsl_runtime.cli import main
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune import Effort, Predicted, Space, load_space
from kdsl_runtime.tune.candidate import build_candidate

LARGE = {
    "conv_grouped": "batch=64,height=56,width=56,channels=256,filters=256,groups=32",
    "conv_depthwise": "batch=128,height=56,width=56,channels=96,filters=96,groups=96",
}
SMALL = {
    "conv_grouped": "batch=2,height=9,width=10,channels=64,filters=64,groups=8",
    "conv_depthwise": "batch=2,height=9,width=10,channels=32,filters=32,groups=32",
}
SPACES = pytest.mark.parametrize("space", (GROUPED, DEPTHWISE), ids=lambda space: space.name)


def problem(words: dict[str, str], space: Space, more: str = "") -> Problem:
    """A problem of a space's kernel, with a 3 × 3 window and what else is said, or said again."""
    text = f"{words[space.name]},kernel=3x3,padding=1,dtype=bf16,{more}".strip(",")
    values = dict(part.split("=") for part in text.split(","))
    return Problem.parse(",".join(f"{name}={value}" for name, value in values.items()))


def chosen(space: Space, conv: ConvProblem, **more: Any) -> Any:
    """The configuration that the space's kernel chooses."""
    plan = (
        grouped.choose(conv, **more)
        if space is GROUPED
        else depthwise.choose(conv, kd.bf16, **more)
    )
    return plan.config


def table_of(space: Space) -> ConvTable[Any]:
    """The tables of a space's kernel."""
    return grouped_table.TABLE if space is GROUPED else depthwise_table.TABLE


# -- the spaces ------------------------------------------------------------------------------------
@SPACES
def test_kernels_by_name(space: Space) -> None:
    """`kdsl tune` knows both kernels by their names."""
    found = load_space(space.name)
    assert (found.name, found.options, found.calls) == (space.name, space.options, space.calls)


@SPACES
def test_listed_configurations(space: Space) -> None:
    """All have room, in the model's order; first comes what sizes without an entry get."""
    given = problem(LARGE, space)
    points, rejected = space.examine(given)
    unlisted = given if space is DEPTHWISE else problem(LARGE, space, "batch=63")
    options = table_of(space).options_of(chosen(space, conv_of(unlisted)))
    assert len(points) >= 40 and options == space.points(unlisted)[0]
    assert space.model is not None
    times = [space.model(given, point) for point in points]
    assert times == sorted(times) and all(map(math.isfinite, times))
    entries = [dispatch.Entry(space.shape_class(given), point, 1.0) for point in points]
    for entry in entries:
        table_of(space).read(entry)
    reasons = {
        word for r in rejected for word in ("shared memory", "registers") if word in r.reason
    }
    assert reasons == {"shared memory", "registers"}


@SPACES
@pytest.mark.parametrize(
    "change, codes, word",
    (
        ("dtype=f32", ("K996", "K762"), "f16"),
        ("dtype=i8", ("K996", "K978"), "i8"),
        ("result=f32", ("K762", "K762"), "not f32"),
        ("kernel=20x3", ("K995", "K977"), "larger than the padded image"),
        ("filters=20", ("K995", "K977"), "20"),
    ),
)
def test_convolutions_that_they_do_not_tune(
    space: Space, change: str, codes: tuple[str, str], word: str
) -> None:
    """What the kernels do not take is refused with the reason, without a GPU."""
    with pytest.raises(ArgumentError, match=word) as caught:
        space.points(problem(SMALL, space, change))
    assert caught.value.code == codes[space is DEPTHWISE]


@pytest.mark.parametrize(
    "space, change, code, word",
    (
        (GROUPED, "channels=36,filters=36,groups=9", "K762", "no multiple of 8"),
        (GROUPED, "channels=1024,filters=1024", "K994", "groups of 128 channels"),
        (DEPTHWISE, "filters=64", "K762", "one filter for each channel"),
        (DEPTHWISE, "channels=12,filters=12,groups=12", "K762", "8 channels each"),
        (DEPTHWISE, "groups=8", "K977", "a group of its own"),
    ),
)
def test_channels_that_they_do_not_tune(space: Space, change: str, code: str, word: str) -> None:
    """Widths that only other kernels take."""
    with pytest.raises(ArgumentError, match=word) as caught:
        space.points(problem(SMALL, space, change))
    assert caught.value.code == code


@SPACES
@pytest.mark.parametrize("more", ("", "dtype=f16,kernel=5x3,stride=2x1,padding=2x1"))
def test_candidates_build_and_are_right(space: Space, more: str) -> None:
    """The first and the last listed: assembled for sm_90a, and right in the simulator."""
    given = problem(SMALL, space, more)
    points = space.points(given)
    for config in (points[0], points[-1]):
        built = build_candidate(space, given, config, "sm_90a")
        assert built.code and not built.reason
    trials = Predicted(DEVICE).measure(space, given, [points[0], points[-1]], Effort(1))
    for trial in trials:
        assert trial.status == "right" and trial.error is not None
        assert 0 < trial.error < space.bound


@pytest.mark.parametrize("groups", (1, 2, 8, 24))
def test_reference(groups: int) -> None:
    """What candidates are compared with is the convolution, however wide its groups are."""
    conv = ConvProblem(2, 9, 8, 24, 48, (3, 2), (2, 1), (1, 0), (1, 2), groups)
    x, w = operands(conv, np.float32)
    np.testing.assert_allclose(convolved(conv, x, w), exact(conv, x, w), rtol=1e-4, atol=1e-4)


# -- the tables ------------------------------------------------------------------------------------
@SPACES
def test_entries_are_chosen(space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a table of the user says is fastest goes before the package's and the model's choice."""
    given = problem(LARGE, space)
    conv, table = conv_of(given), table_of(space)
    config = space.points(given)[5]
    before = chosen(space, conv)
    entry = dispatch.Entry(space.shape_class(problem(LARGE, space, "dtype=f16")), config, 1.5)
    path = tmp_path / dispatch.file_name(space.name, DEVICE)
    assert dispatch.put(path, DEVICE, entry)
    monkeypatch.setenv("KDSL_TABLES", str(tmp_path))
    assert chosen(space, conv) == table.configured(conv, **config) != before
    explain = grouped.explain if space is GROUPED else depthwise.explain
    assert f"exact, 1.5 µs measured, {path}" in explain(conv)
    assert "model, no table" in explain(replace(conv, batch=99))
    for other in (replace(conv, padding=(0, 0)), replace(conv, batch=99)):
        assert table.find(DEVICE, other) is None
    for more in ({"multiprocessors": 66}, {"target": "sm_80"}, {"device": "NVIDIA H20"}):
        assert chosen(space, conv, **more) != table.configured(conv, **config)


def test_tails_of_the_depthwise_kernel_have_no_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tail that reads a matrix, or wants no tensor cores, gets what was chosen without tables."""
    given = problem(LARGE, DEPTHWISE)
    conv = conv_of(given)
    wanted = {more: chosen(DEPTHWISE, conv, **dict([more])) for more in
              (("extras", 1), ("tensor_cores", False), ("width", 2))}  # fmt: skip
    entry = dispatch.Entry(DEPTHWISE.shape_class(given), DEPTHWISE.points(given)[5], 1.5)
    dispatch.put(tmp_path / dispatch.file_name(DEPTHWISE.name, DEVICE), DEVICE, entry)
    monkeypatch.setenv("KDSL_TABLES", str(tmp_path))
    for more, config in wanted.items():
        assert chosen(DEPTHWISE, conv, **dict([more])) == config


@SPACES
@pytest.mark.parametrize("change, word", (({"stages": 99}, "shared memory"), ({"cows": 1}, "cows")))
def test_entries_must_fit(
    space: Space, change: dict[str, int], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that needs more shared memory than there is, or says what nobody knows, is refused.

    The error names the file.
    """
    given = problem(LARGE, space)
    entry = dispatch.Entry(space.shape_class(given), {**space.points(given)[0], **change}, 1.0)
    path = tmp_path / dispatch.file_name(space.name, DEVICE)
    dispatch.write_table(path, [entry])
    monkeypatch.setenv("KDSL_TABLES", str(tmp_path))
    with pytest.raises(CacheError, match=word) as caught:
        chosen(space, conv_of(given))
    assert caught.value.code == "K761" and path.name in str(caught.value)


@SPACES
def test_the_command_writes_what_is_chosen(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kdsl tune` finds a winner by prediction, in processes, and the kernel chooses it then."""
    monkeypatch.setenv("KDSL_TABLES", str(tmp_path))
    given = problem(SMALL, space)
    words = ["tune", space.name, "--shapes", str(given), "--points", "2", "--predict", DEVICE]
    done = CliRunner().invoke(main, [*words, "--tables", str(tmp_path)])
    assert done.exit_code == 0, done.output
    (entry,) = dispatch.read_table(tmp_path / dispatch.file_name(space.name, DEVICE)).values()
    assert entry.backend == "predicted" and entry.config in space.points(given)[:2]
    assert chosen(space, conv_of(given)) == table_of(space).read(entry)


# -- nothing that is chosen has changed ------------------------------------------------------------
MEASURED = {  # sizes of benchmarks/shapes.toml ↦ the plan that was fastest on an H200
    (256, 56, 56, 128, 128, 3, 1, 32): "4x64x32 n14 s9 o1 w8 columns t2 b3 x1",
    (256, 28, 28, 256, 256, 3, 1, 32): "6x32x64 n5 s5 o1 w16 columns t1 b3 x1",
    (256, 14, 14, 512, 512, 3, 1, 32): "14x16x32 n1 s7 o1 w12 rows t1 b4 x1",
    (256, 7, 7, 1024, 1024, 3, 1, 32): "7x8x64 n1 s5 o2 w4 images t1 b2 x1",
    (64, 56, 56, 256, 256, 3, 1, 32): "2x56x32 n14 s12 o1 w16 rows t2 b5 x1",
    (64, 56, 56, 64, 64, 3, 1, 2): "12x56x32 n1 s2 o1 w4 rows t1 b2 x1",
    (256, 112, 112, 32, 32, 3, 1, 32): "1x1x7x32 r8x2 t2 s3+1 b1 p4",
    (256, 56, 56, 144, 144, 3, 2, 144): "1x1x2x64 r7x2 t1 s2+1 b1 p2",
    (256, 28, 28, 240, 240, 5, 2, 240): "1x2x2x32 r7x1 t2 s2+1 b1 p4",
    (256, 14, 14, 672, 672, 5, 1, 672): "1x1x2x64 r7x2 t1 s2+1 b2 p4",
    (256, 7, 7, 1152, 1152, 3, 1, 1152): "2x1x1x64 r7x2 t1 s2+1 b2 p4",
    (128, 56, 56, 96, 96, 7, 1, 96): "1x2x7x32 r7x2 t3 s2+1 b1 p8",
    (128, 28, 28, 192, 192, 7, 1, 192): "1x2x4x32 r7x2 t3 s3+1 b1 p6",
    (128, 14, 14, 384, 384, 7, 1, 384): "2x2x2x32 r7x2 t3 s3+1 b1 p6",
    (16, 512, 512, 64, 64, 3, 1, 64): "1x1x4x64 r8x2 t2 s3+1 b1 p4",
}


def conv_from(sizes: tuple[int, ...]) -> ConvProblem:
    """The convolution of a row of shapes.toml."""
    n, h, w, c, k, r, step, groups = sizes
    return ConvProblem(n, h, w, c, k, (r, r), (step, step), (r // 2, r // 2), groups=groups)


@pytest.mark.parametrize("sizes, words", MEASURED.items(), ids=str)
def test_measured_plans(sizes: tuple[int, ...], words: str) -> None:
    """The shapes whose figures are quoted get the plans that were measured."""
    conv = conv_from(sizes)
    if conv.depthwise:
        assert str(depthwise.choose(conv, kd.bf16)) == words
        assert first(conv) == depthwise.choose(conv, kd.f16).config
    else:
        assert str(grouped.choose(conv)) == words
        assert "exact" in grouped.explain(conv) and "conv_grouped-" in grouped.explain(conv)
        assert str(grouped.choose(conv, staged=0)) != words


MICROSECONDS = (108.2, 84.4, 43.7, 49.9, 19.7, 76.7, 44.1, 25.0, 276.0)  # docs/facts.md


def test_depthwise_model() -> None:
    """The model is near the times of the depthwise plans, as they were measured."""
    shapes = [sizes for sizes in MEASURED if sizes[3] == sizes[-1]]
    for sizes, microseconds in zip(shapes, MICROSECONDS, strict=True):
        plan = depthwise.choose(conv_from(sizes), kd.bf16)
        assert isinstance(plan, depthwise.DepthwisePlan)
        found = cycles(plan.problem, plan.config, plan.grid, plan.multiprocessors)
        assert 0.7 < found / (1755 * microseconds) < 1.11, sizes


def test_package_tables_are_good() -> None:
    """Every entry of the package is for a problem of its space, which takes it."""
    for space in (GROUPED, DEPTHWISE):
        for path in TABLES.glob(f"{space.name}-*.json"):
            entries = dispatch.read_table(path, table_of(space).read)
            assert entries
            for key, entry in entries.items():
                assert space.shape_class(key) == key
                assert space.refusal(key, entry.config) is None
