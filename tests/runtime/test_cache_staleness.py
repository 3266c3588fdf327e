"""Edits that change the PTX are never overlooked, and others never cost a trace."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import kdsl_core as kd
from kdsl_core.ir import TensorMap
from kdsl_core.lang.spec import ArraySpec
from kdsl_runtime import metrics
from kdsl_runtime.assemble import AssembleOptions
from kdsl_runtime.builds import key_of
from kdsl_runtime.cache import layers
from kdsl_runtime.toolchain import open_toolchain
from runtime.edits import EDITS, KERNEL, LIVE, SAME, Edit

SPEC = kd.spec("i32", 8)
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(layers, "_caches", {})
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def forget_memory() -> None:
    """What a new process begins with: only the disk."""
    layers._caches.clear()


def loaded(folder: Path, text: str, lib: str = "", name: str = "kernels") -> ModuleType:
    """The module with this text, and a module `lib` beside it, as a new process has them."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.modules.pop("lib", None)
    library = _module(folder / f"lib{next(_numbers)}.py", lib, "lib")
    sys.modules["lib"] = library
    return _module(folder / f"{name}{next(_numbers)}.py", text, f"{name}_{next(_numbers)}")


def _module(path: Path, text: str, name: str) -> ModuleType:
    path.write_text(text)
    found = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(found)
    sys.modules[name] = made
    found.loader.exec_module(made)
    return made


def lowered(kernel: Any, target: str = "sm_80", spec: Any = SPEC) -> tuple[str, bool]:
    """The PTX as a launch gets it, and whether nothing was traced for it."""
    before = metrics.snapshot()["misses"]
    text = kernel.lowered(kernel.specialisation(spec, block=8), target).module.text
    return text, metrics.snapshot()["misses"] == before


def truth(kernel: Any) -> str:
    """The PTX as it is when nothing is remembered."""
    kernel.clear()
    return kernel.ptx(SPEC, target="sm_80", block=8)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_edited_programs_are_traced(edit: Edit, tmp_path: Path) -> None:
    """After an edit, a new process gets the new PTX; and the old one again after undoing it."""
    texts = []
    for text, lib in ((edit.before, edit.lib[0]), (edit.after, edit.lib[1])):
        forget_memory()
        kernel = loaded(tmp_path / "m", text, lib).k
        got, _ = lowered(kernel)
        texts.append(got)
        assert got == truth(kernel)
    assert texts[0] != texts[1]
    forget_memory()
    assert lowered(loaded(tmp_path / "m", edit.before, edit.lib[0]).k) == (texts[0], True)


@pytest.mark.parametrize(("name", "above", "value", "statement"), LIVE, ids=[x[0] for x in LIVE])
def test_running_programs_are_traced_again(
    name: str, above: str, value: str, statement: str, tmp_path: Path, monkeypatch
) -> None:
    """An edit of the running program is seen by the kernel object that was used before."""
    monkeypatch.setattr(os, "environ", os.environ)
    monkeypatch.delenv("KDSL_TEST_F", raising=False)
    space = loaded(tmp_path / "m", KERNEL.format(prelude=above, value=value))
    first, _ = lowered(space.k)
    assert lowered(space.k) == (first, True)
    exec(statement, space.__dict__)
    second, _ = lowered(space.k)
    assert second != first
    assert second == truth(space.k)
    monkeypatch.setenv("KDSL_TEST_F", "")


@pytest.mark.parametrize("edit", SAME, ids=lambda edit: edit.name)
def test_unchanged_programs_are_hits(edit: Edit, tmp_path: Path) -> None:
    """A program that means the same is found, from another folder and under another name."""
    first, hit = lowered(loaded(tmp_path / "here", edit.before).k)
    assert not hit
    forget_memory()
    again = lowered(loaded(tmp_path / "far" / "away", edit.after, name="renamed").k)
    assert again == (first, True)


def test_options_and_toolchains_are_in_the_content_key(add_one, fake_ptxas) -> None:
    """Another assembler or other options are another cubin; another place of it is not."""
    found = [open_toolchain(fake_ptxas(version=v, name=n)) for v, n in
             (("V13.0.88", "a"), ("V13.0.88", "b"), ("V13.1.80", "c"))]  # fmt: skip
    options = [AssembleOptions(), AssembleOptions(opt_level=1), AssembleOptions(line_info=True),
               AssembleOptions(max_registers=64), AssembleOptions(extra=("-g",))]  # fmt: skip
    keys = [key_of(add_one(), found[0], each) for each in options]
    keys += [
        key_of(add_one(), found[2], options[0]),
        key_of(add_one("sm_89"), found[0], options[0]),
    ]
    assert len(set(keys)) == 7
    assert key_of(add_one(), found[1], AssembleOptions(time_limit_s=9)) == keys[0]


SPECIALISATIONS = {
    "target": {"target": "sm_89"},
    "alignment": {"spec": kd.spec("i32", 8, align=4)},
    "stride": {"spec": kd.spec("i32", 8, strides=(2,))},
    "64 bits": {"spec": kd.spec("i32", 2**32)},
}


@pytest.mark.parametrize("name", SPECIALISATIONS)
def test_other_specialisations_are_traced(name: str, tmp_path: Path) -> None:
    """The class of the arguments and the target are part of a recipe; sizes are not."""
    kernel = loaded(tmp_path, KERNEL.format(prelude="", value="x[i] + 1")).k
    first, _ = lowered(kernel)
    kernel.clear()
    assert lowered(kernel, spec=kd.spec("i32", 80)) == (first, True)
    other, hit = lowered(kernel, **SPECIALISATIONS[name])
    assert not hit
    assert name == "alignment" or other != first


def test_file_edited_after_its_import(tmp_path: Path) -> None:
    """A kernel that is made after its file was edited is kept under what was really traced."""
    text = (
        "import kdsl_core as kd\ndef make():\n"
        "    @kd.kernel\n    def k(x: kd.Tensor['i32', 'n']):\n"
        "        i = kd.thread_idx()[0]\n        x[i] = x[i] {} i\n    return k\n"
    )
    module = loaded(tmp_path / "m", text.format("+"))
    Path(module.__file__).write_text(text.format("-"))
    mixed = module.make()  # the code of one text, and the other text
    lowered(mixed)
    forget_memory()
    kernel = loaded(tmp_path / "m", text.format("+")).make()
    assert lowered(kernel)[0] == truth(kernel)


def test_kdsl_itself_is_in_the_recipe(tmp_path: Path, monkeypatch) -> None:
    """Another kdsl traces anew; files that are younger than the process keep nothing."""
    from kdsl_core.lang import recipes

    kernel = loaded(tmp_path, KERNEL.format(prelude="", value="x[i] + 1")).k
    for digest, hits in (("a", [False, True]), ("b", [False, True]), (None, [True, True])):
        monkeypatch.setattr(recipes, "library_digest", lambda digest=digest: digest)
        for hit in hits:
            kernel.clear()
            forget_memory()
            assert lowered(kernel)[1] is hit
    assert len(list(tmp_path.rglob("*.kdsl"))) == 2


UNSTATED = {
    "a lock": ("import threading\nF = threading.Lock()\ndef g(v): return 2", "x[i] * g(F)"),
    "the clock": ("import time", "x[i] * (1 + (time.time() < 0))"),
    "a listed folder": ("import os", "x[i] * (1 + len(os.listdir('/')[:1]))"),
    "all of the environment": ("import os", "x[i] * (1 + len(dict(os.environ)) // 10**6)"),
    "a function that nothing names": (
        "import gc\ndef secret(): return 2\nhidden = iter([secret])", "x[i] * next(hidden)()"
    ),
    "an object of another library": ("import re\nF = re.finditer('a', 'a')", "x[i] * len([*F, 1])"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSTATED)
def test_what_cannot_be_compared_is_not_kept(name: str, tmp_path: Path) -> None:
    """A trace that read something that no other process can compare leaves no entry."""
    above, value = UNSTATED[name]
    lowered(loaded(tmp_path, KERNEL.format(prelude=above, value=value)).k)
    assert list(tmp_path.rglob("*.kdsl")) == []


def test_variables_and_files_are_compared(tmp_path: Path, monkeypatch) -> None:
    """What a trace read outside of Python is compared by content before an entry is used."""
    above = "import os\ndef f():\n    with open('f.txt') as file: return int(file.read())"
    text = KERNEL.format(prelude=above, value="x[i] * f() + int(os.environ['KDSL_F'])")
    found = {}
    for number in ("2", "3", "2"):
        for variable in ("5", "6"):
            for folder in ("a", "b"):
                forget_memory()
                monkeypatch.setenv("KDSL_F", variable)
                (tmp_path / folder).mkdir(exist_ok=True)
                monkeypatch.chdir(tmp_path / folder)
                Path("f.txt").write_text(number)
                got, hit = lowered(loaded(tmp_path / folder, text).k)
                assert found.setdefault((number, variable), got) == got
                assert hit == (folder == "b")
    assert len(set(found.values())) == 4


PROGRAM = """
import sys, kernels, kdsl_core as kd
from kdsl_core.ir import TensorMap
from kdsl_core.lang.spec import ArraySpec
from kdsl_runtime import metrics
for name in sys.argv[1:]:
    kernel = getattr(kernels, name)
    kernel.lowered(kernel.specialisation(kd.spec("i32", 8), block=8), "sm_80")
print(int(metrics.snapshot()["misses"]))
"""
KERNELS = """
import kdsl_core as kd
NAMES = {"one", "two", "three", "four"}
TABLE = {"one": 1, "two": 2, "three": 3}
def total(names):
    return sum(TABLE.get(name, 0) for name in names)
@kd.kernel
def a(x: kd.Tensor["i32", "n"]):
    x[kd.thread_idx()[0]] = total(NAMES) + ("one" in {"one", "two", "three"})
@kd.kernel
def b(x: kd.Tensor["i32", "n"]):
    x[kd.thread_idx()[0]] = total(NAMES) * 2
"""
BUILDING = """
import kernels, kdsl_core as kd
from kdsl_runtime import metrics
print(len(kernels.a.cubin(kd.spec("i32", 8), target="sm_80", block=8)))
print(kernels.a._traces == {}, int(metrics.snapshot()["builds"]))
"""


def test_a_second_process_neither_traces_nor_assembles(tmp_path: Path) -> None:
    """With the real assembler; and when the cubin alone is lost, only that is made again."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    said = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", BUILDING], env=env, capture_output=True, text=True, check=True
        )
        said.append(done.stdout.split())
        if len(said) == 2:
            for path in (tmp_path / "cache").rglob("*.kdsl"):
                if b'"kind":"cubin"' in path.read_bytes():
                    path.unlink()
    assert [words[1:] for words in said] == [["False", "1"], ["True", "0"], ["True", "1"]]
    assert len({words[0] for words in said}) == 1


class FakeHost:
    """The runtime with a GPU that notes what it is asked to launch."""

    def __init__(self, target: str) -> None:
        import kdsl_runtime

        device = SimpleNamespace(target=target)
        self.driver = SimpleNamespace(device=lambda index: device)
        self.common_device = lambda arrays: ("cuda", 0)
        self.launch_stream = lambda arrays, device: 7
        self.remember = lambda *call: None
        self.recall = kdsl_runtime.recall
        self.launched: list[tuple[Any, ...]] = []

    def load(self, module: Any, device: int, origin: Any) -> Any:
        """A kernel that only notes its launches."""
        return SimpleNamespace(launch=lambda *args: self.launched.append((module.text, *args)))


@kd.kernel
def fetches(x: kd.Tensor["f32", "m n"], a: kd.f32):
    """Asks for a tile with TMA, so that a launch computes a tensor map."""
    kd.tma_load(x, kd.Layout((8, 32), (32, 1)), (8, 32)).prefetch()
    x[0, kd.thread_idx()[0]] = a


def test_a_launch_is_the_same_from_the_cache(monkeypatch) -> None:
    """Grid, values and tensor maps of a launch that was recalled are those of the one traced."""
    x = ArraySpec(kd.f32, (64, 96), (96, 1), 4096, ("cuda", 0))
    host = FakeHost("sm_90a")
    monkeypatch.setattr("kdsl_core.lang.launch.runtime", lambda why: host)
    hits = []
    for _ in range(2):
        fetches.clear()
        forget_memory()
        before = metrics.snapshot()["misses"]
        fetches[(3, 2), 32](x, 0.5)
        fetches[(3, 2), 32](x, 0.5)  # the second launch asks nobody
        hits.append(metrics.snapshot()["misses"] - before)
    assert hits == [1, 0]
    assert len(host.launched) == 4 and all(launch == host.launched[0] for launch in host.launched)
    _, grid, block, values, stream, cluster, overlap = host.launched[0]
    assert (grid, block, stream, cluster, overlap) == ((3, 2, 1), (32, 1, 1), 7, None, False)
    assert values[0] == 4096 and isinstance(values[-1], TensorMap)


PROCESSES = {
    "another process": {},
    "another hash seed": {"PYTHONHASHSEED": "77"},
    "a third hash seed": {"PYTHONHASHSEED": "4"},
    "another home": {"HOME": "/nowhere", "USER": "somebody"},
    "another locale and time zone": {"LC_ALL": "C", "TZ": "Asia/Tokyo"},
}


def test_other_processes_are_hits(tmp_path: Path) -> None:
    """Hash seed, home, user, folder and the order of builds are in no key."""
    for name, arguments, change in [
        ("home", ["a", "b"], {"PYTHONHASHSEED": "1"}),
        *((name, ["b", "a"], change) for name, change in PROCESSES.items()),
    ]:
        folder = tmp_path / name.replace(" ", "_")
        folder.mkdir()
        (folder / "kernels.py").write_text(KERNELS)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), **change}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            env=env, cwd=folder, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == ("2" if name == "home" else "0"), name
