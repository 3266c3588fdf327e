"""The Hopper convolution's space and tables: what they list, launch and find right."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import kdsl_core as kd
from kdsl_core.errors import ArgumentError, CacheError
from kdsl_fuse.kernels import conv_sm90_table as table
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_sm90_plan import ConvPlan, candidates, choose, plan_of
from kdsl_fuse.kernels.conv_sm90_space import SPACE
from kdsl_fuse.kernels.conv_tables import TABLES, conv_of, key_of
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.gemm_sm90_plan import DEVICE
from kdsl_runtime import dispatch
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune import Effort, Predicted
from kdsl_runtime.tune.candidate import build_candidate

LARGE = "batch=64,height=56,width=56,channels=64,filters=64,kernel=3x3,padding=1x1,dtype=bf16"
SMALL = "batch=1,height=9,width=10,channels=64,filters=48,kernel=3x3,padding=1,dtype=f16"


def test_problems_are_read() -> None:
    """Pairs are written by an x, or as one number; what is left out is 1, or no padding.

    Tables have all of a problem.
    """
    assert conv_of(Problem.parse(LARGE)) == ConvProblem(
        64, 56, 56, 64, 64, (3, 3), padding=(1, 1)
    )  # fmt: skip
    text = "batch=2,height=1,width=9,channels=8,filters=16,kernel=1x5,stride=1x2,dtype=f16"
    line = ConvProblem(2, 1, 9, 8, 16, (1, 5), (1, 2))
    assert conv_of(Problem.parse(text)) == line
    for problem in (line, ConvProblem(3, 9, 8, 8, 8, (3, 2), (2, 1), (1, 0), (1, 2), groups=4)):
        assert conv_of(key_of(problem, kd.f16, kd.f16, reads=False)) == problem


def test_listed_plans() -> None:
    """The model's first choice is among them, in the model's order, and all fit the chip."""
    problem = Problem.parse(LARGE)
    points = SPACE.points(problem)
    first = candidates(conv_of(problem), kd.bf16, limit=1)[0]
    found = [str(SPACE.calls(problem, point, SPACE.tensors(problem))[0].launch) for point in points]
    assert len(points) >= 20 and len(found) == len(points)
    assert table.options_of(first.config, first.product.swap) in points
    times = [SPACE.model(problem, point) for point in points]
    assert times == sorted(times) and all(map(math.isfinite, times))


@pytest.mark.parametrize(
    "change, word",
    (("channels=3", "packed"), ("stride=16", "steps over"), ("kernel=1,padding=0x0", "product")),
)
def test_convolutions_that_it_does_not_tune(change: str, word: str) -> None:
    """Packed ones, products, and what TMA cannot walk over."""
    given = dict(part.split("=") for part in f"{LARGE},{change}".split(","))
    with pytest.raises(ArgumentError, match=word) as caught:
        SPACE.points(Problem.parse(",".join(f"{k}={v}" for k, v in given.items())))
    assert caught.value.code == "K762"


@pytest.mark.parametrize("swap", (False, True))
@pytest.mark.parametrize("splits", (1, 2))
def test_candidates_build_and_are_right(swap: bool, splits: int) -> None:
    """Whole and in parts, either way round: assembled for sm_90a, and right in the simulator."""
    config = {"tile": (64, 48, 64), "stages": 3, "consumers": 1, "swap": swap}
    config |= {"splits": splits} if splits > 1 else {}
    problem = Problem.parse(SMALL)
    built = build_candidate(SPACE, problem, config, "sm_90a")
    assert built.code and not built.reason
    (trial,) = Predicted(DEVICE).measure(SPACE, problem, [config], Effort(1))
    assert trial.status == "right" and trial.error is not None
    assert 0 < trial.error < SPACE.bound / 2


def test_entries_are_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a table of the user says is fastest is taken; one for a tail does not serve others."""
    problem = ConvProblem(64, 56, 56, 64, 64, (3, 3), padding=(1, 1))
    config = Sm90Config((64, 192, 64), 4, "pingpong")
    for reads in (False, True):
        key = key_of(problem, kd.f16, kd.f16, reads)
        assert table.find(DEVICE, key) is None or not reads
    entry = table.Entry(key_of(problem, kd.bf16, kd.bf16, False), config, True, 100.0)
    dispatch.write_table(tmp_path / dispatch.file_name(table.KERNEL, DEVICE), [entry.stored])
    monkeypatch.setenv("KDSL_TABLES", str(tmp_path))
    plan = choose(problem, kd.f16)
    assert isinstance(plan, ConvPlan)
    assert (plan.config, plan.product.swap) == (config, True)
    assert choose(problem, kd.f16, tail=True, reads=True) != plan


def test_entries_must_fit() -> None:
    """An entry that needs more shared memory than there is, is refused with its file."""
    problem = ConvProblem(64, 56, 56, 64, 64, (3, 3), padding=(1, 1))
    key = key_of(problem, kd.bf16, kd.bf16, False)
    large = table.Entry(key, Sm90Config((128, 256, 64), 9), False, 1.0)
    with pytest.raises(ValueError, match="bytes of shared memory"):
        table.Entry.read(large.stored)


def test_package_tables_are_good() -> None:
    """Every entry of the package names a plan that the kernel takes."""
    for path in TABLES.glob("conv_sm90-*.json"):
        entries = dispatch.read_table(path, table.Entry.read)
        assert entries
        for key in entries:
            entry = table.Entry.read(entries[key])
            plan = plan_of(conv_of(key), kd.bf16, None, entry.config, entry.swap)
            assert plan.panel is None or entry.config.tile[2] % plan.panel == 0
    with pytest.raises(CacheError):
        dispatch.read_table(Path(__file__), table.Entry.read)
