"""Pins: what a lock says of a kernel, how it changes, and what a locked process refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import kdsl_core as kd
import kdsl_runtime as kr
from kdsl_core.dtypes import ALL_DTYPES, BY_NAME
from kdsl_core.errors import ArgumentError, BuildError
from kdsl_core.lang.tensor_class import TensorClass
from kdsl_runtime import launch, locking, metrics
from kdsl_runtime.cli import main
from kdsl_runtime.pins import Severity, changes, compare, rebuilt, report_of
from kdsl_runtime.pins.cubin import instructions
from kdsl_runtime.pins.digest import digest_of
from kdsl_runtime.pins.sample_data import canonical_bytes, numbers, tensor
from kdsl_runtime.toolchain import open_toolchain, toolchain_named
from runtime import served


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache and a current folder of this test, and no lock left behind."""
    monkeypatch.setenv("KDSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(locking, "_active", None)


def scaled(dtype: str = "f32", target: str = "sm_80", **options: Any) -> kr.Variant:
    """A variant of `scaled`."""
    needed = served.scaled.specialisation(kd.spec(dtype, 64), by=1.0, block=32, **options)
    return kr.Variant.of(served.scaled, needed, target)


def copied(**sample: Any) -> kr.Variant:
    """A variant of `copied`, which runs on whole blocks only."""
    spec = kd.spec("i32", 64)
    needed = served.copied.specialisation(spec, spec, block=128)
    return replace(kr.Variant.of(served.copied, needed, "sm_80"), sample=kr.Sample(**sample))


def run(*arguments: object, code: int = 0) -> str:
    """What the command says."""
    result = CliRunner().invoke(main, [str(word) for word in arguments])
    assert result.exit_code == code, result.output
    return str(result.output)


# -- the numbers -----------------------------------------------------------------------------------
FIRST = {
    "f64": "3124a0b7722009c049e10a4023da0b40", "f32": "5a17f03e818ad83f",
    "tf32": "00001a3f00a0873e", "f16": "61bdc3c1", "bf16": "0f3f2f3f", "e4m3": "b03b",
    "e5m2": "4039", "i64": "00000000000000000500000000000000", "i32": "0000000001000000",
    "i16": "331a3ceb", "i8": "c466", "u64": "00000000000000000100000000000000",
    "u32": "0100000001000000", "u16": "816c8639", "u8": "e13c", "boolean": "0100",
}  # fmt: skip


@pytest.mark.parametrize("name", FIRST)
def test_numbers_never_change(name: str) -> None:
    """The first ones of each type are these bytes, whatever the machine and its libraries."""
    dtype = BY_NAME[name]
    assert canonical_bytes(numbers("x", dtype, 2), dtype).hex() == FIRST[name]


def test_every_type_has_numbers() -> None:
    """Floats are finite, of both signs and not round; integers are small or narrow."""
    assert FIRST.keys() == {dtype.name for dtype in ALL_DTYPES}
    for dtype in ALL_DTYPES:
        values = numbers("x", dtype, 4096).astype(np.float64)
        assert np.isfinite(values).all()
        if dtype.is_float:
            assert 0.25 <= np.abs(values).min() <= np.abs(values).max() < 4
            assert values.min() < 0 < values.max()
        elif dtype.bits > 16:
            assert set(values) == set(range(8))


CLASSES = [
    "x: f32 (m%4, n%1):(+%4, 1) align 16",
    "x: bf16 (m%1, 5, n%1):(1, +%8, +%8) align 2",
    "x: f16 (m%2, n%1):(-%2, 1) align 16",
    "x: f64 (m%1, n%1):(0, 1) align 8, 64-bit",
    "x: e4m3 (m%1, n%1, l%1):(+%1, -%16, +%1) align 1",
    "x: u8 ():() align 1",
]


@pytest.mark.parametrize("text", CLASSES)
def test_tensors_have_every_fact_of_their_class(text: str) -> None:
    """Strides have the sign and divisor stated, and no two elements lie in one place."""
    argument = TensorClass.parse(text)
    array = tensor(argument, {"m": 6, "n": 7, "l": 3})
    steps = [step // array.itemsize for step in array.strides]
    for (sign, number), step in zip(argument.strides, steps, strict=True):
        assert step == number if not sign else step % number == 0 and (step < 0) == (sign == "-")
    moving = [(n, s) for n, s in zip(array.shape, steps, strict=True) if s]
    places = {sum(i * s for i, (_, s) in zip(at, moving, strict=True))
              for at in np.ndindex(*(n for n, _ in moving))}  # fmt: skip
    assert len(places) == np.prod([n for n, _ in moving], dtype=int)


def test_one_nan_is_every_nan() -> None:
    """The bits of a NaN, which machines choose differently, do not reach the digest."""
    bits = np.array([0x7FC00000, 0xFFC00001, 0x3F800000], np.uint32).view(np.float32)
    assert canonical_bytes(bits, kd.f32).hex() == "ffffff7fffffff7f0000803f"


def test_a_digest_never_changes() -> None:
    """The hash of a kernel's numbers is this one, in every process and on every machine."""
    digest = digest_of(scaled("bf16"))
    assert digest.sample == kr.Sample((1, 1, 1), {"x_size0": 72}, {"by": 1.25})
    assert digest.value == "8b41fbebc1ab2403651702ec209f953522cc046b40840876969e27bad5fb2acc"
    assert digest_of(scaled("bf16", target="sm_90a")) == digest


def test_a_digest_follows_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another result is another digest; another way to the same result is none."""
    before = digest_of(scaled()).value
    monkeypatch.setattr(served.helper, "__code__", (lambda v: v + v).__code__)
    assert digest_of(scaled()).value == before
    monkeypatch.setattr(served.helper, "__code__", (lambda v: v * 2.0000002).__code__)
    assert digest_of(scaled()).value != before


def test_sizes_are_found() -> None:
    """A kernel that needs whole tiles gets them; one that states its sample gets that."""
    assert digest_of(copied()).sample.sizes == {"n": 256}
    assert digest_of(copied(grid=(3, 1, 1), sizes={"n": 384})).sample.sizes == {"n": 384}


def test_kernels_without_a_digest() -> None:
    """A sample on which the kernel goes out of bounds, or that is too large, is refused."""
    for code, sample in (("K740", {"sizes": {"n": 7}}), ("K741", {"sizes": {"n": 2**23}})):
        with pytest.raises(BuildError) as caught:
            digest_of(copied(**sample))
        assert caught.value.code == code
        with pytest.warns(kr.KdslPinWarning, match=code):
            assert kr.pin(copied(**sample)).numerics == ""


# -- locks ---------------------------------------------------------------------------------------
def test_a_lock_is_a_file_in_order(tmp_path: Path) -> None:
    """Pins come sorted, the file holds all of them, and the sample is part of a pin."""
    lock = kr.Lock([kr.pin(scaled("f16")), kr.pin(copied()), kr.pin(scaled())])
    lock = lock.with_speed(copied(), "NVIDIA H200", 12.5, 0.5)
    lock.save("kdsl.lock")
    again = kr.Lock.load()
    assert again.text() == lock.text() == Path("kdsl.lock").read_text()
    assert list(again) == list(lock)
    assert again.get(copied()).measured["NVIDIA H200"].us == 12.5
    assert again.get(copied()).variant.sample.sizes == {"n": 256}
    Path("kdsl.lock").write_text('version = 1\n[[pin]]\nkernel = "a:b"\n')
    with pytest.raises(ArgumentError) as caught:
        kr.Lock.load()
    assert caught.value.code == "K736"


def test_a_pin_says_what_was_built() -> None:
    """Registers, shared memory, toolchain and hashes are those of the build."""
    found = kr.pin(scaled())
    entry = kr.build(scaled().module())
    report = entry.metadata["report"]
    assert (found.registers, found.shared_bytes) == (report["registers"], 0)
    assert found.toolchain == kr.find_toolchain().version
    assert {len(x) for x in (found.ptx, found.cubin, found.numerics, found.toolchain_id)} == {64}
    assert kr.pin(scaled()) == found


PIN_CHANGES = {
    Severity.NUMERICS: {"numerics": "0" * 64},
    Severity.SPILLS: {"spill_bytes": 8},
    Severity.PERFORMANCE: {"measured": {"gpu": kr.pins.Measured(12.0, 0.5)}},
    Severity.RESOURCES: {"registers": 200},
    Severity.BINARY: {"instructions": "1" * 64},
    Severity.CONTAINER: {"cubin": "1" * 64},
}


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> kr.Pin:
    """A pin with a speed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KDSL_CACHE_DIR", str(tmp_path_factory.mktemp("pinned") / "cache"))
        return replace(kr.pin(scaled()), measured={"gpu": kr.pins.Measured(10.0, 0.5)})


@pytest.mark.parametrize("severity", PIN_CHANGES)
def test_changes_by_severity(severity: Severity, pinned: kr.Pin, tmp_path: Path) -> None:
    """Each kind of change has its severity and exit code; all worse ones come first."""
    worse = {k: v for s, facts in PIN_CHANGES.items() if s >= severity for k, v in facts.items()}
    (only,) = changes(pinned, replace(pinned, **PIN_CHANGES[severity]))
    assert only.severity is severity
    report = compare(kr.Lock([pinned]), kr.Lock([replace(pinned, **worse)]))
    found = [change.severity for change in report.changes]
    assert found == sorted(found, reverse=True) and found[-1] is severity
    kr.Lock([pinned]).save("a.lock")
    kr.Lock([replace(pinned, **PIN_CHANGES[severity])]).save("b.lock")
    assert str(severity) in run("check", "a.lock", "--against", "b.lock", code=int(severity))


def test_instructions_without_notes() -> None:
    """Line tables are no instructions; another optimisation is; other images are taken whole."""
    module = scaled().module()
    plain, lined, slow = (
        kr.build(module, options=options).payload
        for options in (None, kr.AssembleOptions(line_info=True), kr.AssembleOptions(0))
    )
    assert plain != lined and instructions(plain) == instructions(lined)
    assert instructions(plain) != instructions(slow)
    assert instructions(plain).startswith(b".text.scaled\0")
    assert instructions(b"CUBE") == b"CUBE"


def test_noise_is_no_change(pinned: kr.Pin) -> None:
    """A speed within both spreads is the same; a digest that is missing is unknown."""
    noisy = {"gpu": kr.pins.Measured(10.9, 0.5)}
    assert list(changes(pinned, replace(pinned, measured=noisy, numerics=""))) == []


def test_fail_on_lets_lesser_changes_pass(pinned: kr.Pin) -> None:
    """They are printed all the same; json has every fact."""
    kr.Lock([pinned]).save("a.lock")
    kr.Lock([replace(pinned, registers=200)]).save("b.lock")
    shown = run("check", "a.lock", "--against", "b.lock", "--fail-on", "spills", "--format", "json")
    (change,) = json.loads(shown)["changes"]
    assert (change["severity"], change["fact"], change["after"]) == ("resources", "registers", 200)


def test_pin_then_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a manifest to a lock; nothing changes until the kernel does, and then it is told."""
    kr.Manifest([scaled(), scaled("f16"), copied()]).save("m.toml")
    assert "pins 3 kernels" in run("pin", "m.toml", "-j", 1)
    assert "0 of 3 kernels changed" in run("check", "-j", 1)
    lock = kr.Lock.load().with_speed(copied(), "gpu", 3.0, 0.1)
    lock.save()
    monkeypatch.setattr(served, "FACTOR", 3)
    shown = run("check", "-j", 1, code=int(Severity.NUMERICS))
    assert shown.index("numerics") < shown.index("binary") and "2 of 3 kernels changed" in shown
    run("check", "-j", 1, "--no-numerics", code=int(Severity.BINARY))
    run("pin", "m.toml", "-j", 1)
    assert "0 of 3 kernels changed" in run("check", "-j", 1)
    assert kr.Lock.load().get(copied()).measured["gpu"].us == 3.0


def test_what_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is gone is the worst change; a manifest with one cannot be pinned."""
    kr.Lock([kr.pin(scaled())]).save()
    monkeypatch.delattr(served, "scaled")
    assert "no kernel can be imported" in run("check", code=int(Severity.BROKEN))
    kr.Manifest([copied(), replace(copied(), kernel="runtime.served:broken")]).save("m.toml")
    assert "1 of 2 kernels cannot be pinned" in run("pin", "m.toml", "-o", "x.lock", code=1)
    assert not Path("x.lock").exists()


def test_an_upgrade_is_checked_before_it_is_made(fake_ptxas, write_cubin) -> None:
    """`--toolchain` builds with another assembler, by path or by version."""
    kr.Lock([kr.pin(scaled())]).save()
    other = fake_ptxas(write_cubin, version="V13.7.1")
    shown = run("check", "-j", 1, "--toolchain", other, code=int(Severity.RESOURCES))
    assert "registers" in shown and "numerics" not in shown
    here = kr.find_toolchain().version
    assert "0 of 1 kernels changed" in run("check", "-j", 1, "--toolchain", here)
    assert "K742" in run("check", "--toolchain", "99.9", code=1)
    major = here.split(".")[0]
    assert toolchain_named(major).version == here
    with pytest.raises(BuildError):
        toolchain_named(major + "0")


def test_checks_run_in_processes() -> None:
    """Two processes give the same pins as one, also under other hash seeds."""
    lock = kr.Lock([kr.pin(scaled()), kr.pin(scaled("f16"))])
    assert report_of(lock, list(rebuilt(lock, jobs=2))).changes == ()


# -- locked processes ----------------------------------------------------------------------------
@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`load(variant)` as a launch does it, up to the driver."""
    monkeypatch.setattr(launch, "_check_target", lambda module, device: None)
    monkeypatch.setattr(launch, "_load_on_device", lambda module, *rest: module.entry)

    def loaded(variant: kr.Variant, **options: Any) -> Any:
        monkeypatch.setattr(launch, "_loaded", {})
        origin = (variant.function(), variant.specialisation())
        return launch.load(variant.module(), **{"origin": origin, **options})

    return loaded


def test_a_locked_process_runs_what_is_pinned(load, fake_ptxas, write_cubin) -> None:
    """Other machine code and kernels without a pin are refused, with the pin."""
    kr.Lock([kr.pin(scaled())]).save()
    kr.lock("kdsl.lock")
    assert load(scaled()) == "scaled"
    assert load(scaled(), origin=None) == "scaled"
    other = open_toolchain(fake_ptxas(write_cubin, version="V13.7.1"))
    refused = {
        "K743": lambda: load(scaled(), toolchain=other),
        "K744": lambda: load(scaled("f16")),
    }
    for code, call in refused.items():
        with pytest.raises(BuildError) as caught:
            call()
        assert caught.value.code == code
    with pytest.raises(BuildError, match="not pinned"):
        load(copied(), origin=None)
    kr.unlock()
    assert load(copied()) == "copied"


def test_a_lock_may_only_warn(load, monkeypatch: pytest.MonkeyPatch) -> None:
    """With "warn" the kernel runs, and is counted."""
    kr.Lock([kr.pin(scaled())]).save()
    kr.lock("kdsl.lock", mode="warn")
    metrics.reset()
    monkeypatch.setattr(served, "FACTOR", 5)
    with pytest.warns(kr.KdslLockWarning, match="K743"):
        load(scaled())
    assert metrics.snapshot()["pin_mismatches"] == 1


def test_kernels_without_a_name_are_not_pinned(load) -> None:
    """A locked process refuses what a lock cannot name."""

    @kd.kernel
    def local(x: kd.Tensor["i32", "n"]) -> None:
        x[0] = 1

    kr.Lock().save()
    kr.lock("kdsl.lock")
    needed = local.specialisation(kd.spec("i32", 4), block=32)
    with pytest.raises(BuildError, match="no kernel can be imported") as caught:
        load(scaled(), origin=(local, needed))
    assert caught.value.code == "K744"


def test_the_environment_locks_too(load, monkeypatch: pytest.MonkeyPatch) -> None:
    """KDSL_LOCK names the file and KDSL_LOCK_MODE the mode; unknown modes are refused."""
    kr.Lock([kr.pin(scaled())]).save("env.lock")
    monkeypatch.setenv("KDSL_LOCK", str(Path("env.lock").absolute()))
    assert load(scaled()) == "scaled"
    with pytest.raises(BuildError, match=r"env\.lock"):
        load(copied())
    monkeypatch.setenv("KDSL_LOCK_MODE", "warn")
    with pytest.warns(kr.KdslLockWarning):
        load(copied())
    monkeypatch.setenv("KDSL_LOCK_MODE", "loose")
    with pytest.raises(ArgumentError) as caught:
        load(copied())
    assert caught.value.code == "K739"


DIGEST = """
from kdsl_runtime.pins.cubin import instructions
from kdsl_runtime.pins.digest import digest_of
from kdsl_runtime import Manifest
print(*(digest_of(variant).value for variant in Manifest.load("m.toml")))
"""


def test_a_digest_is_the_same_in_every_process() -> None:
    """Hash seeds and threads of NumPy's libraries make no difference."""
    kr.Manifest([scaled(), copied()]).save("m.toml")
    here = [digest_of(variant).value for variant in kr.Manifest.load("m.toml")]
    for seed, threads in (("1", "1"), ("77", "2")):
        more = {"PYTHONHASHSEED": seed, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        env = {**os.environ, **more, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == here
