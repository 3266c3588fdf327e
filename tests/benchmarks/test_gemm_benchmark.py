"""The parts of benchmarks/gpu that need no GPU: shapes, report, structures, the supervisor."""

from __future__ import annotations

import ctypes
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from scripts import scripts


@pytest.fixture(scope="module")
def gpu() -> Iterator[SimpleNamespace]:
    """The modules of the folder."""
    with scripts("gpu", "shapes", "report", "cublaslt", "supervise", "gemm") as found:
        yield found


def side(owner: str, median: float) -> dict[str, object]:
    """A timed side of a result."""
    return {"owner": owner, "median": median, "error": 1e-3, "deviation": 0.0}


def result_of(gpu: SimpleNamespace, case: object, **sides: object) -> dict[str, object]:
    """A result as `measure` returns it."""
    record = {name: getattr(case, name) for name in ("set", "m", "n", "k", "flops", "bytes")}
    return {"name": case.name, **record, "sides": sides, "failures": {}}


def test_every_set_is_there(gpu: SimpleNamespace) -> None:
    """The sets have the numbers of shapes that are quoted."""
    sizes = {name: len(cases) for name, cases in gpu.shapes.load_cases().items()}
    gemms = {"square": 9, "prefill": 12, "decode": 12, "skinny": 4, "tails": 4, "unaligned": 7}
    assert sizes == {**gemms, "fp8": 5, "int8": 5, "fused": 5}


def test_fused_cases_are_the_first_product_of_the_layer(gpu: SimpleNamespace) -> None:
    """[M, hidden, intermediate] becomes M × intermediate × hidden, with its activation."""
    case = gpu.shapes.load_cases()["fused"][0]
    assert case.shape == (512, 12288, 3072)
    assert case.epilogue == "gelu+bias"
    assert case.name == "fused 512x12288x3072 bf16 gelu+bias"


def test_names_are_unique(gpu: SimpleNamespace) -> None:
    """The supervisor tells cases apart by their names."""
    names = [case.name for cases in gpu.shapes.load_cases().values() for case in cases]
    assert len(names) == len(set(names))


def test_bad_cases_are_refused(gpu: SimpleNamespace) -> None:
    """Sizes, dtypes and epilogues that nobody measures do not pass."""
    for wrong in ((0, 1, 1), (1, 1, 1, "f64"), (1, 1, 1, "bf16", "relu")):
        with pytest.raises(ValueError):
            gpu.shapes.Case("square", *wrong)


def test_bytes_count_each_matrix_once(gpu: SimpleNamespace) -> None:
    """8-bit operands have wider results."""
    assert gpu.shapes.Case("x", 2, 3, 5).bytes == 2 * (10 + 15 + 6)
    assert gpu.shapes.Case("x", 2, 3, 5, "i8").bytes == 10 + 15 + 4 * 6


@pytest.mark.parametrize("size", [1, 1_500_000, 50_000_001, 10**9])
def test_buffers_overflow_the_cache(gpu: SimpleNamespace, size: int) -> None:
    """At least three sets, and 150 MB in all."""
    sets = gpu.shapes.buffer_sets(size)
    assert sets >= 3
    assert sets * size >= 150_000_000


@pytest.mark.parametrize("seconds", [1e-6, 2.5e-5, 3e-4, 1e-2])
def test_graphs_are_long_and_use_each_set_alike(gpu: SimpleNamespace, seconds: float) -> None:
    """A multiple of the sets, at least 200 µs."""
    launches = gpu.shapes.launches_per_graph(seconds, 7)
    assert launches % 7 == 0
    assert launches * seconds >= 200e-6


def test_geomean(gpu: SimpleNamespace) -> None:
    """A factor of two up and one down cancel."""
    assert gpu.report.geomean([0.5, 2.0]) == pytest.approx(1.0)
    assert gpu.report.geomean([8.0, 1.0, 1.0]) == pytest.approx(2.0)
    assert math.isnan(gpu.report.geomean([]))


def test_ratio_is_to_the_better_peer(gpu: SimpleNamespace) -> None:
    """Our best candidate against the fastest of all others, fast accumulation included."""
    case = gpu.shapes.load_cases()["fp8"][0]
    result = result_of(
        gpu,
        case,
        slow=side("kdsl", 4e-3),
        good=side("kdsl", 2e-3),
        mm=side("torch", 5e-3),
        lt=side("cuBLASLt", 4e-3),
        fast=side("cuBLASLt fast", 3e-3),
    )
    assert gpu.report.ratio(result) == pytest.approx(1.5)
    assert gpu.report.fastest(result, "kdsl") == ("good", 2e-3)


def test_table_ends_with_a_line_for_each_set(gpu: SimpleNamespace) -> None:
    """Failed and partly measured cases are lines too and do not spoil the summary."""
    cases = gpu.shapes.load_cases()["decode"]
    whole = result_of(gpu, cases[1], a=side("kdsl", 1e-5), b=side("torch", 2e-5))
    alone = result_of(gpu, cases[2], b=side("torch", 2e-5))
    failed = gpu.supervise.Job(cases[3]).failed("exit 1:\nillegal address")
    text = gpu.report.table([whole, alone, failed], {"device": "H200"}, 4.0e12)
    lines = text.splitlines()
    assert "2.000" in next(line for line in lines if line.startswith(cases[1].name))
    assert "illegal address" in next(line for line in lines if line.startswith(cases[3].name))
    share = cases[1].bytes / 1e-5 / 4.0e12
    assert lines[-1].startswith("decode     geomean 2.000  worst 2.000  (1 of 3 cases)")
    assert f"{share:.0%}" in lines[-1]


def test_structures_have_the_sizes_of_the_header(gpu: SimpleNamespace) -> None:
    """cublasLtMatmulHeuristicResult_t is 64 + 8 + 4 + 4 + 16 bytes."""
    lt = gpu.cublaslt
    assert ctypes.sizeof(lt.Algorithm) == 64
    assert ctypes.sizeof(lt.HeuristicResult) == 96
    offsets = [getattr(lt.HeuristicResult, n).offset for n in ("workspace_bytes", "state", "waves")]
    assert offsets == [64, 72, 76]
    assert lt.Epilogue.GELU_BIAS == lt.Epilogue.GELU | lt.Epilogue.BIAS


def test_row_major_matrices_as_the_library_sees_them(gpu: SimpleNamespace) -> None:
    """Wᵀ · A in columns: leading dimensions are the row pitches, and the inner sizes agree."""
    w, a, c = gpu.cublaslt.layouts_of(m=2, n=3, k=5)
    assert (w, a, c) == ((5, 3, 5), (5, 2, 5), (3, 2, 3))


class FakeLibrary:
    """Answers as cuBLASLt does, and remembers what it was asked."""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p(1)
        self.calls: list[tuple[str, tuple[object, ...]]] = []

    def call(self, name: str, *arguments: object) -> None:
        """A call that succeeds."""
        self.calls.append((name, arguments))

    def created(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """A new object."""
        self.call(name, *arguments)
        return ctypes.c_void_p(len(self.calls))


def test_operation_is_described_to_the_library(gpu: SimpleNamespace) -> None:
    """Types, transposition, epilogue and scales arrive under the header's numbers."""
    library, lt = FakeLibrary(), gpu.cublaslt
    lt.LtMatmul(library, (64, 32, 16), "e4m3", "none", scales=(7, 9), fast_accumulation=True)
    created = [c for c in library.calls if c[0].endswith("Create")]
    assert created[0][1] == (68, 0)
    assert [c[1] for c in created[1:]] == [(28, 16, 32, 16), (28, 16, 64, 16), (14, 32, 64, 32)]
    set_to = {c[1][1]: c[1][2]._obj.value for c in library.calls if "SetAttribute" in c[0]}
    assert set_to == {3: 1, 4: 0, 7: 1, 17: 9, 18: 7, 25: 1}


def test_integers_scale_by_integers(gpu: SimpleNamespace) -> None:
    """int8 products compute and scale in int32."""
    library, lt = FakeLibrary(), gpu.cublaslt
    product = lt.LtMatmul(library, (64, 32, 16), "i8")
    assert library.calls[0][1] == (72, 10)
    product.run(lt.Algorithm(), 1, 2, 3, (4, 5), 6)
    arguments = library.calls[-1][1]
    assert isinstance(arguments[2]._obj, ctypes.c_int32)
    assert (arguments[3], arguments[5], arguments[8], arguments[10]) == (2, 1, 3, 3)
    assert arguments[13:] == (4, 5, 6)


WORKER = """
import json, os, sys, time
jobs, journal = sys.argv[-2:]
def write(**entry):
    with open(journal, "a") as file:
        file.write(json.dumps(entry) + "\\n")
write(copy=1.0, device={})
for job in json.load(open(jobs)):
    case = job["case"]
    name = f"{case['set']} {case['m']}x{case['n']}x{case['k']} {case['dtype']}"
    for candidate in ("good", "breaks", "hangs"):
        if candidate in job["excluded"]:
            continue
        write(case=name, trying=candidate)
        if case["m"] == 2 and candidate == "breaks":
            sys.exit("illegal address")
        if case["m"] == 2 and candidate == "hangs":
            time.sleep(60)
    write(case=name, result={"name": name, "set": case["set"], "failures": {}})
"""


def test_a_candidate_that_breaks_or_hangs_costs_only_itself(
    gpu: SimpleNamespace, tmp_path: Path
) -> None:
    """The case is measured again without it, and the others as if nothing had happened."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    told: list[dict[str, object]] = []
    supervisor = gpu.supervise.Supervisor(
        [sys.executable, str(script)], tmp_path, 1.0, time.monotonic() + 60, told.append
    )
    cases = [gpu.shapes.Case("square", m, 1, 1) for m in (1, 2, 3)]
    results = supervisor.run(cases)
    assert [r["name"] for r in results] == [case.name for case in cases]
    assert [set(r["failures"]) for r in results] == [set(), {"breaks", "hangs"}, set()]
    assert "illegal address" in results[1]["failures"]["breaks"]
    assert told == results
    assert supervisor.facts == {"copy": 1.0, "device": {}}


def test_a_case_without_a_candidate_to_blame_is_given_up(
    gpu: SimpleNamespace, tmp_path: Path
) -> None:
    """A worker that dies before it tries anything leaves an error, not a loop."""
    script = tmp_path / "worker.py"
    script.write_text("import sys; sys.exit('no GPU')")
    supervisor = gpu.supervise.Supervisor(
        [sys.executable, str(script)], tmp_path, 5.0, time.monotonic() + 60, lambda _: None
    )
    results = supervisor.run([gpu.shapes.Case("square", 1, 1, 1)])
    assert "no GPU" in results[0]["error"]
    json.dumps(results)


def test_command_line_selects_cases(gpu: SimpleNamespace) -> None:
    """Sets by name, shapes among them, and another dtype."""
    module: ModuleType = gpu.gemm
    words = ["--sets", "square", "decode", "--shapes", "16x6144x4096", "--dtype", "f16"]
    cases = module.selected(module.parser().parse_args(words))
    assert [case.name for case in cases] == ["decode 16x6144x4096 f16"]
    with pytest.raises(SystemExit):
        module.parser().parse_args(["--sets", "round"])
