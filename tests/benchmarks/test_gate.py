"""The gate on repositories with planted changes, and what commits say of themselves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import planted
from kdsl_fuse.kernels.elementwise import choose
from scripts import scripts

KERNEL = {
    "registers": 168, "spill_bytes": 0, "shared_bytes": 1000, "blocks_per_sm": 2,
    "ptx_instructions": 1000, "sass_instructions": 1000, "run_sectors": 1000,
    "run_wavefronts": 1000, "run_mbarrier_waits": 64,
}  # fmt: skip
START = {"cold_opens": 17, "warm_programs": 0}
GOOD = {"gemm sm_90a": KERNEL, "start": START}


@pytest.fixture(scope="module")
def tools() -> Iterator[SimpleNamespace]:
    """The gate and its parts."""
    with scripts(
        "", "gate", "findings", "commits", "facts", "kernels", "launches", "pace"
    ) as found:
        yield found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one commit, whose figures are `GOOD`."""
    root = planted.repository(tmp_path / "repo")
    files = {"benchmarks/facts.py": planted.TELLS, "benchmarks/figures.json": planted.facts(GOOD)}
    planted.commit(root, 0, files)
    return root


def gate(tools: SimpleNamespace, root: Path, words: str = "HEAD~1..HEAD") -> int:
    """The gate's exit code, without times."""
    return int(tools.gate.main([words, "--deterministic", "--root", str(root)]))


def planting(root: Path, subjects: dict[str, Any], **problems: str) -> None:
    """A second commit with these figures."""
    text = planted.facts({**GOOD, **subjects}, problems)
    planted.commit(root, 1, {"benchmarks/figures.json": text})


WORSE = {
    "a new spill": ("gemm sm_90a", {"spill_bytes": 8}),
    "occupancy": ("gemm sm_90a", {"registers": 176, "blocks_per_sm": 1}),
    "PTX +3 %": ("gemm sm_90a", {"ptx_instructions": 1031}),
    "SASS +3 %": ("gemm sm_90a", {"sass_instructions": 1031}),
    "sectors +1 %": ("gemm sm_90a", {"run_sectors": 1011}),
    "conflicts +1 %": ("gemm sm_90a", {"run_wavefronts": 1011}),
    "a wait more": ("gemm sm_90a", {"run_mbarrier_waits": 65}),
    "a file more": ("start", {"cold_opens": 18}),
    "a program": ("start", {"warm_programs": 1}),
}


@pytest.mark.parametrize("name", WORSE)
def test_what_is_worse_fails(
    name: str, tools: SimpleNamespace, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, and the figure in the table with both numbers."""
    subject, change = WORSE[name]
    planting(root, {subject: {**GOOD[subject], **change}})
    assert gate(tools, root) == 1
    printed = capsys.readouterr().out
    figure, after = list(change.items())[-1]
    (row,) = [line for line in printed.splitlines() if f"  {figure}  " in line]
    assert row.startswith(subject) and f"{after:,}" in row and f"{GOOD[subject][figure]:,}" in row
    assert "1 regressions" in printed


@pytest.mark.parametrize(
    "change",
    (
        {"registers": 200, "shared_bytes": 2000},
        {"ptx_instructions": 1030, "sass_instructions": 1030},
        {"run_sectors": 1010, "run_wavefronts": 1010},
        {"spill_bytes": 0, "run_sectors": 500, "sass_instructions": 600, "blocks_per_sm": 4},
    ),
)
def test_what_is_not_worse_passes(
    change: dict[str, float], tools: SimpleNamespace, root: Path
) -> None:
    """Growth within the limits, resources that cost no block, and improvements."""
    planting(root, {"gemm sm_90a": {**KERNEL, **change}})
    assert gate(tools, root) == 0


def test_improvements_and_news_are_told(
    tools: SimpleNamespace, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What got better, and what only one commit has."""
    planting(root, {"gemm sm_90a": {**KERNEL, "run_sectors": 500}, "softmax sm_80": KERNEL})
    assert gate(tools, root) == 0
    printed = capsys.readouterr().out
    assert "better: gemm sm_90a: run_sectors 1,000 → 500" in printed
    assert "new: softmax sm_80" in printed


def test_a_kernel_that_cannot_be_built_any_more(
    tools: SimpleNamespace, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named with why."""
    text = planted.facts({"start": START}, {"gemm sm_90a": "BuildError: no such thing"})
    planted.commit(root, 1, {"benchmarks/figures.json": text})
    assert gate(tools, root) == 1
    assert "no such thing" in capsys.readouterr().out


def test_facts_that_fail(tools: SimpleNamespace, root: Path) -> None:
    """A commit whose facts cannot be had is worse than one before, and nothing to compare with."""
    planted.commit(root, 1, {"benchmarks/figures.json": "fails"})
    assert gate(tools, root) == 1
    planted.commit(root, 2, {"benchmarks/figures.json": planted.facts(GOOD)})
    assert gate(tools, root) == 0


def test_accepted_growth(
    tools: SimpleNamespace, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row with a reason covers a figure up to its number, and no more."""
    planting(root, {"gemm sm_90a": {**KERNEL, "run_sectors": 1200}})
    accepted = root / "benchmarks/accepted.toml"
    row = (
        '[[accepted]]\nsubject = "gemm *"\nfigure = "run_sectors"\nup_to = {}\nreason = "bounds"\n'
    )
    accepted.write_text(row.format(1200))
    assert gate(tools, root) == 0
    assert "accepted: gemm sm_90a: run_sectors → 1200: bounds" in capsys.readouterr().out
    accepted.write_text(row.format(1199))
    assert gate(tools, root) == 1


# -- commits that are not there --------------------------------------------------------------------
def test_a_first_commit(
    tools: SimpleNamespace, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With nothing before it there is nothing to compare."""
    assert gate(tools, root) == 0
    assert "nothing to compare: there is no commit HEAD~1 here" in capsys.readouterr().out


def test_a_shallow_clone(
    tools: SimpleNamespace, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says how the commit can be had."""
    planting(root, {"gemm sm_90a": {**KERNEL, "run_sectors": 2000}})
    clone = tmp_path / "clone"
    planted.git(root, "clone", "-q", "--depth", "1", root.as_uri(), str(clone))
    assert gate(tools, clone) == 0
    assert "the clone is shallow" in capsys.readouterr().out


def test_commits_without_facts(
    tools: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commits from before the gate are nothing to compare with."""
    root = planted.repository(tmp_path / "old")
    planted.commit(root, 0, {"packages/a.py": ""})
    planted.commit(root, 1, {"packages/a.py": "x = 1"})
    assert gate(tools, root) == 0
    assert "has no benchmarks/facts.py yet" in capsys.readouterr().out


def test_nothing_that_counts_differs(
    tools: SimpleNamespace, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pages and tests do not change figures."""
    planted.commit(root, 1, {"docs/page.md": "words"})
    assert gate(tools, root) == 0
    assert "nothing differs" in capsys.readouterr().out


@pytest.mark.parametrize("words", ("HEAD", "..HEAD", "a...b"))
def test_a_range_that_is_none(words: str, tools: SimpleNamespace, root: Path) -> None:
    """Exit code 2."""
    with pytest.raises(SystemExit) as ended:
        gate(tools, root, words)
    assert ended.value.code == 2


def test_commits_of_merged_branches(tools: SimpleNamespace, root: Path) -> None:
    """Each counts for the merge that brought it; one that was not merged for none."""
    here, first = tools.commits.Repository(root), planted.git(root, "rev-parse", "HEAD")
    planted.git(root, "checkout", "-q", "-b", "side")
    early, late = (planted.commit(root, i, {f"docs/{i}.md": ""}) for i in (1, 2))
    planted.git(root, "checkout", "-q", "main")
    planted.commit(root, 3, {"docs/3.md": ""})
    planted.git(root, "merge", "-q", "--no-ff", "-m", "merge", early)
    merge = planted.git(root, "rev-parse", "HEAD")
    planted.commit(root, 4, {"docs/4.md": ""})
    assert here.merged(early, "HEAD") == merge and here.merged(first, "HEAD") == first
    with pytest.raises(tools.commits.Unknown, match="does not contain"):
        here.merged(late, "HEAD")


# -- what varies -----------------------------------------------------------------------------------
def test_records_of_gpus(
    tools: SimpleNamespace, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shape that is slower beyond 3 % and beyond both spreads; a record holds until the next."""
    first = planted.git(root, "rev-parse", "HEAD")
    middle = planted.commit(root, 1, {"docs/a.md": "1"})
    planted.commit(root, 2, {"docs/a.md": "2"})
    fast, small = planted.shape("gemm", "64", kdsl=100.0), planted.shape("gemm", "1", kdsl=3.0)
    planted.record(root, first, fast, small)
    planted.record(
        root, middle, planted.shape("gemm", "64", kdsl=103.5), planted.shape("gemm", "1", kdsl=3.3)
    )
    assert gate(tools, root, f"{first}..HEAD") == 1
    printed = capsys.readouterr().out
    assert f"µs on {planted.DEVICE}" in printed and "+3.5%" in printed
    assert "1 regressions" in printed, "0.3 µs of 3 are within the spreads"
    assert gate(tools, root) == 0, "HEAD~1 has the same record"


def test_times_beyond_their_noise(tools: SimpleNamespace) -> None:
    """Pairs decide: a machine that slows down hits both; noise widens the limit."""
    draw = random.Random(0)
    drift = [1 + i / 5 for i in range(15)]
    before = [x * draw.uniform(0.98, 1.02) for x in drift]
    same = [x * draw.uniform(0.98, 1.02) for x in drift]
    assert tools.findings.of_times("trace", before, same) is None
    slower = tools.findings.of_times("trace", before, [x * 1.2 for x in same])
    assert slower is not None and slower.after / slower.before == pytest.approx(1.2, abs=0.03)
    wild = [x * draw.uniform(0.5, 2.0) for x in drift]
    assert tools.findings.of_times("trace", before, [x * 1.05 for x in wild]) is None
    assert tools.findings.of_times("trace", before, [x / 2 for x in same]) is None


SERVES = """
import pathlib, sys
print("ready", flush=True)
for line in sys.stdin:
    with pathlib.Path(__file__).parents[2].joinpath("order").open("a") as order:
        order.write(pathlib.Path(__file__).parents[1].name[0])
    print({seconds}, flush=True)
"""


def test_both_commits_by_turns(tools: SimpleNamespace, tmp_path: Path) -> None:
    """A B, B A, A B for each step; a process that ends says why."""
    trees = tmp_path / "after", tmp_path / "before"
    for tree, seconds in zip(trees, (0.3, 0.2), strict=True):
        (tree / "benchmarks").mkdir(parents=True)
        (tree / "benchmarks/pace.py").write_text(SERVES.format(seconds=seconds))
    after, before = trees
    samples = tools.pace.timed(before, after, 3)
    steps = len(tools.pace.STEPS)
    assert (tmp_path / "order").read_text() == ("ba" * steps) + ("ab" * steps) + ("ba" * steps)
    assert all(pair == ([0.2] * 3, [0.3] * 3) for pair in samples.values())
    (after / "benchmarks/pace.py").write_text("raise SystemExit('no such kernel')")
    with pytest.raises(RuntimeError, match="no such kernel"):
        tools.pace.timed(before, after, 3)


# -- what a commit says of itself ------------------------------------------------------------------
def test_rows_have_names_of_their_own(tools: SimpleNamespace) -> None:
    """A figure's name says whose it is."""
    names = [row.name for row in tools.kernels.ROWS]
    assert len(set(names)) == len(names)


def test_what_a_plan_would_launch(tools: SimpleNamespace) -> None:
    """Nothing runs; the launch is the one that a row states by hand."""
    row = next(row.launch() for row in tools.kernels.ROWS if row.name == "elementwise")
    out, x, y = (np.zeros((512, 1024), ml_dtypes.bfloat16) for _ in range(3))
    plan = choose([out], [x, y])
    function = tools.kernels.scaled_sum
    made = tools.launches.launch_of(lambda: plan.run(function, out, x, y), "elementwise")
    assert (made.kernel, made.grid, made.block) == (row.kernel, row.grid, row.block)
    assert made.kwargs == row.kwargs and len(made.args) == len(row.args)
    with pytest.raises(ValueError, match="not enough"):
        tools.launches.launch_of(lambda: plan.run(function, out, x, y), "another")


def test_kernels_without_a_row_are_told(
    tools: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel of kdsl-fuse that nobody put into the list is named."""
    monkeypatch.setattr(tools.facts, "_runs", {})
    for row in tools.kernels.ROWS:
        if row.name in ("elementwise", "repitch"):
            tools.facts.counted(row)
    found = tools.facts.without_row()
    assert {"gemm_sm90", "batch_gemm_sm80", "rows"} <= set(found) and "elementwise" not in found
    told = tools.findings.news({"subjects": {}}, {"subjects": {}, "without_row": found})
    assert "no row in kernels.py: gemm_sm90" in told


def test_figures_of_a_kernel(tools: SimpleNamespace) -> None:
    """All kinds of figures, the same each time."""
    row = next(row for row in tools.kernels.ROWS if row.name == "elementwise")
    figures = tools.facts.figures_of(row, "sm_90a", kinds=False)
    assert figures["registers"] > 0 and figures["blocks_per_sm"] > 0
    assert figures["run_sectors"] == figures["run_ideal_sectors"] == 3 * 512 * 1024 * 2 / 32
    assert figures["roofline_us"] == pytest.approx(1e6 * 3 * 512 * 1024 * 2 / 4.8e12, rel=1e-3)
    assert tools.facts.figures_of(row, "sm_90a", kinds=False) == figures


@pytest.mark.parametrize("name", ("launch of 3 arrays", "plan of 10 operators"))
def test_figures_of_kdsl_itself(name: str, tools: SimpleNamespace) -> None:
    """Counts, the same each time."""
    (figures,) = (make for subject, make in tools.facts.itself() if subject == name)
    first = figures()
    assert first == figures() and all(n > 0 for n in first.values())


def test_a_start_finds_what_an_earlier_one_left(tools: SimpleNamespace) -> None:
    """A cold start builds and runs the assembler; a warm one reads."""
    figures = tools.facts.started()
    assert figures["cold_builds"] == 1 and figures["cold_programs"] >= 1
    assert figures["warm_builds"] == figures["warm_programs"] == figures["warm_misses"] == 0
    assert 0 < figures["warm_opens"] < figures["cold_opens"] and figures["cache_files"] > 0
