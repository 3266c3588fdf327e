"""What is recorded of a GPU comes back bit by bit, and the model's errors are found in it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.errors import DriverError
from kdsl_core.isa.functions import INSTRUCTIONS
from kdsl_runtime import device_array
from kdsl_runtime.assemble import assemble
from scripts import scripts

FEW = ["--simulate", "--problems", "1", "--only", "SM80_16x8x16_F16", "64x8x8_F32TF32TF32_RS"]


@pytest.fixture(scope="module")
def tools() -> Iterator[SimpleNamespace]:
    """The scripts that record."""
    names = ("ulps", "record_functions", "fit_functions")
    names += ("tensor_core_inputs", "record_tensor_core", "record_nans")
    with scripts("gpu", *names) as found:
        yield found


class Held(np.ndarray[Any, Any]):
    """An array "on the GPU": a launch runs it in the simulator."""

    def read(self) -> Any:
        """The array, back on the host."""
        return np.array(self)


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose memory is the host's."""
    monkeypatch.setattr(device_array, "to_device", lambda array: array.copy().view(Held))


def test_both_scripts_on_a_gpu(tools: Any, tmp_path: Path, fake_gpu: None) -> None:
    """The way to the GPU and back gives the files that `--simulate` gives."""
    for folder, more in (("gpu", []), ("simulator", ["--simulate"])):
        out = tmp_path / folder
        words = ["--bits", "10", "--functions", "tanh", "--out", str(out), *more]
        tools.record_functions.main(words)
        words = ["--problems", "1", "--only", "64x8x32_F16E4M3E5M2_RS", *more]
        tools.record_tensor_core.main([*words, "--out", str(out / "tensor_core.npz")])
    for path in sorted((tmp_path / "gpu").glob("*.npz")):
        with np.load(path) as ours, np.load(tmp_path / "simulator" / path.name) as theirs:
            assert ours.files == theirs.files and len(ours.files) > 4
            assert all(np.array_equal(ours[key], theirs[key]) for key in ours.files)


# -- functions -------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["exp2", "rsqrt", "sin"])
def test_functions_end_to_end(tools: Any, tmp_path: Path, name: str, capsys: Any) -> None:
    """The simulator's results are recorded, and every file gives all of them back."""
    script = tools.record_functions
    script.main(["--simulate", "--bits", "10", "--functions", name, "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "functions.json").read_text())
    assert [row["inputs"] for row in rows] == list(script.sets_of(name))
    assert name == "sin" or max(row["max_ulps"] for row in rows) in (1, 2)
    assert f"{name:<6} binade0" in capsys.readouterr().out
    for row in rows:
        x, got = script.recorded(tmp_path / f"{name}-{row['inputs']}.npz")
        assert len(x) == row["lanes"] == 1024
        np.testing.assert_array_equal(got, script.measured(name, x, simulate=True))
    assert script.check(tmp_path) == 0


def test_every_approximate_function_is_recorded(tools: Any) -> None:
    """The recorded functions are the instructions that there are; one flushes another's results."""
    names = {row.name for row in INSTRUCTIONS if row.name.endswith("_approx")}
    names.remove("exp2_ftz_approx")
    assert {f"{name}_approx" for name in tools.record_functions.BINADES} == names
    assert tools.record_functions.REFERENCES.keys() == tools.record_functions.BINADES.keys()


def test_what_the_simulator_has_wrong(tools: Any, tmp_path: Path, capsys: Any) -> None:
    """Results that are one ulp off, and a NaN of another payload, are counted by `--check`."""
    script = tools.record_functions
    x = script.inputs("random", 10)
    got = script.measured("sqrt", x, simulate=True)
    got.view(np.uint32)[np.flatnonzero(got == 1.0)[:2]] += 1
    got.view(np.uint32)[np.flatnonzero(np.isnan(got))[0]] = 0xFFC00001
    row = script.record(tmp_path, "sqrt", "random", got, 10)
    assert (row["max_ulps"], row["histogram"]["<=0"]) == (1, 1022) and "0xffc00001" in row[
        "nan_bits"
    ]
    assert script.check(tmp_path) == 3
    assert "3 differ, 1 by NaN" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [False, True])
def test_tables_are_recovered(tools: Any, tmp_path: Path, wrong: bool, capsys: Any) -> None:
    """512 results of each interval have the row they were made with; a wrong one has none."""
    script, name, bits = tools.record_functions, "rcp", 16
    x = script.inputs("binade0", bits)
    got = script.measured(name, x, simulate=True)
    got.view(np.uint32)[1000] += 2 * wrong
    script.record(tmp_path, name, "binade0", got, bits)
    with pytest.raises(SystemExit) as ended:
        tools.fit_functions.main([str(tmp_path), "--tables", "RCP"])
    assert ended.value.code == wrong
    told = capsys.readouterr().out
    assert "65536 results, 128 of 128 intervals" in told
    assert f"{128 - wrong} with the simulator's" in told


def test_what_the_tests_keep(tools: Any, tmp_path: Path) -> None:
    """`--golden` copies the files of 16-bit inputs and knows the checksums of all."""
    for folder in ("recorded", "kept"):
        (tmp_path / folder).mkdir()
    script, got = tools.record_functions, np.zeros(1024, np.float32)
    for which in ("f16", "bf16", "random"):
        script.record(tmp_path / "recorded", "sin", which, got, 10)
    script.keep(tmp_path / "recorded", tmp_path / "kept")
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert kept == {"sin-f16.npz", "sin-bf16.npz", "checksums.json"}
    checksums = json.loads((tmp_path / "kept" / "checksums.json").read_text())
    assert checksums == dict.fromkeys(["sin-f16", "sin-bf16", "sin-random"], zlib.crc32(got))


def test_inputs_are_all_that_they_say(tools: Any) -> None:
    """Each number of 16 bits and each of a binade occurs once; special ones are there."""
    inputs = tools.record_functions.inputs
    for which in ("f16", "bf16"):
        assert len(np.unique(inputs(which).view(np.uint32))) == 1 << 16
    binade = inputs("binade-1")
    assert len(binade) == 1 << 23 and binade[0] == 0.5 and binade[-1] == np.float32(1 - 2**-24)
    assert (np.diff(binade.view(np.uint32)) == 1).all()
    special = inputs("random")[: 6 * 256]
    assert np.isinf(special).sum() == 2 and (special == 0).sum() == 2 and np.isnan(special).any()


def wide_and_got(kind: str) -> tuple[Any, Any]:
    """Exact results in f64, and recorded ones that are near, far, or not numbers."""
    rng = np.random.default_rng(5)
    wide = rng.standard_normal(4096) * 2.0 ** rng.integers(-160, 130, 4096)
    got = wide.astype(np.float32)
    if kind == "smooth":
        wide = np.linspace(1, 2, 4096, endpoint=False)
        steps = np.rint(100 * np.sin(np.arange(4096) / 300)).astype(np.int32)
        return wide, (wide.astype(np.float32).view(np.int32) + steps).view(np.float32)
    if kind == "near":
        return wide, np.nextafter(
            got, np.where(rng.random(4096) < 0.5, -np.inf, np.inf), dtype="f4"
        )
    return wide, rng.integers(0, 1 << 32, 4096, np.uint32).view(np.float32)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("kind", ["smooth", "near", "any bits"])
def test_distances_give_every_bit_back(tools: Any, kind: str) -> None:
    """Signs, zeros, subnormals, infinities and NaN; near results take a byte, far ones four."""
    wide, got = wide_and_got(kind)
    stored = tools.ulps.encode(wide, got)
    back = tools.ulps.decode(wide, stored)
    np.testing.assert_array_equal(back.view(np.uint32), got.view(np.uint32))
    assert stored["far"].itemsize == (4 if kind == "any bits" else 1)
    assert bool(stored["smooth"]) == (kind == "smooth")


def test_another_library_may_round_otherwise(tools: Any) -> None:
    """Exact results that are off by their last bits, as other libraries give, change nothing."""
    half = 1 + 2.0**-24  # in the middle of two f32
    wide = np.array([half * (1 - 2.0**-52), half, half * (1 + 2.0**-52), 3.25])
    got = np.array([1, 1, 1 + 2.0**-23, 3.25], np.float32)
    stored = tools.ulps.encode(wide, got)
    for sign in (-1, 1):
        np.testing.assert_array_equal(tools.ulps.decode(wide * (1 + sign * 2.0**-52), stored), got)
    with pytest.raises(tools.ulps.DamagedRecording):
        tools.ulps.decode(wide * 1.5, stored)


# -- tensor cores ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def recording(tools: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small file that the simulator recorded."""
    path: Path = tmp_path_factory.mktemp("recording") / "tensor_core.npz"
    tools.record_tensor_core.main([*FEW, "--out", str(path)])
    return path


def test_simulator_agrees_with_itself(tools: Any, recording: Path, capsys: Any) -> None:
    """`--check` on what the simulator recorded finds nothing, and says so by its exit status."""
    with pytest.raises(SystemExit) as end:
        tools.record_tensor_core.main(["--check", str(recording)])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert "0 of 21 groups differ" in shown and "low bits" in shown


def test_wrong_bits_are_found_by_class(tools: Any, recording: Path, tmp_path: Path) -> None:
    """One other number and one other NaN are counted apart, in their own group."""
    with np.load(recording) as held:
        arrays = dict(held)
    name = "SM80_16x8x16_F16F16F16F16_TN"
    normal, nans = (arrays[f"{name}/{kind}/D"] for kind in ("normal", "nans"))
    normal[0, 2, 3] ^= 1
    p, i, j = np.argwhere(nans == 0x7FFF)[0]
    nans[p, i, j] = 0xFE01
    changed = tmp_path / "changed.npz"
    np.savez(changed, **arrays)
    found = {
        (check.instruction, check.kind): check
        for check in tools.record_tensor_core.checks(changed)
        if check.differ or check.nan_bits
    }
    assert found.keys() == {(name, "normal"), (name, "nans")}
    assert found[name, "normal"].differ == 1 and "(2, 3)" in found[name, "normal"].shown[0]
    assert found[name, "nans"].nan_bits == 1 and "0xfe01" in found[name, "nans"].shown[0]
    assert tools.record_tensor_core.report(changed) == 2


def test_part_of_a_recording(tools: Any, recording: Path, tmp_path: Path) -> None:
    """A thinner file has the groups, rows and columns asked for, and is checked like the whole."""
    part, script = tmp_path / "part.npz", tools.record_tensor_core
    words = ["--only", "nans", "--rows", "4", "--columns", "3", "--out", str(part)]
    script.main(["--thin", str(recording), *words])
    found = [(check.kind, check.outputs, check.differ) for check in script.checks(part)]
    assert found == [("nans", 4 * 3, 0)] * 2  # every third of eight columns


def test_a_trap_keeps_what_was_recorded(tools: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """After the GPU traps nothing more is asked; the file has the groups from before."""
    script, path, real = (
        tools.record_tensor_core,
        tmp_path / "t.npz",
        tools.record_tensor_core.products,
    )

    def traps(atom: Any, a: Any, *more: Any) -> Any:
        if "TF32" in atom.name:
            raise DriverError("illegal instruction", code="K803")
        return real(atom, a, *more)

    monkeypatch.setattr(script, "products", traps)
    script.main([*FEW, "--out", str(path)])
    assert {check.instruction for check in script.checks(path)} == {"SM80_16x8x16_F16F16F16F16_TN"}


def test_kinds_of_problems_are_what_they_are_called(tools: Any) -> None:
    """Each kind has the numbers that its name promises, for every type that there is."""
    inputs = tools.tensor_core_inputs
    for atom in inputs.atoms().values():
        if atom.shape_mnk[1] > 8:
            continue
        a, b, c = inputs.problems(atom, "bits", 2)
        assert a.shape == (2, atom.shape_mnk[0], atom.shape_mnk[2]) and c.shape[0] == len(b) == 2
        assert np.array_equal(a.view(np.uint8), inputs.problems(atom, "bits", 2)[0].view(np.uint8))
        if atom.a.is_int:
            continue
        floats = {kind: inputs.problems(atom, kind, 2) for kind in inputs.kinds_of(atom)}
        with np.errstate(invalid="ignore"):
            assert all(np.isnan(x).any() for x in floats["nans"])
            assert np.isinf(floats["infinities"][2]).any()
            for kind in floats.keys() - {"bits", "nans", "infinities"}:
                assert all(np.isfinite(x).all() for x in floats[kind]), (atom.name, kind)
        a, b, _ = (x.astype(np.float64) for x in floats["cancelling overflow"])
        size = np.abs(a[:, :, None] * b[:, None])
        if size.max() > (largest := float(ml_dtypes.finfo(atom.d.numpy).max)):
            assert (np.abs((a[:, :, None] * b[:, None]).sum(-1)) < largest).mean() > 0.3
        small = np.abs(floats["subnormals"][2].astype(np.float64))
        assert (small[small > 0] < (2.0**-14 if atom.d is kd.f16 else 2.0**-126)).any()
        if atom.a is kd.dtypes.tf32:
            assert (floats["low bits"][0].view(np.uint32) & 0x1FFF).any()
            assert not (floats["bits"][0].view(np.uint32) & 0x1FFF).any()


@pytest.mark.parametrize("words", ["mma f16", "wgmma e4m3 f16", "wgmma tf32 registers"])
def test_kernels_assemble(tools: Any, words: str) -> None:
    """ptxas takes the kernels for sm_90a without a warning."""
    script, chosen = tools.record_tensor_core, {
        "mma f16": "SM80_16x8x16_F16F16F16F16_TN",
        "wgmma e4m3 f16": "SM90_64x256x32_F16E4M3E4M3_SS_TN",
        "wgmma tf32 registers": "SM90_64x8x8_F32TF32TF32_RS_TN",
    }  # fmt: skip
    atom = tools.tensor_core_inputs.atoms()[chosen[words]]
    a, b, c = tools.tensor_core_inputs.problems(atom, "normal", 1)
    specs = [kd.spec(kd.dtypes.dtype_of(x.dtype), x.shape) for x in (a, b, c, c)]
    group = script.is_group(atom.name)
    kernel, threads = (script.group_products, 128) if group else (script.warp_products, 32)
    module = kernel.module(*specs, target="sm_90a", block=threads, atom=atom)
    assert assemble(module, "sm_90a").report.warnings == ()


# -- NaN -------------------------------------------------------------------------------------------
def test_recorded_nan(tools: Any, tmp_path: Path, fake_gpu: None, capsys: Any) -> None:
    """What the simulator records is its own; another rule shows in each column of the table."""
    script, path = tools.record_nans, tmp_path / "nans.npz"
    script.main(["--out", str(path)])
    with pytest.raises(SystemExit) as end:
        script.main(["--check", str(path)])
    assert end.value.code == 0
    with np.load(path) as held:
        arrays = dict(held)
    x = arrays["f64.f32.rn/x"]
    assert np.isnan(x.view(np.float64)).all() and len(np.unique(x)) == len(x) == 4096
    arrays["f64.f32.rn/d"] = np.full(len(x), 0x7FFFFFFF, np.uint32)
    np.savez(path, **arrays)
    capsys.readouterr()
    assert script.report(path) == 4096
    shown = {line.split()[0]: line.split()[3:] for line in capsys.readouterr().out.splitlines()}
    assert shown["f64.f32.rn"] == ["50%", "0%", "4096"]
    assert shown["f64.f32.rz"] == ["100%", "100%", "0"]


def test_kernels_of_nan_assemble(tools: Any) -> None:
    """ptxas takes each conversion for sm_90a without a warning."""
    script = tools.record_nans
    for source, to, rounding in script.CASES:
        specs = [kd.spec(kd.dtypes.dtype_of(np.dtype(t.numpy)), (4096,)) for t in (source, to)]
        module = script.conversions.module(
            *specs, target="sm_90a", block=script.THREADS, to=to, rounding=rounding
        )
        assert assemble(module, "sm_90a").report.warnings == ()
