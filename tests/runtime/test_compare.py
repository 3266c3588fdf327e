"""`kdsl compare`: what it says of right ports, and of each way in which one can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from kdsl_runtime.cli import main
from kdsl_runtime.compare.product import Product, left_out
from kdsl_runtime.compare.sums import first_parting, way_of, ways_of
from porting import Case, modelled, recorded, tiled_copy
from scripts import EXAMPLES

PORTING = EXAMPLES / "porting"
EQUAL, ORDER, PREDICATE, TILE, RACE, UNKNOWN = 0, 3, 4, 5, 6, 7
Edit = tuple[str, str]
IN_F32 = (
    ("F16F16F16F16_TN", "F32F16F16F32_TN"),
    ("kd.copy(tCrC, tCgC)", "for i in range(kd.size(tCrC)):\n        tCgC[i] = tCrC[i].to(kd.f16)"),
)
SYNC = "    kd.sync_threads()\n    read(0, 0)", "    read(0, 0)"
SWAPPED = "gC = kd.local_tile(C, (TILE_M, TILE_N), (m, n))", "(TILE_M, TILE_N), (n, m))"


def compared(*arguments: object, code: int) -> str:
    """What the command prints."""
    result = CliRunner().invoke(main, ["compare", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def changed(folder: Path, port: str, *edits: Edit) -> Path:
    """A port with some of its text changed, beside the modules that it imports."""
    for helper in ("operands", "shown"):
        (folder / f"{helper}.py").write_bytes((PORTING / f"{helper}.py").read_bytes())
    text = (PORTING / f"{port}.py").read_text(encoding="utf-8")
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / f"{port}.py"
    path.write_text(text, encoding="utf-8")
    return path


def recording(folder: Path, case: Case, **more: Any) -> Path:
    """A file as a C++ program's outputs make it: those that the model gives."""
    a, b, _ = case.arrays
    path = folder / "run.npz"
    np.savez(path, **{"A": a, "B": b, "C.out": np.asfortranarray(modelled(a, b)), **more})
    return path


def test_equal_bits_are_told(tmp_path: Path) -> None:
    """A right port: exit code 0."""
    run = recording(tmp_path, Case("sgemm", "NT", 128, 256, 24))
    assert "all 32,768 elements are equal (bit by bit)" in compared(
        run, PORTING / "sgemm.py", code=EQUAL
    )


@pytest.mark.parametrize(
    ("port", "edits", "code", "words"),
    [
        ("sgemm", [("in range(TILE_K)", "in reversed(range(TILE_K))")], ORDER, "in f32, one after"),
        ("sgemm", [("kd.range(tiles)", "kd.range(tiles - 1)")], TILE, "leaves out k = 56 … 63"),
        ("sgemm", [("kd.range(tiles)", "kd.range(2, tiles)"),
                   ("tAgA[..., 0]", "tAgA[..., 2]"), ("tBgB[..., 0]", "tBgB[..., 2]")],
         TILE, "leaves out k = 0 … 15"),
        ("sgemm", [("tile + 1, tiles - 1", "tile + 1, 3")], TILE, "k = 24 … 31 4 times too often"),
        ("sgemm", [("            kd.gemm(", "            if k != 3:\n                kd.gemm(")],
         TILE, "leaves out k = 11 … 11"),
        ("sgemm", [SWAPPED], TILE, "holds what belongs to that of block"),
        ("hgemm_sm80", [SYNC], RACE, "this kernel's runs differ"),
        ("hgemm_sm90", [("kd.fence_proxy_async()", "pass")], RACE, ": proxy"),
        ("hgemm_sm90_tma", [("full[stage].wait(turn % 2)", "pass")], RACE, "inflight"),
        ("hgemm_sm90_tma", [("read.init()", "pass")], UNKNOWN, "barrier"),
    ],
)  # fmt: skip
def test_what_a_wrong_port_looks_like(
    port: str, edits: list[Edit], code: int, words: str, tmp_path: Path
) -> None:
    """One change each: the answer names it."""
    edits = [
        (old, new if old != SWAPPED[0] else f"gC = kd.local_tile(C, {new}") for old, new in edits
    ]
    case = Case(port, "TN", 256, 256, 64 if port == "sgemm" else 128)
    runs = "3" if code == RACE else "1"
    path = changed(tmp_path, port, *edits)
    said = compared(recording(tmp_path, case), path, "--runs", runs, code=code)
    assert words in said


def test_f32_accumulators_are_another_order(tmp_path: Path) -> None:
    """Both ways to sum are named, and the step of K behind which they part."""
    path = changed(tmp_path, "hgemm_sm80", *IN_F32)
    run = recording(tmp_path, Case("hgemm_sm80", "NT", 128, 128, 64))
    found = json.loads(compared(run, path, "--format", "json", code=ORDER))["outputs"][0]
    assert found["reasons"][1:] == [
        "this kernel sums by: tensor-core steps of 16 along K into f32",
        "the recorded one by: tensor-core steps of 16 along K into f16",
    ]
    row, column = found["first"]["coordinate"]
    assert found["first"]["tile"] == {"block": [0, 0, 0], "origin": [0, 0], "shape": [128, 128]}
    assert (found["first"]["warp"], found["first"]["lane"]) == thread_of(row, column)
    assert found["first"]["register"].startswith("acc[")
    begin, end = found["first"]["k"]
    assert begin % 16 == 0 and end == begin + 16 <= 64
    assert "equal (within" in compared(run, path, "--atol", "0.25", code=EQUAL)
    assert "differ (within" in compared(run, path, "--rtol", "1e-9", code=ORDER)


def test_the_answer_of_the_page_is_what_is_said(tmp_path: Path) -> None:
    """docs/porting.md quotes the command word for word."""
    case = Case("hgemm_sm80", "TN", 256, 256, 192)
    a, b, _ = case.arrays
    np.savez(tmp_path / "run.npz", **{"A": a, "B": b, "C.out": recorded(case)})
    path = changed(tmp_path, "hgemm_sm80", *IN_F32)
    said = compared(tmp_path / "run.npz", path, "--runs", "1", code=ORDER)
    page = (PORTING.parents[1] / "docs" / "porting.md").read_text(encoding="utf-8")
    assert said.partition("\n\n")[2] in page


def thread_of(row: int, column: int) -> tuple[int, int]:
    """Warp and lane that hold an element of C: 2 × 2 warps of 16 × 8, side by side."""
    warp = row // 16 % 2 + column // 8 % 2 * 2
    return warp, row % 8 * 4 + column % 8 // 2


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (("row < S.shape[0]", "row < S.shape[0] - 1"), "never writes 67 elements within [130…130"),
        (("column < S.shape[1]", "column <= S.shape[1]"), "oob"),
    ],
)
def test_predicates_are_told_from_tiles(edit: Edit, words: str, tmp_path: Path) -> None:
    """An edge that is left out, and one that is passed."""
    source, _ = tiled_copy.matrices(131, 67)
    np.savez(tmp_path / "run.npz", **{"S": source, "D.out": source})
    path = changed(tmp_path, "tiled_copy", edit)
    assert words in compared(tmp_path / "run.npz", path, code=PREDICATE)


def test_a_grid_that_is_too_small_leaves_tiles_out(tmp_path: Path) -> None:
    """Sizes on the command line replace those of the file."""
    run = recording(tmp_path, Case("sgemm", "NT", 256, 128, 8))
    said = compared(run, PORTING / "sgemm.py", "--grid", "1,1", code=TILE)
    assert "never writes 1 whole tile: 16,384 elements within [128…255, 0…127]" in said
    assert "nobody wrote this element" in said


def test_results_from_elsewhere_are_compared(tmp_path: Path) -> None:
    """--got takes them from a file; several runs in it must not differ."""
    case = Case("sgemm", "TN", 128, 128, 8)
    run, port = recording(tmp_path, case), PORTING / "sgemm.py"
    want = modelled(*case.arrays[:2])
    other = want.copy()
    other[5, 7] += 1
    np.savez(tmp_path / "steady.npz", **{"C.out": want, "C.out.2": want})
    np.savez(tmp_path / "unsteady.npz", **{"C.out": want, "C.out.2": other})
    assert "run 1 of steady.npz" in compared(
        run, port, "--got", tmp_path / "steady.npz", code=EQUAL
    )
    said = compared(run, port, "--got", tmp_path / "unsteady.npz", code=RACE)
    assert "1 elements of run 1 of unsteady.npz and run 2" in said and "C[5, 7]: got" in said
    again = recording(tmp_path, case, **{"C.out.2": np.asfortranarray(other)})
    assert "the recorded runs differ" in compared(again, port, code=RACE)


def test_kernels_without_a_launch_function_take_sizes(tmp_path: Path) -> None:
    """--grid, --block and --static; scalars come from the file, bf16 from its raw bytes."""
    (tmp_path / "scale.py").write_text(
        "import kdsl_core as kd\n\n"
        "@kd.kernel\n"
        'def scale(x: kd.Tensor["bf16", "n"], y: kd.Tensor["bf16", "n"], a: kd.f32,'
        " by: kd.Static = 1):\n"
        "    i = kd.thread_rank()\n"
        "    y[i] = (x[i].to(kd.f32) * a * by).to(kd.bf16)\n"
    )
    x = np.arange(32).astype(ml_dtypes.bfloat16)
    run = tmp_path / "run.npz"
    np.savez(run, **{"x": x, "a": np.float32(1.5), "y.out": (x * 3).astype(x.dtype)})
    port, sizes = tmp_path / "scale.py", ("--grid", "1", "--block", "32")
    compared(run, port, *sizes, "--static", "by=2", code=EQUAL)
    assert "y[1]: got 1.5 (0x3fc0), recorded 3" in compared(run, port, *sizes, code=UNKNOWN)
    assert "K752" in compared(run, port, "--block", "32", code=1)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"A": np.zeros(3)}, 'no name ends in ".out"'),
        ({"Z.out": np.zeros(3)}, "takes A, B, C, plan, shown"),
        ({"C.out": np.zeros(3), "C.out.2": np.zeros(4)}, "runs of C with different shapes"),
    ],
)
def test_files_of_another_kind_are_refused(
    arrays: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """K770 says what a recording looks like."""
    np.savez(tmp_path / "run.npz", **arrays)
    said = compared(tmp_path / "run.npz", PORTING / "sgemm.py", code=1)
    assert "K770" in said and words in said and "np.savez" in said


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    """K770 again."""
    (tmp_path / "run.npz").write_text("C")
    assert "K770" in compared(tmp_path / "run.npz", PORTING / "sgemm.py", code=1)


def test_results_of_another_type_are_refused(tmp_path: Path) -> None:
    """K771, with both."""
    case = Case("sgemm", "TN", 128, 128, 8)
    np.savez(tmp_path / "got.npz", **{"C.out": np.zeros((128, 128))})
    run = recording(tmp_path, case)
    said = compared(run, PORTING / "sgemm.py", "--got", tmp_path / "got.npz", code=1)
    assert "K771" in said and "float64 (128, 128), but float32" in said


# -- sums --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
)
def test_a_way_to_sum_is_found_by_its_bits(dtype: Any) -> None:
    """What a way gives is recognised as that way, or as one before it with the same bits."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((200, 128)).astype(dtype) for _ in range(2))
    out = np.dtype(np.float16 if dtype is np.float16 else np.float32)
    for way in ways_of(a.dtype):
        found = way_of(a, b, way.total(a, b, out))
        assert (
            found is not None and found.total(a, b, out).tobytes() == way.total(a, b, out).tobytes()
        )
    assert way_of(a, b, rng.standard_normal(200).astype(out)) is None


def test_ways_part_where_their_sums_do() -> None:
    """Steps of 8 and of 16 along K agree until their sums differ."""
    a, b = np.ones((1, 64), np.float16), np.ones((1, 64), np.float16)
    a[0, 40] = 2.0**-11  # is lost when it is added to 33 in f16, but not beside it in one step
    into_f16 = [w for w in ways_of(a.dtype) if w.words.endswith("into f16") and w.ascending]
    into_f32 = [w for w in ways_of(a.dtype) if w.words.endswith("into f32") and w.ascending]
    assert first_parting(into_f32[0], into_f16[0], a, b) == (32, 48)
    assert first_parting(into_f16[0], into_f16[0], a, b) is None


def test_parts_of_k_are_found_from_differences() -> None:
    """Two parts, one of them twice, in noise; and nothing in what is noise only."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((64, 160)).astype(np.float32) for _ in range(2))
    want = a @ b.T
    got = want - a[:, 64:96] @ b[:, 64:96].T + 2 * (a[:, 128:136] @ b[:, 128:136].T)
    got += rng.standard_normal(got.shape).astype(np.float32) * 0.01
    at = np.argwhere(got != want)
    found = left_out(Product(("A", "B"), a, b), got, want, at)
    assert [(part.begin, part.end, part.times) for part in found] == [(64, 96, 1), (128, 136, -2)]
    noise = want + rng.standard_normal(want.shape).astype(np.float32)
    assert left_out(Product(("A", "B"), a, b), noise, want, np.argwhere(noise != want)) == []
