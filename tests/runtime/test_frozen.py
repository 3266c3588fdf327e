"""A frozen process: every way to need a new build is refused with what caused it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
import kdsl_runtime as kr
from kdsl_core.errors import ArgumentError, BuildError
from kdsl_runtime import metrics
from kdsl_runtime.builds import build
from kdsl_runtime.cache import Cache, layers
from kdsl_runtime.toolchain import open_toolchain
from runtime import served

BASE = kd.spec("f32", (64, 32))
TILES = served.Tiles()


def needs(*arrays: Any, target: str = "sm_90a", **options: Any) -> kd.KernelFunction:
    """The PTX that a launch of `scaled` would need, as far as building goes without a GPU."""
    given = {"by": 1.0, "block": 32, "target": target, **options}
    return served.scaled.module(*(arrays or (BASE,)), **given)


@pytest.fixture(autouse=True)
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One specialisation is built, nothing was by other processes, and nothing stays frozen."""
    monkeypatch.setenv("KDSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(layers, "_caches", {})
    served.scaled.clear()
    needs()
    yield
    kr.thaw()
    served.scaled.clear()


def spec(shape: Any = (64, 32), dtype: str = "f32", **facts: Any) -> Any:
    """An argument that differs from the one that was built for."""
    return kd.spec(dtype, shape, **facts)


def rebind(space: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """A change of what the kernel reads."""
    if isinstance(space, dict):
        return lambda patch: patch.setitem(space, name, value)
    return lambda patch: patch.setattr(space, name, value)


ARGUMENTS: list[tuple[str, Callable[[], Any]]] = [
    ("argument x: dtype f32 was built, got f16", lambda: needs(spec(dtype="f16"))),
    ("argument x: rank 2 was built, got 1", lambda: needs(spec(64))),
    (r"argument x: sizes \(x_size0%4.*, got \(x_size0%1", lambda: needs(spec((63, 32)))),
    (r"x: strides \(\+%4, 1\) was built, got \(1, \+%4\)", lambda: needs(spec(strides=(1, 64)))),
    (r"strides .*, got \(\+%1, 1\)", lambda: needs(spec(strides=(33, 1)))),
    (r"strides .*, got \(0, 1\)", lambda: needs(spec(strides=(0, 1)))),
    (r"strides .*, got \(-%4, 1\)", lambda: needs(spec(strides=(-32, 1)))),
    ("alignment in bytes 16 was built, got 4", lambda: needs(spec(align=4))),
    ("64-bit offsets False was built, got True", lambda: needs(spec((2**20, 2**12)))),
    (r"sizes .*long x_size0%4", lambda: needs(spec((2**32, 32)))),
    (r"argument more_0: none was built, got f32 \(", lambda: needs(BASE, BASE)),
    ("static tiles.stages: 2 was built, got 3", lambda: needs(tiles=replace(TILES, stages=3))),
    (r"static tiles.tile: \(16, 8\) .*got \(8, 8\)", lambda: needs(tiles=served.Tiles((8, 8)))),
    ("static tiles.stages: int 2 .*got float 3.0", lambda: needs(tiles=replace(TILES, stages=3.0))),
    ("static tiles: Tiles .*got int 5", lambda: needs(tiles=5)),
    ("static epilogue: twice was built, got thrice", lambda: needs(epilogue=served.thrice)),
    (r"block: \(32, 1, 1\) was built, got \(64, 1, 1\)", lambda: needs(block=64)),
    (r"cluster: none was built, got \(2, 1, 1\)", lambda: needs(cluster=2)),
    ("target: sm_90a was built, got sm_80", lambda: needs(target="sm_80")),
    ("argument x: dtype f32 was built, got bf16", lambda: launch(np.zeros(4, kd.bf16.numpy))),
]


def launch(array: Any) -> None:
    """A launch in the simulator, of one row."""
    served.scaled[1, 32](array.reshape(4, 1), by=1.0)


@pytest.mark.parametrize(("reason", "call"), ARGUMENTS, ids=[reason for reason, _ in ARGUMENTS])
def test_arguments_that_need_a_build(reason: str, call: Callable[[], Any]) -> None:
    """The error names the kernel, the argument, what was built and what was got."""
    kr.freeze()
    with pytest.raises(BuildError, match=reason) as caught:
        call()
    assert caught.value.code == "K730"
    assert "kernel scaled would be built in a frozen process" in caught.value.message


REBOUND = {
    "FACTOR: 2 was read, now 5": rebind(served, "FACTOR", 5),
    "bias: 3 was read, now 4": rebind(served.Settings, "bias", 4),
    "helper: its code was replaced": rebind(served.helper, "__code__", (lambda v: v).__code__),
    r"a dict was changed: \{'shift': 2\}": rebind(served.OPTIONS, "shift", 2),
    "helper: <function helper": rebind(served, "helper", lambda v: v),
    "twice: its code was replaced": rebind(served.twice, "__code__", (lambda v: v).__code__),
}


@pytest.mark.parametrize("reason", REBOUND)
def test_rebindings_that_need_a_build(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel reads is part of it: the error names what was bound anew."""
    kr.freeze()
    REBOUND[reason](monkeypatch)
    with pytest.raises(BuildError, match=reason):
        needs()
    monkeypatch.undo()
    needs()


def test_closure_variables_that_need_a_build() -> None:
    """A captured variable is named too."""
    step = 1

    @kd.kernel
    def add(x: kd.Tensor["i32", "n"]) -> None:
        x[kd.thread_idx()[0]] = step

    add[1, 32](np.zeros(32, np.int32))
    with kr.freeze():
        step = 10
        with pytest.raises(BuildError, match="step: 1 was read, now 10"):
            add[1, 32](np.zeros(32, np.int32))


def test_kernels_that_were_never_built() -> None:
    """There is no nearest key: the error says so."""
    served.scaled.clear()
    kr.freeze()
    with pytest.raises(BuildError, match="no specialisation of it was built in this process"):
        needs()


def test_an_equal_looking_object_is_another_key() -> None:
    """A function made anew at each call would build without an end; it is found out."""
    kr.freeze()
    fresh = type(served.twice)(served.twice.__code__, vars(served), "twice")
    with pytest.raises(BuildError, match="static epilogue: twice was built, got another object"):
        needs(epilogue=fresh)


def test_the_nearest_key_is_compared() -> None:
    """Of several specialisations the one with the fewest differences is told, others as notes."""
    needs(kd.spec("f16", 7, align=2), block=64)
    kr.freeze()
    with pytest.raises(BuildError) as caught:
        needs(kd.spec("bf16", 7, align=2), block=128)
    assert "x: dtype f16 was built, got bf16" in caught.value.message
    assert caught.value.notes == ("block: (64, 1, 1) was built, got (128, 1, 1)",)


def test_what_was_built_goes_on() -> None:
    """A frozen process launches, simulates and inspects what it has."""
    array = np.ones((64, 32), np.float32)
    served.scaled[1, 32](array, by=1.0)
    kr.freeze()
    served.scaled[1, 32](array, by=1.0)
    needs(kd.spec("f32", (128, 64)))
    assert array[0, 0] == ((1 + 1) * 2 + 4) * 2 * 2 + 4


def test_the_launch_is_located() -> None:
    """The error stands at the author's line."""
    kr.freeze()
    with pytest.raises(BuildError) as caught:
        launch(np.zeros(4, np.float16))
    assert caught.value.loc is not None and caught.value.loc.file == __file__


def test_warnings_are_counted_once_a_build() -> None:
    """With "warn" the build happens; trace, PTX and assembly of one kernel are one report."""
    metrics.reset()
    with kr.freeze("warn"), pytest.warns(kr.KdslFrozenWarning, match="dtype f32") as seen:
        served.scaled.cubin(spec(dtype="f16"), by=1.0, block=32, target="sm_80")
    assert (len(seen), metrics.snapshot()["late_builds"]) == (1, 1)


def test_what_the_disk_has_is_no_build() -> None:
    """A process that finds PTX and machine code there goes on, frozen or not."""

    def cubin() -> bytes:
        return served.scaled.cubin(spec(dtype="f16"), by=1.0, block=32, target="sm_80")

    metrics.reset()
    built = cubin()
    served.scaled.clear()
    layers._caches.clear()  # as in a new process
    with kr.freeze():
        assert cubin() == built
    counted = metrics.snapshot()
    assert (counted["builds"], counted["late_builds"], counted["disk_hits"]) == (1, 0, 2)


def test_freezes_nest() -> None:
    """The inner one ends, the outer one still holds; thaw ends all of them."""
    with kr.freeze():
        with kr.freeze("warn"):
            pass
        with pytest.raises(BuildError):
            needs(block=64)
        kr.thaw()
        needs(block=64)


def test_other_modes_are_refused() -> None:
    """There are two."""
    with pytest.raises(ArgumentError) as caught:
        kr.freeze("strict")
    assert caught.value.code == "K739"


def test_assemblies_are_refused(add_one, fake_ptxas, write_cubin, tmp_path) -> None:
    """PTX that came from elsewhere: the error tells target, options, text or toolchain."""
    cache = Cache.at(tmp_path / "cache")
    old = open_toolchain(fake_ptxas(write_cubin))
    new = open_toolchain(fake_ptxas(write_cubin, version="V13.1.20", name="new/ptxas"))
    module = replace(add_one(), entry="only_here")
    kr.freeze()
    with pytest.raises(BuildError, match="no machine code of it was built"):
        build(module, toolchain=old, cache=cache)
    kr.thaw()
    build(module, toolchain=old, cache=cache)
    kr.freeze()
    build(module, toolchain=old, cache=cache)
    other = replace(module, text=module.text + "// other\n")
    reasons = {
        "toolchain: 13.0.88 was built, got 13.1.20": {"toolchain": new},
        r"options: \('-O3',\) was built, got \('-O0',\)": {"options": kr.AssembleOptions(0)},
    }
    for reason, options in reasons.items():
        with pytest.raises(BuildError, match=reason):
            build(module, cache=cache, **{"toolchain": old, **options})
    with pytest.raises(BuildError, match="ptx: "):
        build(other, toolchain=old, cache=cache)
