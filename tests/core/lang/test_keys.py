"""Specialisations: what makes a new one, what does not, and that old code never runs."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd

FACTOR = 2
OPTIONS = {"factor": 3}


class Config:
    """Settings read by a kernel."""

    factor = 5


CONFIG = Config()


def helper(v: Any) -> Any:
    """What the kernel calls."""
    return v * FACTOR


@kd.kernel
def scaled(x: kd.Tensor["i32", "n"], y: kd.Tensor["i32", "n"]) -> None:
    """Read everything above."""
    i = kd.thread_idx()[0]
    y[i] = helper(x[i]) + OPTIONS["factor"] * 100 + CONFIG.factor * 10000


def _run() -> int:
    x, y = np.ones(32, np.int32), np.zeros(32, np.int32)
    scaled[1, 32](x, y)
    return int(y[0])


def test_rebinding_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed global, dict entry, attribute or helper takes effect at the next launch."""
    assert _run() == 50302
    monkeypatch.setitem(globals(), "FACTOR", 7)
    assert _run() == 50307
    monkeypatch.setitem(OPTIONS, "factor", 4)
    assert _run() == 50407
    monkeypatch.setattr(CONFIG, "factor", 6, raising=False)
    assert _run() == 60407
    monkeypatch.setattr(helper, "__code__", (lambda v: v * 9).__code__)
    assert _run() == 60409
    monkeypatch.undo()
    assert _run() == 50302


def test_class_attributes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attribute found on the class of an object is part of what was read."""
    assert _run() == 50302
    monkeypatch.setattr(Config, "factor", 8)
    assert _run() == 80302


def test_closure_variables_are_noticed() -> None:
    """A captured variable that is rebound takes effect at the next launch."""
    step = 1

    @kd.kernel
    def add(x: kd.Tensor["i32", "n"]) -> None:
        i = kd.thread_idx()[0]
        x[i] = x[i] + step

    x = np.zeros(32, np.int32)
    add[1, 32](x)
    step = 10
    add[1, 32](x)
    assert x[0] == 11


def _key(*args: Any, **static: Any) -> str:
    return key_kernel.keys(*args, block=32, **static)[0]


@kd.kernel
def key_kernel(x: kd.Tensor["f32|f16", "m n"], tile: kd.Static = 1) -> None:
    """Nothing: only its keys matter."""


BASE = kd.spec("f32", (64, 32))
SAME = [
    kd.spec("f32", (128, 32)),
    kd.spec("f32", (4096, 64)),
    kd.spec("f32", (64, 32), strides=(48, 1)),
    kd.spec("f32", (64, 32), align=256),
]
OTHER = {
    "dtype": kd.spec("f16", (64, 32)),
    "sizes": kd.spec("f32", (63, 32)),
    "strides": kd.spec("f32", (64, 32), strides=(1, 64)),
    "alignment": kd.spec("f32", (64, 32), align=4),
    "64-bit": kd.spec("f32", (2**20, 2**12)),
}


@pytest.mark.parametrize("spec", SAME)
def test_run_time_sizes_do_not_enter(spec: Any) -> None:
    """Arguments that differ in sizes, larger strides or better alignment share a key."""
    assert _key(spec) == _key(BASE)


@pytest.mark.parametrize("word", OTHER)
def test_classes_differ_and_are_explained(word: str) -> None:
    """Another class has another key, and the explanation says why."""
    assert _key(OTHER[word]) != _key(BASE)
    lines = key_kernel.explain_key((BASE,), (OTHER[word],))
    assert any(line.startswith("x: ") and word in line for line in lines), lines


def test_equal_arguments_have_nothing_to_explain() -> None:
    """One key has no differences."""
    assert key_kernel.explain_key((BASE,), (SAME[0],)) == []


def test_static_arguments_and_their_types_enter() -> None:
    """1, 1.0 and True are different trace-time values."""
    assert len({_key(BASE, tile=tile) for tile in (1, 1.0, True, 2, "1")}) == 5

    @kd.kernel
    def typed(out: kd.Tensor["f32", "n"], v: kd.Static) -> None:
        out[kd.thread_idx()[0]] = 1.0 if isinstance(v, bool) else 2.0

    out = np.zeros(32, np.float32)
    typed[1, 32](out, 1)
    assert out[0] == 2
    typed[1, 32](out, True)
    assert out[0] == 1


def test_one_trace_serves_many_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function runs once per specialisation."""
    runs = []

    @kd.kernel
    def counted(x: kd.Tensor["i32", "n"]) -> None:
        _note(runs)
        x[kd.thread_idx()[0]] = kd.size(x)

    for n in (32, 64, 48):
        x = np.zeros(n, np.int32)
        counted[1, 32](x)
        assert x[0] == n
    assert len(runs) == 1


def _note(runs: list[int]) -> None:
    runs.append(1)


def test_edited_text_counts_as_it_was_compiled(tmp_path: Path) -> None:
    """A file edited after import does not change what its functions mean."""
    path = tmp_path / "edited.py"
    text = (
        "import kdsl_core as kd\n@kd.kernel\ndef f(x: kd.Tensor['i32', 'n']):\n"
        "    i = kd.thread_idx()[0]\n    if i > 3:\n        x[i] = {}\n"
    )
    path.write_text(text.format(5))
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    path.write_text("# a new first line\n" + text.format(6))
    linecache.checkcache(str(path))
    x = np.zeros(32, np.int32)
    space["f"][1, 32](x)
    assert x[4] == 5


PROGRAM = """
import kdsl_core as kd, linecache
text = '''
@kd.kernel
def f(x: kd.Tensor["f32", "m n"], y: kd.Tensor["=x", "m n"], a: kd.f32):
    i, j = kd.thread_idx()[0], kd.block_idx()[0]
    b, c, d = 0.0, 1.0, a
    for k in kd.range(i):
        if k > j:
            b, c, d = c, d, b
        else:
            d = d + x[i, j]
    y[i, j] = b + c * d
'''
linecache.cache["<f>"] = (len(text), None, text.splitlines(True), "<f>")
exec(compile(text, "<f>", "exec"))
s = kd.spec("f32", (64, 64))
print(f.ptx(s, s, 1.0, target="sm_80", block=32))
"""


def test_ptx_is_the_same_in_every_process() -> None:
    """Hash seeds, and so the order of sets and dicts of text, do not reach the PTX."""
    texts = set()
    for seed in ("0", "1", "77"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True
        )
        texts.add(done.stdout)
    assert len(texts) == 1
    assert ".entry f" in texts.pop()


def test_what_a_kernel_becomes_without_a_gpu() -> None:
    """IR and PTX come from specs alone, and the target is named by the caller."""
    spec = kd.spec("i32", 64)
    assert "memory.store" in scaled.ir(spec, spec, block=32)
    assert ".target sm_90" in scaled.ptx(spec, spec, target="sm_90", block=32)
    with pytest.raises(TypeError, match="target"):
        scaled.ptx(spec, spec, block=32)


def test_keys_read_well() -> None:
    """A key names the kernel, the block and each argument's class."""
    (key,) = key_kernel.keys(BASE, block=(32, 2), tile=4)
    assert key == "key_kernel[(32, 2, 1)](x: f32 (m%4, n%4):(+%4, 1) align 16; tile = int 4)"


def test_an_entry_may_have_its_own_name() -> None:
    """`name=` is the entry's name in IR and PTX."""

    @kd.kernel(name="renamed", min_blocks_per_sm=2)
    def original(x: kd.Tensor["i32", "n"]) -> None:
        x[0] = 1

    text = original.ptx(kd.spec("i32", 4), target="sm_80", block=32)
    assert ".entry renamed" in text
    assert ".minnctapersm 2" in text


def test_reloaded_module_runs_its_new_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is edited and imported again runs as it now stands."""
    import importlib

    text = (
        "import kdsl_core as kd\n@kd.kernel\ndef f(x: kd.Tensor['i32', 'n']):\n"
        "    i = kd.thread_idx()[0]\n    if i > 3:\n        x[i] = {}\n"
    )
    path = tmp_path / "kdsl_reloaded_module.py"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for value in (5, 1234, 77):
        path.write_text(text.format(value))
        os.utime(path, (value, value))
        module = sys.modules.get("kdsl_reloaded_module")
        module = importlib.reload(module) if module else importlib.import_module(path.stem)
        x = np.zeros(32, np.int32)
        module.f[1, 32](x)
        assert x[4] == value
    monkeypatch.delitem(sys.modules, path.stem)


class Owner:
    """A class whose methods hold control flow and private names."""

    __limit = 3

    @kd.func
    def clamp(self, v: Any) -> Any:
        """At most the limit."""
        if v > self.__limit:
            v = v * 0 + self.__limit
        return v


def test_methods_and_private_names() -> None:
    """A method under @kd.func sees its class's private names and its instance."""

    @kd.kernel
    def clamped(x: kd.Tensor["i32", "n"], owner: kd.Static) -> None:
        i = kd.thread_idx()[0]
        x[i] = owner.clamp(i)

    x = np.zeros(32, np.int32)
    clamped[1, 32](x, Owner())
    assert x.tolist() == [min(i, 3) for i in range(32)]
