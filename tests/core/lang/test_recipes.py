"""What a kernel depends on, as digests; tensor maps and PTX that outlive their process."""

from __future__ import annotations

import collections
import cProfile
import datetime
import functools
import gc
import os
import random
import sys
import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from fuse.sm90_configs import BUILDS
from kdsl_core.ir import target_of
from kdsl_core.lang.arguments import bind
from kdsl_core.lang.dependencies import Dependencies
from kdsl_core.lang.file_states import library_digest, still
from kdsl_core.lang.fingerprint import Unstated, digest, digests
from kdsl_core.lang.lowered import Lowered
from kdsl_core.lang.observed import observing
from kdsl_core.lang.recipes import ingredients
from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90

ATOM = kd.atoms.SM80_16x8x16_F32F16F16F32_TN
VALUES = [
    None, True, 1, 1.0, -0.0, 0.0, float("nan"), "1", b"1", 1j, ..., (1,), [1], {1}, frozenset({1}),
    {1: 1}, {"1": 1}, slice(1), range(1), kd.f32, kd.f16, np.float32(1), np.int64(1),
    np.dtype("f4"),
    np.array([1]), np.array([1.0]), np.array([[1]]), bytearray(b"1"), np.exp, np.sum, len, str.join,
    kd.Layout(4), kd.Layout(8), kd.Layout((4, 2)), kd.Swizzle(3, 3, 3), ATOM, kd.sym("n"),
    kd.sym("n", divisible_by=2), int, kd.DType, collections.OrderedDict, kd.atoms, print,
]  # fmt: skip


def test_digests_tell_values_apart() -> None:
    """Each value has its own digest, the same each time."""
    found = [digest(value) for value in VALUES]
    assert found == [digest(value) for value in VALUES]
    assert len(set(found)) == len(VALUES)


@pytest.mark.parametrize("value", [threading.Lock(), iter([1]), object(), lambda: 1])
def test_values_without_a_digest(value: Any) -> None:
    """What has no content that could be compared is said to have none."""
    with pytest.raises(Unstated):
        digest(value)


class Config:
    """Settings with a method and a slot-less neighbour."""

    def __init__(self) -> None:
        self.scale = 2

    def factor(self) -> int:
        """What only a method reads."""
        return self.scale


CONFIG = Config()
TREE = SimpleNamespace(inner=[SimpleNamespace(leaf=1)])
HELPER = functools.partial(max, 3)


def reader() -> Any:
    """Mentions everything above."""
    return CONFIG.factor() + TREE.inner[0].leaf + HELPER(1)


def test_paths_lead_to_what_was_reached() -> None:
    """The names of the digests read like the code, and only what changed has another digest."""
    before = dict(digests(Dependencies(reader)))
    assert {"reader.CONFIG", "reader.CONFIG.factor", "reader.TREE.inner[0]"} <= before.keys()
    CONFIG.scale = 3
    after = dict(digests(Dependencies(reader)))
    CONFIG.scale = 2
    assert {path for path in before if before[path] != after[path]} == {"reader.CONFIG"}


def many(change: int = -1, doc: str = "") -> list[tuple[str, str]]:
    """Digests of a helper with more constants than a byte can number, one of which is changed."""
    lines = [f"    x = {1000 + n + 5000 * (n == change)}" for n in range(300)]
    space: dict[str, Any] = {}
    exec("\n".join(["def helper():", f"    {doc!r}", *lines, "    return x"]), space)
    helper = space["helper"]

    def calls() -> Any:
        return helper()

    return digests(Dependencies(calls))


@pytest.mark.parametrize("at", [0, 5, 254, 255, 256, 299])
def test_every_constant_counts(at: int) -> None:
    """Also those that take more than one byte to number; a docstring that nobody reads does not."""
    assert many(at) != many()
    assert many(doc="Another.") == many(doc="One.")


def test_unread_attributes_do_not_count() -> None:
    """A counter that no code of the kernel mentions changes nothing."""
    vars(CONFIG)["uses"] = 0
    dependencies = Dependencies(reader)
    before = digests(dependencies)
    vars(CONFIG)["uses"] = 1
    assert dependencies.unchanged()
    assert digests(Dependencies(reader)) == before


def test_things_that_hold_each_other() -> None:
    """A cycle of objects and containers is walked once."""
    ring: list[Any] = [1]
    ring.append({"ring": ring})

    def reads() -> Any:
        return ring

    assert digests(Dependencies(reads)) == digests(Dependencies(reads))


@pytest.mark.parametrize("name", ["pingpong 64x256", "odd pitch of C", "batched, odd pitch", "i8"])
def test_lowered_kernels_survive_json(name: str) -> None:
    """From JSON: the same parameters, and the same tensor maps for the same arguments."""
    import json

    build = BUILDS[name]
    statics = {"epilogue": build.epilogue, "config": build.config}
    bound = bind(gemm_sm90.signature, build.specs(), statics)
    cluster = build.cluster and (*build.cluster, 1, 1)[:3]
    block = (build.config.threads, 1, 1)
    traced = gemm_sm90.trace(bound, block, cluster)
    lowered = Lowered.of(gemm_sm90.built(traced, target_of("sm_90a")), traced)
    facts = json.loads(json.dumps(lowered.facts()))
    again = Lowered.from_facts(lowered.module.text, facts)
    assert again.module == lowered.module
    assert again.values(bound) == lowered.values(bound)
    assert again.facts() == lowered.facts()
    assert len(facts["maps"]) >= 2


def test_every_hopper_gemm_has_a_recipe() -> None:
    """All that this kernel reads can be stated, and configurations have recipes of their own."""
    found = set()
    for build in BUILDS.values():
        statics = {"epilogue": build.epilogue, "config": build.config}
        needed = gemm_sm90.specialisation(*build.specs(), block=128, **statics)
        dependencies = Dependencies(gemm_sm90.staged.function, statics.values())
        recipe = ingredients(gemm_sm90, needed, target_of("sm_90a"), dependencies)
        found.add(repr(recipe))
    assert len(found) > 20 and "None" not in found


def test_library_digest_covers_every_file() -> None:
    """It is one text per process, of the files that are run."""
    assert library_digest() == library_digest()
    assert len(library_digest() or "") == 64


def test_observation(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables and files that were read, and questions without a lasting answer."""

    def reads() -> None:
        os.environ.get("KDSL_A")
        os.getenv("KDSL_B")
        (tmp_path / "f").read_text()
        (tmp_path / "g").write_text("1")

    def asks() -> None:
        time.time()
        datetime.datetime.now()
        random.random()
        os.path.exists(tmp_path)
        os.listdir(tmp_path)
        list(os.environ)

    (tmp_path / "f").write_text("1")
    monkeypatch.setenv("KDSL_A", "1")
    with observing() as observed:
        reads()
    states = observed.states()
    assert set(states) == {"env:KDSL_A", "env:KDSL_B", f"file:{tmp_path / 'f'}"}
    assert observed.surprises == set()
    assert still(states)
    (tmp_path / "f").write_text("2")
    assert not still(states)
    assert reads.__code__ in observed.codes
    with observing() as observed:
        asks()
    assert len(observed.surprises) == 6, observed.surprises


def test_other_packages_are_followed_so_far() -> None:
    """A helper that calls into a large package is not kept on disk, but its own names count."""
    from rich import console

    factor = 2

    def reads() -> Any:
        return console.Console().width * factor

    dependencies = Dependencies(reads)
    assert not dependencies.complete
    assert dependencies.unchanged()
    factor = 3
    assert not dependencies.unchanged()


def test_another_profiler_is_left_alone() -> None:
    """While Python has no room for one more nothing is observed, which is a surprise."""
    with ExitStack() as at_work:
        if sys.version_info >= (3, 12):
            for tool in (3, 4):
                sys.monitoring.use_tool_id(tool, "another")
                at_work.callback(sys.monitoring.free_tool_id, tool)
        else:
            at_work.enter_context(cProfile.Profile())
        with observing() as observed:
            pass
    assert observed.surprises == {"another profiler is at work"}


def test_garbage_collection_is_not_observed() -> None:
    """Finalizers and the callbacks of others may do what they like."""

    def others(phase: str, info: Any) -> None:
        time.time()

    gc.callbacks.append(others)
    try:
        with observing() as observed:
            gc.collect()
    finally:
        gc.callbacks.remove(others)
    assert observed.surprises == set()
    assert others.__code__ not in observed.codes
