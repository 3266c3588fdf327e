"""Warm-up and recording: a run writes down what it needs, and a later one finds it built."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import kdsl_core as kd
import kdsl_runtime as kr
from kdsl_core.errors import ArgumentError, BuildError
from kdsl_runtime import driver, metrics, warming
from kdsl_runtime.cli import main
from kdsl_runtime.outcomes import Outcome
from kdsl_runtime.warming import build_manifest, build_variant
from runtime import served


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of this test."""
    monkeypatch.setenv("KDSL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def copied(target: str = "sm_80", block: int = 32, n: int = 64) -> kr.Variant:
    """A variant of `copied`."""
    spec = kd.spec("i32", n)
    return kr.Variant.of(
        served.copied, served.copied.specialisation(spec, spec, block=block), target
    )


def run(*arguments: object, code: int = 0) -> str:
    """What the command says, standard error included."""
    result = CliRunner().invoke(main, [str(word) for word in arguments])
    assert result.exit_code == code, result.output
    return str(result.output)


BROKEN = kr.Variant(
    "runtime.served:broken", "sm_80", ("x: i32 (n%4):(1) align 16",), (), (32, 1, 1)
)
ABSENT = kr.Variant("no_such_module:kernel", "sm_80", (), (), (32, 1, 1))


def test_warmup_builds_for_any_target(tmp_path: Path) -> None:
    """The command fills the cache without a GPU; what it built is not built again."""
    kr.Manifest([copied(), copied("sm_90a"), copied(n=7)]).save(tmp_path / "m.toml")
    assert "3 of 3 kernels are built" in run("warmup", tmp_path / "m.toml", "-j", 1)
    metrics.reset()
    build_variant(copied("sm_90a"))
    assert metrics.snapshot()["builds"] == 0


def test_warmup_takes_one_target(tmp_path: Path) -> None:
    """With --target others are left out, and those that state none are built for it."""
    kr.Manifest([copied(), copied(""), copied("", n=7)]).save(tmp_path / "m.toml")
    shown = run("warmup", tmp_path / "m.toml", "-j", 1, "--target", "sm_90a")
    assert "2 of 2 kernels are built" in shown


def test_warmup_collects_errors(tmp_path: Path) -> None:
    """One entry's error does not keep the others from being built; all are shown, exit code 1."""
    kr.Manifest([ABSENT, BROKEN, copied()]).save(tmp_path / "m.toml")
    shown = run("warmup", tmp_path / "m.toml", "-j", 1, code=1)
    assert "1 of 3 kernels are built" in shown
    assert "RuntimeError: the author's meta code failed" in shown
    assert "ArgumentError[K732]: no kernel can be imported as no_such_module:kernel" in shown


def test_warmup_in_processes() -> None:
    """Several processes build, and errors of any kind come back as text."""
    found = {
        o.variant.kernel: o.problem for o in build_manifest(kr.Manifest([BROKEN, copied()]), 2)
    }
    assert found["runtime.served:copied"] == ""
    assert "the author's meta code failed" in found["runtime.served:broken"]
    metrics.reset()
    build_variant(copied())
    assert metrics.snapshot()["builds"] == 0


def test_merge(tmp_path: Path) -> None:
    """Manifests become one."""
    for name, variant in (("a", copied()), ("b", copied("sm_90a"))):
        kr.Manifest([variant]).save(tmp_path / f"{name}.toml")
    run("merge", tmp_path / "a.toml", tmp_path / "b.toml", "-o", tmp_path / "c.toml")
    assert kr.Manifest.load(tmp_path / "c.toml") == kr.Manifest([copied(), copied("sm_90a")])
    (tmp_path / "a.toml").write_text("version = 7")
    assert "K736" in run("warmup", tmp_path / "a.toml", code=1)


# -- recording -----------------------------------------------------------------------------------
def launch(n: int = 64, block: int = 32) -> None:
    """A launch of `copied` in the simulator."""
    served.copied[n // block, block](np.zeros(n, np.int32), np.zeros(n, np.int32))


def test_recording_names_what_ran(tmp_path: Path) -> None:
    """Launches of what was traced before are recorded too; each specialisation once."""
    launch()
    with kr.record(tmp_path / "m.toml", target=("sm_80", "sm_90a")):
        launch()
        launch(128)
        launch(block=64)
    wanted = [copied(target, block) for target in ("sm_80", "sm_90a") for block in (32, 64)]
    assert kr.Manifest.load(tmp_path / "m.toml") == kr.Manifest(wanted)
    launch(block=16)
    assert len(kr.Manifest.load(tmp_path / "m.toml")) == 4


def test_recordings_add_up(tmp_path: Path) -> None:
    """A second run's launches join the file of the first; on and off work without `with`."""
    for block in (32, 64):
        recording = kr.record(tmp_path / "m.toml", target="sm_80")
        thread = threading.Thread(target=launch, args=(64, block))
        thread.start()
        thread.join()
        recording.stop()
    assert kr.Manifest.load(tmp_path / "m.toml") == kr.Manifest([copied(), copied(block=64)])


def test_a_recorded_run_warms_up(tmp_path: Path) -> None:
    """What was recorded is what a launch of it needs: nothing is built afterwards."""
    launch()
    with kr.record(target="sm_80") as recording:
        launch()
    (variant,) = recording.manifest()
    build_variant(variant)
    served.copied.clear()
    served.copied.traced(variant.specialisation())
    with kr.freeze():
        launch()


def test_launches_on_a_gpu_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first launch loads, for its specialisation; each one is recorded, loaded or not."""
    origins: list[Any] = []

    def load(module: Any, device: int, *, origin: Any) -> Any:
        origins.append(origin)
        return SimpleNamespace(launch=lambda *arguments: None)

    host = SimpleNamespace(
        common_device=lambda arrays: ("cuda", 0),
        driver=SimpleNamespace(device=lambda index: SimpleNamespace(target="sm_80")),
        load=load,
        launch_stream=lambda arrays, device: 0,
        remember=lambda *call: None,
    )
    monkeypatch.setattr("kdsl_core.lang.launch.runtime", lambda why: host)
    array = replace(kd.spec("i32", 64), device=("cuda", 0))
    served.copied.clear()
    served.copied[2, 32](array, array)
    with kr.record(target="sm_80") as recording:
        served.copied[2, 32](array, array)
    assert recording.manifest() == kr.Manifest([copied()])
    assert origins == [(served.copied, copied().specialisation())]
    served.copied.clear()


def test_kernels_without_a_name_are_warned_of() -> None:
    """A kernel inside a function cannot be named; the run goes on, and the end says so."""

    @kd.kernel
    def local(x: kd.Tensor["i32", "n"]) -> None:
        x[0] = 1

    with (
        pytest.warns(kr.KdslRecordWarning, match="local.*is not in the manifest"),
        kr.record(target="sm_80") as recording,
    ):
        local[1, 32](np.zeros(4, np.int32))
    assert len(recording.manifest()) == 0


def test_recording_looks_at_its_file_first(tmp_path: Path) -> None:
    """A day of launches is not lost to a file that was no manifest, or could not be written."""
    (tmp_path / "other.toml").write_text("version = 99\n")
    for name, code in (("other.toml", "K736"), ("absent/m.toml", "K746")):
        with pytest.raises(ArgumentError) as caught:
            kr.record(tmp_path / name, target="sm_80")
        assert caught.value.code == code
    assert (tmp_path / "other.toml").read_text() == "version = 99\n"


def test_recording_needs_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU somebody must say for what; with one it is the GPU's."""
    monkeypatch.setattr(driver, "is_available", lambda: False)
    with pytest.raises(ArgumentError) as caught:
        kr.record()
    assert caught.value.code == "K738"
    monkeypatch.setattr(driver, "is_available", lambda: True)
    monkeypatch.setattr(driver, "device_count", lambda: 2)
    monkeypatch.setattr(driver, "device", lambda index: SimpleNamespace(target="sm_90a"))
    with kr.record() as recording:
        launch()
    assert [v.target for v in recording.manifest()] == ["sm_90a"]


# -- in the serving process ------------------------------------------------------------------------
def test_warm_up_loads_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """All for the device's target is loaded and found by launches; failures come together."""
    loaded: list[Any] = []
    monkeypatch.setattr(driver, "device", lambda index: SimpleNamespace(target="sm_80"))

    def load(module: Any, device: int, *, origin: Any) -> str:
        loaded.append((module.entry, device, origin[0]))
        return "loaded"

    monkeypatch.setattr(warming, "load", load)
    assert kr.warm_up(kr.Manifest([copied(), copied("sm_90a")]), device=1) == 1
    assert loaded == [("copied", 1, served.copied)]
    assert served.copied.lowered(copied().specialisation(), "sm_80").loaded[1] == "loaded"
    with pytest.raises(BuildError, match="2 of 3") as caught:
        kr.warm_up(kr.Manifest([copied(), BROKEN, ABSENT]))
    assert caught.value.code == "K737"
    assert re.search("author's meta code", "\n".join(caught.value.notes))


def test_outcomes_tell() -> None:
    """An outcome without a problem is a success."""
    assert [o.problem for o in build_manifest(kr.Manifest([copied()]), 4)] == [""]
    assert Outcome(copied()).problem == ""
