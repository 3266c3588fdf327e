"""PTX to cubin: the report, the warnings, the refusals."""

from __future__ import annotations

import warnings

import pytest

from kdsl_core.errors import BuildError, ResourceError, TargetError
from kdsl_runtime import metrics
from kdsl_runtime.assemble import (
    AssembleOptions,
    KdslBuildWarning,
    ResourceReport,
    assemble,
)
from kdsl_runtime.ptxas import parse_report
from kdsl_runtime.toolchain import find_toolchain, open_toolchain

SPILLING_LOG = """\
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; no register count.
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'gemm' for 'sm_90a'
ptxas info    : Function properties for gemm
    64 bytes stack frame, 48 bytes spill stores, 52 bytes spill loads
ptxas info    : Used 168 registers, used 3 barriers, 64 bytes stack, 1024 bytes smem, 400 bytes \
cmem[0], 16 bytes cmem[2]
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_real_cubin(add_one, target):
    """ptxas makes an ELF image and states registers, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cubin = assemble(add_one(target), target, find_toolchain())
    assert cubin.data.startswith(b"\x7fELF")
    assert 0 < cubin.report.registers < 32
    assert (cubin.report.spill_stores, cubin.report.warnings) == (0, ())


def test_same_ptx_gives_the_same_bytes(add_one):
    """Two runs in two folders agree, so entries can be compared and shared."""
    first, second = (assemble(add_one(), "sm_80") for _ in range(2))
    assert first == second


def test_no_file_is_left(add_one, tmp_path, monkeypatch):
    """The files lie in $TMPDIR while ptxas runs; where that cannot be, they lie elsewhere."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(BuildError, match="refused"):
        assemble(add_one().text.replace("cvta", "oops"), "sm_80")
    wanted = assemble(add_one(), "sm_80")
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    assert assemble(add_one(), "sm_80") == wanted


def test_report_of_a_spilling_kernel():
    """Every number of the log is found, and the C7xxx remark is a warning."""
    report = parse_report(SPILLING_LOG)
    assert (report.registers, report.spill_stores, report.spill_loads) == (168, 48, 52)
    assert (report.stack, report.shared, report.constant) == (64, 1024, 416)
    assert len(report.warnings) == 1 and "setmaxnreg" in report.warnings[0]
    assert ResourceReport.from_json(report.as_json()) == report


def test_spills_reach_the_user(add_one, fake_ptxas, write_cubin):
    """A spill and a dropped setmaxnreg are warnings that name the kernel."""
    program = fake_ptxas(f"cat >&2 <<'EOF'\n{SPILLING_LOG}EOF\n{write_cubin}")
    with pytest.warns(KdslBuildWarning) as caught:
        cubin = assemble(add_one(), "sm_80", open_toolchain(program))
    assert cubin.data == b"CUBE"
    texts = [str(warning.message) for warning in caught]
    assert all("kernel add_one (sm_80)" in text for text in texts)
    assert "48 bytes of spill stores" in texts[0] and "C7508" in texts[1]


def test_refusal_shows_ptx_and_author_line(add_one, tmp_path):
    """The error holds ptxas' message, the PTX line, and the line that the .loc above it names."""
    source = tmp_path / "gemm.py"
    source.write_text("\n" * 40 + "acc = kd.gemm(a, b, acc)\n")
    module = add_one()
    located = f'.file 1 "{source}"\n.visible'
    text = module.text.replace(".visible", located).replace(
        "  add.rn.f32 %f3, %f2, %f1;", "  .loc 1 41 7\n  add.rn.f32 %f3, %f2, %rd1;"
    )
    with pytest.raises(BuildError) as caught:
        assemble(text, "sm_80")
    assert caught.value.code == "K705"
    assert "kernel add_one" in str(caught.value)
    assert "Arguments mismatch for instruction 'add'" in caught.value.message
    assert caught.value.notes[0].endswith("add.rn.f32 %f3, %f2, %rd1;")
    assert f"{source}:41:7: acc = kd.gemm(a, b, acc)" in caught.value.notes[1]


def test_refusal_reads_comments(add_one):
    """A `// file.py:line` comment serves where there is no .loc."""
    text = add_one().text.replace("cvta.to.global.u64 %rd1, %rd1;", "oops; // k.py:12:3")
    with pytest.raises(BuildError) as caught:
        assemble(text, "sm_80")
    assert any("written at k.py:12:3" in note for note in caught.value.notes)


def test_new_ptx_version_is_explained(add_one):
    """PTX newer than the assembler tells to use a newer assembler."""
    text = add_one().text.replace(".version 8.0", ".version 99.0")
    with pytest.raises(BuildError, match=r"Unsupported \.version") as caught:
        assemble(text, "sm_80")
    assert "newer assembler" in caught.value.fix


def test_time_limit(add_one, fake_ptxas):
    """An assembler that hangs is killed and named."""
    hanging = open_toolchain(fake_ptxas("exec tail -f /dev/null"))
    with pytest.raises(BuildError, match=r"did not finish within 0\.1 s") as caught:
        assemble(add_one(), "sm_80", hanging, AssembleOptions(time_limit_s=0.1))
    assert caught.value.code == "K704"


def test_success_without_a_cubin_is_a_failure(add_one, fake_ptxas):
    """Exit status 0 is not believed when no file was written."""
    with pytest.raises(BuildError, match="no message"):
        assemble(add_one(), "sm_80", open_toolchain(fake_ptxas()))


def test_text_without_entry():
    """PTX that declares no kernel is refused before the assembler runs."""
    with pytest.raises(BuildError, match=r"\.entry") as caught:
        assemble(".version 8.0", "sm_80")
    assert caught.value.code == "K707"


@pytest.mark.parametrize(
    ("target", "limit"),
    [
        ("sm_80", 163),
        ("sm_86", 99),
        ("sm_89", 99),
        ("sm_90a", 227),
        ("sm_100a", 227),
        ("sm_120", 99),
    ],
)
def test_shared_memory_limit(add_one, fake_ptxas, write_cubin, target, limit):
    """The limit itself is allowed, one byte more is an error with both numbers."""
    program = open_toolchain(fake_ptxas(write_cubin))
    assemble(add_one(target, shared_bytes=limit * 1024), target, program)
    with pytest.raises(ResourceError, match=rf"{limit * 1024 + 1} .* {limit * 1024} \(1 bytes"):
        assemble(add_one(target, shared_bytes=limit * 1024 + 1), target, program)


def test_thread_limit(add_one):
    """More than 1024 threads are refused with the number."""
    with pytest.raises(ResourceError, match="1056 threads per block") as caught:
        assemble(add_one(threads=1056), "sm_80")
    assert caught.value.code == "K481"


def test_registers_times_threads(add_one, fake_ptxas, write_cubin):
    """Registers that a multiprocessor does not have are refused after the report."""
    program = fake_ptxas(f"echo 'ptxas info : Used 128 registers' >&2; {write_cubin}")
    with pytest.raises(ResourceError, match="need 131072 registers") as caught:
        assemble(add_one(threads=1024), "sm_80", open_toolchain(program))
    assert caught.value.code == "K483"


def test_unknown_target(add_one):
    """A target that is not in the table is named."""
    with pytest.raises(TargetError, match="sm_35"):
        assemble(add_one("sm_35"), "sm_35")


def test_builds_are_counted(add_one, fake_ptxas, write_cubin):
    """One build and its time, and no failure."""
    metrics.reset()
    assemble(add_one(), "sm_80", open_toolchain(fake_ptxas(write_cubin)))
    counted = metrics.snapshot()
    assert (counted["builds"], counted["build_failures"]) == (1, 0)
    assert counted["build_seconds"] > 0
