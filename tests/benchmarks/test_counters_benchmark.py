"""Counters against Nsight Compute, without either GPU or ncu: its tables, and a stand-in for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kdsl_runtime.profile import compare, ncu_csv
from scripts import scripts

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"
# Case → metrics, joined by " + " where their sum was recorded → what ncu counted.
RECORDED: dict[str, dict[str, int]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "counters" / "h200.json").read_text(encoding="utf-8")
)

METRICS = """\
==PROF== Connected to process 4242 (/usr/bin/python3.11)
==PROF== Profiling "copies" - 0: 0%....50%....100% - 5 passes
a line of the program itself
==PROF== Disconnected from process 4242
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",\
"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","4242","python3.11","127.0.0.1","copies","1","7","(256, 1, 1)","(4, 1, 1)","0","9.0",\
"Command line profiler metrics","l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum","","32"
"0","4242","python3.11","127.0.0.1","copies","1","7","(256, 1, 1)","(4, 1, 1)","0","9.0",\
"Command line profiler metrics","l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum","sector","1,128"
"0","4242","python3.11","127.0.0.1","copies","1","7","(256, 1, 1)","(4, 1, 1)","0","9.0",\
"Command line profiler metrics","smsp__inst_executed.sum","inst","512"
"0","4242","python3.11","127.0.0.1","copies","1","7","(256, 1, 1)","(4, 1, 1)","0","9.0",\
"Command line profiler metrics","smsp__inst_executed_pipe_tensor_op_gmma.sum","","n/a"
"""

PAGE = """\
==PROF== Connected to process 4243 (/usr/bin/python3.11)
"File Path","/somewhere/benchmarks/gpu/counter_cases.py"
"Function Name","copies"
"Line No","Source","Address","Source","# Samples","Instructions Executed",\
"L2 Theoretical Sectors Global"
"{line}","    y[i] = x[i]","","","3","96","257"
"","","0x7f10","      LDG.E R5, [R2]","1","32","128"
"","","0x7f20","      STG.E [R4], R5","2","32","129"
"{other}","    i = (kd.block_idx()[0] * THREADS + kd.thread_idx()[0]) * step","","","0","1,064","-"
"""

NCU = """\
#!{python}
import sys
if "--query-metrics" in sys.argv:
    print("smsp__inst_executed  Counter  inst  # of warp instructions executed")
    for name in {known!r}:
        print(name, "Counter")
elif "--page" in sys.argv:
    print({page!r})
else:
    wanted = sys.argv[sys.argv.index("--metrics") + 1].split(",")
    assert "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum" in wanted
    print({metrics!r})
"""


@pytest.fixture(scope="module")
def gpu() -> Iterator[SimpleNamespace]:
    """The modules of the folder."""
    with scripts("gpu", "counter_cases", "counters") as found:
        yield found


def line_of(text: str) -> int:
    """The number of a line in the file of the cases."""
    lines = (FOLDER / "counter_cases.py").read_text(encoding="utf-8").splitlines()
    return 1 + next(i for i, line in enumerate(lines) if text in line)


def page() -> str:
    """The source page for the kernel `copies`, with the numbers that its lines have today."""
    return PAGE.format(line=line_of("y[i] = x[i]"), other=line_of("* THREADS + kd.thread_idx()"))


def test_metrics_of_launches(gpu: SimpleNamespace) -> None:
    """Values with commas, what is not there, and everything that is no table."""
    assert ncu_csv.metrics(METRICS) == {
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 32,
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 1128,
        "smsp__inst_executed.sum": 512,
    }
    assert ncu_csv.metrics("==ERROR== no permission\n") == {}


def test_counters_of_lines(gpu: SimpleNamespace) -> None:
    """Rows of source have the sums; rows of instructions are part of them."""
    found = ncu_csv.lines(page())
    line = found["counter_cases.py", line_of("y[i] = x[i]")]
    assert line["L2 Theoretical Sectors Global"] == 257 and line["Instructions Executed"] == 96
    other = found["counter_cases.py", line_of("* THREADS + kd.thread_idx()")]
    assert other["Instructions Executed"] == 1064
    assert "L2 Theoretical Sectors Global" not in other and len(found) == 2


@pytest.mark.parametrize(
    "name",
    (
        *("copy", "copy_strided", "histogram", "histogram_weighted", "cluster", "gemm_sm80"),
        *("wide_loads_spread", "wgmma_64_K_registers", "wgmma_128_MN_shared"),
    ),
)
def test_cases_run(gpu: SimpleNamespace, name: str) -> None:
    """A case runs in the simulator without hazards and counts something to compare."""
    import kdsl_core as kd

    case = gpu.counters.CASES[name]()
    options = {"grid": case.grid, "block": case.block, "cluster": case.cluster}
    result = kd.simulate(case.kernel, args=case.args, kwargs=case.kwargs, **options)
    rows = compare.totals(result.profile, {})
    assert sum(row["ours"] for row in rows if "requests" in row["names"][0]) > 0
    assert {row["verdict"] for row in rows} == {"not measured"}


@pytest.mark.parametrize("name", RECORDED)
def test_as_recorded(gpu: SimpleNamespace, name: str) -> None:
    """Every counter that must be equal is what ncu counted on an H200 for the same kernel."""
    profile = gpu.counters.simulated(gpu.counters.CASES[name]())
    wrong = []
    for metric in gpu.counters.kd.sim.METRICS:
        ours = sum(profile.totals[counter] for counter in metric.names)
        theirs = RECORDED[name].get(" + ".join(metric.ncu), 0)  # what both had as 0 was left out
        if metric.binds(profile.totals) and ours != theirs:
            wrong.append((metric.names, ours, theirs))
    assert not wrong


def test_what_wgmma_reads(gpu: SimpleNamespace) -> None:
    """Both operands where they are in shared memory, and B alone where A is in registers."""
    depth, width = 64 * 2, 64  # bytes of a row, rows of B
    for a_from, rows in (("shared", 64 + width), ("registers", width)):
        profile = gpu.counters.simulated(gpu.counter_cases.wgmma(width, "K", a_from))
        assert profile.totals["wgmma_wavefronts"] == rows * depth / 128


def test_what_hardware_decides_is_an_estimate(gpu: SimpleNamespace) -> None:
    """Wavefronts must be equal but where `cp.async` writes some, in a line as in total."""
    wavefronts = {"memory_l1_wavefronts_shared": 1.0}
    for name, word in (("transpose", "differs"), ("copy_background", "estimate")):
        profile = gpu.counters.simulated(gpu.counters.CASES[name]())
        rows = compare.totals(profile, wavefronts)
        assert {row["verdict"] for row in rows if row["names"] == ("wavefronts",)} == {word}
    (copy,) = (row for row in profile.lines if row.async_copy_wavefronts)
    column = "L1 Wavefronts Shared"
    lines = compare.by_line(profile, {(Path(copy.file).name, copy.line): {column: 1.0}})
    found = {row["line"]: row["verdict"] for row in lines if row["column"] == column}
    assert found.pop(copy.line) == "estimate" and set(found.values()) == {"differs"}


def run(folder: Path, metrics: str, known: list[str]) -> tuple[int, str, Any]:
    """The script's exit code, text and JSON with a stand-in for ncu on PATH."""
    program = folder / "ncu"
    text = NCU.format(python=sys.executable, page=page(), metrics=metrics, known=known)
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    out = folder / "counters.json"
    environ = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, str(FOLDER / "counters.py"), "--cases", "copy", "--json", str(out)],
        capture_output=True,
        text=True,
        env=environ,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr, json.loads(out.read_text(encoding="utf-8"))


KNOWN = [
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld",
]


def test_differences_are_told(tmp_path: Path) -> None:
    """A counter that must be equal and is not: named in the table, and exit code 1."""
    code, text, result = run(tmp_path, METRICS, KNOWN)
    assert code == 1, text
    assert "global_load_sectors" in text and "1,128" in text
    (case,) = result["cases"]
    verdicts = {tuple(row["names"]): row["verdict"] for row in case["totals"]}
    assert verdicts["global_load_requests", "async_copy_requests"] == "equal"
    assert verdicts["global_load_sectors", "async_copy_sectors"] == "differs"
    assert verdicts["instructions",] == "estimate"
    assert verdicts["global_store_sectors",] == "not measured"
    sectors = [row for row in case["lines"] if row["column"] == "L2 Theoretical Sectors Global"]
    assert [(row["ours"], row["theirs"], row["verdict"]) for row in sectors] == [
        (256, 257, "differs")
    ]
    assert "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum" not in result["metrics"]


def test_an_ncu_that_fails(tmp_path: Path) -> None:
    """What ncu said is in the result; the other cases would go on."""
    broken = tmp_path / "fake"
    broken.mkdir()
    code, text, result = run(broken, METRICS, ["smsp__something_else"])
    assert code == 1 and "AssertionError" in result["cases"][0]["error"], text
