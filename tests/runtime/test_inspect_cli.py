"""`kdsl inspect`: launches from examples and from options, tables, files, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from click.testing import CliRunner

from kdsl_core.errors import BuildError
from kdsl_runtime import disassembly
from kdsl_runtime.cli import main

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TRANSPOSE = str(EXAMPLES / "transpose.py")
SCALE = '''\
    import kdsl_core as kd

    @kd.kernel
    def scale(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], a: kd.f32, by: kd.Static = 1):
        """y = a · by · x."""
        i = kd.block_idx()[0] * 64 + kd.thread_idx()[0]
        y[i] = x[i] * a * by
    '''
SIZES = ("--grid", "2", "--block", "64")
SPECS = ("--spec", "x=f32[128]", "--spec", "y=f32[128]", "--spec", "a=2.5")


def run(*arguments: str, code: int = 0) -> str:
    """What the command prints."""
    result = CliRunner().invoke(main, ["inspect", *arguments], env={"COLUMNS": "150"})
    assert result.exit_code == code, result.output
    return result.output


def report(*arguments: str) -> dict[str, Any]:
    """The command's JSON."""
    found: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return found


@pytest.fixture
def scale(tmp_path: Path) -> str:
    """A file with a kernel and no example."""
    file = tmp_path / "scale.py"
    file.write_text(dedent(SCALE), encoding="utf-8")
    return str(file)


def test_an_example_is_enough() -> None:
    """The file's own launch; the table has the source, the counters and the roofline."""
    shown = run(TRANSPOSE)
    assert "y[n, m] = tile[column, row + step]" in shown
    assert "wavefronts" in shown and "in all" in shown
    assert "roofline on NVIDIA H200: at least" in shown


@pytest.mark.parametrize(
    "target",
    ["vector_add.py", "matmul.py", "softmax.py", "tma_transpose.py"]
    + [f"hopper_gemm.py:{name}" for name in ("by_hand", "with_collectives")],
)
def test_every_example_can_be_looked_at(target: str) -> None:
    """Each has a launch without hazards, and lines that are hot."""
    found = report(str(EXAMPLES / target))
    assert not found["hazards"]
    assert sum(line["heat"] for line in found["lines"]) > 0.9


def test_an_option_replaces_a_part_of_the_example() -> None:
    """Without the swizzle, the same launch takes 32 passes where 1 would do."""
    swizzled, plain = report(TRANSPOSE), report(TRANSPOSE, "--static", "swizzle=False")
    assert swizzled["totals"]["wavefronts"] == swizzled["totals"]["ideal_wavefronts"]
    hottest = max(plain["lines"], key=lambda line: line["heat"])["counts"]
    assert hottest["wavefronts"] == 32 * hottest["ideal_wavefronts"]
    assert "×32" in run(TRANSPOSE, "--static", "swizzle=False")


def test_arguments_from_specs(scale: str) -> None:
    """Arrays, numbers and trace-time values by name, on any device."""
    found = report(f"{scale}:scale", *SIZES, *SPECS, "--static", "by=3", "--device", "A100")
    assert found["totals"]["global_load_sectors"] == 128 * 4 / 32
    assert found["totals"]["flops_f32"] == 2 * 128
    assert found["roofline"]["device"] == "NVIDIA A100"
    assert not found["hazards"]


def test_hazards_are_shown(scale: str) -> None:
    """A block too many reads and writes beyond the arrays: that is printed, the counters too."""
    shown = run(scale, *SPECS, "--grid", "3", "--block", "64")
    assert "HazardError[K503]" in shown and "roofline on" in shown


def test_files(tmp_path: Path) -> None:
    """A page and a picture are written, and no table is printed."""
    page, picture = tmp_path / "t.html", tmp_path / "t.svg"
    shown = run(TRANSPOSE, "--html", str(page), "--svg", str(picture), "--ptx")
    assert "roofline" not in shown and "wrote" in shown
    assert "ld.shared.b32" in page.read_text(encoding="utf-8")
    assert picture.read_text(encoding="utf-8").startswith("<svg")


def test_texts_below_the_lines(scale: str) -> None:
    """IR and PTX stand under the line that they came from."""
    lines = run(scale, *SIZES, *SPECS, "--ir", "--ptx").splitlines()
    at = next(i for i, line in enumerate(lines) if "y[i] = x[i]" in line)
    below = "\n".join(lines[at + 1 :])
    assert "memory.load" in below and "ld.global.b32" in below and "mul.rn.f32" in below


def test_build_says_what_it_needs() -> None:
    """Registers and occupancy as the assembler's answer gives them."""
    found = report(TRANSPOSE, "--build")
    assert found["build"].startswith("ptxas for sm_90a: ")
    assert "8 blocks of 256 threads fit" in found["build"]


@pytest.mark.skipif(disassembly.find_nvdisasm() is None, reason="needs nvdisasm")
def test_machine_code_by_line() -> None:
    """Loads and stores of shared memory are at the lines that ask for them."""
    found = report(TRANSPOSE, "--sass")["listings"]["sass"]
    texts = {entry["line"]: " ".join(entry["text"]) for entry in found}
    source = Path(TRANSPOSE).read_text(encoding="utf-8").splitlines()
    fills = 1 + next(i for i, line in enumerate(source) if "= x[m, n]" in line)
    reads = 1 + next(i for i, line in enumerate(source) if "y[n, m] =" in line)
    assert "STS" in texts[fills] and "LDG" in texts[fills]
    assert "LDS" in texts[reads] and "STG" in texts[reads]


def test_machine_code_from_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks of lines hold until the next; labels and headers are no instructions."""
    text = """\
        .headerflags @"EF_CUDA_SM90"
        //## File "/tmp/a.py", line 7
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/              @!P0 BRA `(.L_x_0) ;
        //## File "/tmp/b.py", line 9 inlined at "/tmp/a.py", line 8
        /*0020*/                   EXIT ;
    """
    monkeypatch.setattr(disassembly, "_disassembled", lambda cubin: text)
    assert disassembly.sass_by_line(b"") == {
        ("/tmp/a.py", 7): ("LDC R1, c[0x0][0x28] ;", "@!P0 BRA `(.L_x_0) ;"),
        ("/tmp/b.py", 9): ("EXIT ;",),
    }


def test_no_disassembler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """K754: none is there, or the one that is there fails."""
    monkeypatch.setattr(disassembly, "find_nvdisasm", lambda: None)
    with pytest.raises(BuildError, match=r"K754(?s:.*)\[sass\]"):
        disassembly.sass_by_line(b"")
    program = tmp_path / "nvdisasm"
    program.write_text("#!/bin/sh\necho no such architecture >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(disassembly, "find_nvdisasm", lambda: program)
    with pytest.raises(BuildError, match=r"K754(?s:.*)no such architecture"):
        disassembly.sass_by_line(b"")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("missing.py",), "K750", "no Python file"),
        ((str(EXAMPLES / "hopper_gemm.py"),), "K751", "by_hand, with_collectives"),
        ((f"{TRANSPOSE}:turn",), "K751", "no kernel 'turn'"),
        ((TRANSPOSE, "--spec", "x=bf16(3)"), "K753", "--spec x=bf16[128,64]"),
        ((TRANSPOSE, "--static", "swizzle"), "K753", "'swizzle'"),
        ((TRANSPOSE, "--grid", "2x2"), "K753", "--grid 4,2"),
        ((TRANSPOSE, "--device", "abacus"), "K541", "NVIDIA H200"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], code: str, says: str) -> None:
    """Each mistake has its code and says how to mend it."""
    shown = run(*arguments, code=1)
    assert code in shown and says in shown


def test_an_unknown_launch(scale: str) -> None:
    """K752: no example, and not all of a launch is given."""
    shown = run(scale, *SPECS, "--block", "64", code=1)
    assert "K752" in shown and "grid of a launch" in shown and "example_scale()" in shown


def test_a_file_that_fails(tmp_path: Path) -> None:
    """Errors of kdsl are told as always; others come with the file's own lines."""
    file = tmp_path / "broken.py"
    file.write_text("import kdsl_core as kd\nkd.target_of('sm_1')\n", encoding="utf-8")
    assert "K401" in run(str(file), code=1)
    file.write_text("1 / 0\n", encoding="utf-8")
    result = CliRunner().invoke(main, ["inspect", str(file)])
    assert isinstance(result.exception, ZeroDivisionError)


def test_the_page_shows_what_is_printed() -> None:
    """The output in docs/inspect.md is what the command prints, and the picture what it writes."""
    page = (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n\$ kdsl inspect examples/(.*?)\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    for command, shown in blocks:
        name, *options = command.removesuffix(" | tail -1").split()
        result = CliRunner().invoke(
            main, ["inspect", str(EXAMPLES / name), *options], env={"COLUMNS": "132"}
        )
        lines = [line.rstrip() for line in result.output.splitlines()]
        assert shown.splitlines() == (lines[-1:] if "tail" in command else lines)


def test_the_picture_of_the_page_is_drawn_today(tmp_path: Path) -> None:
    """docs/img/inspect_transpose.svg is what the command writes."""
    picture = tmp_path / "now.svg"
    run(TRANSPOSE, "--static", "swizzle=False", "--svg", str(picture))
    kept = ROOT / "docs" / "img" / "inspect_transpose.svg"
    assert picture.read_text(encoding="utf-8") == kept.read_text(encoding="utf-8")
