"""The driver of a session on a GPU: every step ends in time, and nothing of it is lost."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu.test_gemm_sm90_gpu import CONFIGS
from scripts import scripts

NEVER = [sys.executable, "-c", "import signal; signal.pause()"]
JUNIT = """<testsuites><testsuite>
<testcase classname="a" name="right"/><testcase classname="a" name="skipped"><skipped/></testcase>
<testcase classname="a" name="wrong"><failure message="no"/></testcase>
<testcase classname="b" name="broken"><error message="no"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture(scope="module")
def tools() -> Iterator[SimpleNamespace]:
    """The driver and its parts."""
    with scripts("gpu", "steps", "session") as found:
        yield found


def python(text: str) -> list[str]:
    """A command that runs a line of Python."""
    return [sys.executable, "-c", text]


def run(tools: Any, folder: Path, steps: list[Any], seconds: float = 60) -> list[Any]:
    """How the steps ended."""
    deadline = time.monotonic() + seconds
    return list(tools.steps.run_steps(steps, folder, deadline, dict(os.environ)))


def test_a_failing_step_stops_no_other(tools: Any, tmp_path: Path) -> None:
    """One fails, one hangs, one is no program, one kills itself; the last one still runs."""
    step = tools.steps.Step
    steps = [
        step("says", python("print('first\\nlast')"), 30),
        step("fails", python("raise SystemExit(3)"), 30),
        step("hangs", NEVER, 0.3),
        step("is missing", ["no-such-program"], 30),
        step("dies", python("import os; os.kill(os.getpid(), 9)"), 30),
        step("goes on", python("print('done')"), 30),
    ]
    ended = run(tools, tmp_path, steps)
    outcomes = ["ok", "exit 3", "out of time", "No such file or directory", "exit -9", "ok"]
    assert [end.outcome for end in ended] == outcomes
    assert ended[0].line().endswith("  last") and ended[-1].end == "done"
    assert (tmp_path / "goes_on.log").read_text() == "done\n"


def test_what_a_step_leaves_ends_with_it(tools: Any, tmp_path: Path) -> None:
    """A child that outlives its parent is ended, so that it does not hold the GPU."""
    child = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', "
    child += "'import signal; signal.pause()']); print(p.pid)"
    (ended,) = run(tools, tmp_path, [tools.steps.Step("leaves", python(child), 30)])
    assert ended.outcome == "ok"
    with contextlib.suppress(ProcessLookupError):
        assert select.select([os.pidfd_open(int(ended.end))], [], [], 30)[0]  # it has ended


def test_later_steps_keep_their_share(tools: Any, tmp_path: Path) -> None:
    """A step that hangs may not use what is reserved for those behind it; then time is over."""
    step = tools.steps.Step
    steps = [step("hangs", NEVER, 500), step("second", python("print(2)"), 60, least=40)]
    first, second = run(tools, tmp_path, steps, seconds=41.5)
    assert (first.outcome, second.outcome) == ("out of time", "ok")
    (late,) = run(tools, tmp_path, [step("late", python("print(3)"), 60)], seconds=-1)
    assert (late.outcome, late.seconds) == ("no time left", 0)


def test_long_logs_keep_their_end(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that says too much does not crowd out the others."""
    monkeypatch.setattr(tools.steps, "LONGEST_LOG", 100)
    talk = python("print('x' * 5000); print('the end')")
    (ended,) = run(tools, tmp_path, [tools.steps.Step("talks", talk, 30)])
    assert (tmp_path / "talks.log").stat().st_size == 100 and ended.end.endswith("\nthe end")


def test_results_of_pytest(tools: Any, tmp_path: Path) -> None:
    """Counts and names come from junit XML; a file that broke off counts nothing."""
    junit = tmp_path / "junit.xml"
    write = f"import sys; open({str(junit)!r}, 'w').write({JUNIT!r}); sys.exit(1)"
    (ended,) = run(tools, tmp_path, [tools.steps.Step("t", python(write), 30, junit=junit)])
    assert ended.tests == {"passed": 2, "failed": 2} and "2 passed, 2 failed" in ended.line()
    assert ended.failed == ["a::wrong", "b::broken"]
    junit.write_text(JUNIT[:40])
    assert tools.steps.results_of(junit) == ({}, [])


def test_archives_keep_to_the_limits(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few archives, none too large; what does not fit is named and the rest is whole."""
    monkeypatch.setattr(tools.steps, "LARGEST_FILE", 10_000)
    monkeypatch.setattr(tools.steps, "MOST_BYTES", 40_000)
    folder, out = tmp_path / "in", tmp_path / "out"
    (folder / "deep").mkdir(parents=True)
    out.mkdir()
    sizes = {"a": 9_000, "b": 6_000, "deep/c": 3_000, "d": 5_000, "huge": 11_000, "e": 400}
    for name, size in sizes.items():
        (folder / name).write_bytes(os.urandom(size))
    assert tools.steps.pack(folder, out, "r", 5) == ["huge"]
    found = {}
    for path in out.iterdir():
        assert path.suffix == ".zip" and path.stat().st_size <= 10_000
        with zipfile.ZipFile(path) as archive:
            found |= {name: archive.read(name) for name in archive.namelist()}
    assert found == {n: (folder / n).read_bytes() for n in sizes if n != "huge"}
    assert set(tools.steps.pack(folder, out, "s", 1)) == {"huge", "b", "d", "deep/c", "e"}


def test_products_for_the_memory_checker_exist(tools: Any) -> None:
    """The tests that run under the checker are there."""
    assert set(tools.session.CHECKED) <= CONFIGS.keys()


def test_what_collection_says(tools: Any) -> None:
    """Files with tests are named, and those that cannot be imported."""
    match = tools.session.NAMED_BY_COLLECTION.match
    assert match("ERROR tests/gpu/test_x.py - ImportError")["broken"] == "tests/gpu/test_x.py"
    assert match("tests/gpu/test_x.py::test_y[gpu-0]")["file"] == "tests/gpu/test_x.py"
    assert match("no tests collected (3 deselected) in 0.02s") is None


def test_collection_that_fails_is_a_step(tools: Any, tmp_path: Path) -> None:
    """Paths in which nothing is found are run all the same, so that the table shows it."""
    session = tools.session.Session(tmp_path / "out", tmp_path / "work", {})
    (step,) = tools.session.tests(session, "gpu", ["tests/no_such_file.py"], 60)
    assert step.name == "no_such_file" and step.command[-1] == "tests/no_such_file.py"


def test_a_session_in_the_simulator(tools: Any, tmp_path: Path, capsys: Any) -> None:
    """Tests, recordings and another command: the table, the logs and what was recorded."""
    out = tmp_path / "out"
    also = [
        f"{sys.executable} -c \"import os; open(os.environ['OUT'] + '/more', 'w').close()\"",
        "false",
    ]
    arguments = ["--simulate", "--out", str(out), "--only", "tests", "tensor_core"]
    arguments += ["--tests", "tests/house/test_front.py"]
    arguments += [word for command in also for word in ("--also", command)]
    with pytest.raises(SystemExit) as end:
        tools.session.main(arguments)
    assert end.value.code == 1  # `false` failed
    table = json.loads((out / "session.json").read_text())
    assert [step["outcome"] for step in table["steps"]] == ["ok", "ok", "ok", "exit 1"]
    assert table["steps"][0]["tests"] == {"passed": 1, "failed": 0} and table["left_out"] == []
    assert sorted(p.name for p in out.iterdir()) == [
        "logs-1.zip",
        "recordings-1.zip",
        "session.json",
    ]
    names = [name for p in out.glob("*.zip") for name in zipfile.ZipFile(p).namelist()]
    assert {
        "tensor_core.npz",
        "more",
        "record_tensor_core.log",
        "house_test_front.junit.xml",
    } <= set(names)
    assert "0 of 30 groups differ" in capsys.readouterr().out


def test_agreement_is_shown_with_its_tests(tools: Any, tmp_path: Path, capsys: Any) -> None:
    """Rows of all files are in one table, and those that differ are shown at the end."""
    session = tools.session.Session(tmp_path / "out", tmp_path / "work", {})
    row = {"family": "mma", "cases": 1, "lanes": 9, "differ": 2, "payloads": 1}
    (session.logs / "gpu_test_a.agreement.json").write_text(json.dumps([row]))
    (session.logs / "gpu_test_b.agreement.json").write_text("[")
    session.show()
    assert "gpu_test_a: mma: 2 of 9 differ, 1 NaN bits" in capsys.readouterr().out
    session.write()
    table = json.loads((tmp_path / "out" / "session.json").read_text())
    assert table["agreement"] == [{"tests": "gpu_test_a", **row}]
