"""The Hopper examples: what ptxas makes of them, and what is said when a line is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from execution import Executor
from house.census import ROOT
from kdsl_core.errors import KdslError
from kdsl_core.sim.hazards import Hazard
from kdsl_runtime.assemble import assemble

GEMM, TRANSPOSE = "hopper_gemm", "tma_transpose"


def module_of(path: Path) -> ModuleType:
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def changed(folder: Path, example: str, *edits: tuple[str, str]) -> ModuleType:
    """An example whose source was changed: the lines with the first words become the second."""
    lines = (ROOT / f"examples/{example}.py").read_text(encoding="utf-8").splitlines()
    for old, new in edits:
        assert any(old in line for line in lines), old
        at = next(number for number, line in enumerate(lines) if old in line)
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        lines[at] = lines[at].replace(old, new) if new else f"{indent}pass"
    path = folder / f"{example}.py"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return module_of(path)


def hazards(module: ModuleType) -> list[Hazard]:
    """What the simulator finds in one block."""
    rng = np.random.default_rng(0)
    if module.__name__ == TRANSPOSE:
        x = rng.standard_normal((64, 64)).astype(ml_dtypes.bfloat16)
        kernel, threads, args = module.transpose, 128, (x, np.empty_like(x))
    else:
        a, b = (rng.standard_normal((n, 328)).astype(ml_dtypes.bfloat16) for n in (128, 64))
        c = np.empty((128, 64), ml_dtypes.bfloat16)
        kernel, threads, args = module.by_hand, module.THREADS, (a, b, c)
    found: Any = kd.simulate(kernel, grid=1, block=threads, args=args, on_hazard="collect")
    return list(found.hazards)


@pytest.mark.parametrize(
    ("example", "name", "threads", "shapes"),
    [
        (GEMM, "by_hand", 288, [(512, 256), (256, 256), (512, 256)]),
        (GEMM, "with_collectives", 288, [(512, 256), (256, 256), (512, 256)]),
        (TRANSPOSE, "transpose", 128, [(512, 256), (256, 512)]),
    ],
)
def test_assembles_without_warnings(
    example: str, name: str, threads: int, shapes: list[tuple[int, int]]
) -> None:
    """ptxas takes the kernels for sm_90a without a warning and without spills."""
    kernel = getattr(module_of(ROOT / f"examples/{example}.py"), name)
    specs = [kd.spec("bf16", shape) for shape in shapes]
    report = assemble(kernel.module(*specs, target="sm_90a", block=threads), "sm_90a").report
    assert report.warnings == () and report.spill_stores == report.spill_loads == 0


# (example, words of a line, what they become or "" to leave the line out, hazard, its words)
MISTAKES = [
    (GEMM, "full.init()", "", "barrier", "full[0], which nobody has initialised"),
    (GEMM, "kd.sync_threads()", "", "barrier", "whose initialisation nothing orders before"),
    (GEMM, "kd.fence_mbarrier_init()", "", "barrier", "no fence made its initialisation visible"),
    (GEMM, ".arrive(pred=kd.thread_rank() % GROUP == 0)", ".arrive()", "barrier", "256 arrivals"),
    (GEMM, "empty[stage].arrive", "", "deadlock", "empty[0] (phase 0: 2 of 2 arrivals pending)"),
    (GEMM, "(turn + 1) % 2", "turn % 2", "deadlock", "empty[0] (phase 0: 2 of 2 arrivals pending)"),
    (GEMM, "arrive_expect(", "arrive_expect(16 + ", "deadlock", "16 bytes missing"),
    (GEMM, " + load_b.bytes)", ")", "deadlock", "bytes too many"),
    (GEMM, "full[stage].wait", "", "inflight", "without having waited for it"),
    (
        GEMM,
        "empty[stage].wait",
        "",
        "inflight",
        "asynchronous transfer (to mbarrier full[0]) filled",
    ),
    (TRANSPOSE, "arrived.wait(0)", "", "inflight", "without having waited for it"),
    (TRANSPOSE, "arrived.wait(0)", "", "inflight", "nobody has waited for all transfers"),
    (TRANSPOSE, "kd.fence_proxy_async()", "", "proxy", "no proxy fence made visible"),
    (TRANSPOSE, "kd.sync_threads()  # … and", "", "race", "nothing orders the two"),
    (TRANSPOSE, "kd.tma_store_wait(0)", "", "inflight", "may still read shared memory"),
    (TRANSPOSE, "(n, m))", "(n, m + 4))", "misaligned", "multiple of 16 bytes"),
]


@pytest.mark.parametrize(("example", "old", "new", "code", "words"), MISTAKES)
def test_what_is_said(
    tmp_path: Path, example: str, old: str, new: str, code: str, words: str
) -> None:
    """docs/language.md promises these answers."""
    found = hazards(changed(tmp_path, example, (old, new)))
    assert any(hazard.code == code and words in str(hazard) for hazard in found), found


def test_a_stage_released_too_early(tmp_path: Path) -> None:
    """The copy that refills it, the wgmma that still reads it, and who must wait for what."""
    arrive = "empty[stage].arrive(pred=kd.thread_rank() % GROUP == 0)"
    edits = ("kd.wgmma_commit()", f"kd.wgmma_commit(); {arrive}"), (f"            {arrive}", "")
    first = hazards(changed(tmp_path, GEMM, *edits))[0]
    assert first.code == "inflight" and first.place is not None and first.place.tensor == "a"
    assert "starts a copy into a[0, 0, 0], which a wgmma of warp group 0 may" in first.message
    assert first.fix is not None and first.fix.startswith("kd.wgmma_wait(0) in warp group 0, then")
    assert first.other_loc is not None and "kd.gemm(mma" in first.other_loc.excerpt()


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("kd.wgmma_fence()", "", "K445"),
        ("kd.wgmma_wait(0)", "", "K444"),
        ("kd.wgmma_wait(0)", "kd.wgmma_wait(1)", "K444"),
    ],
)
def test_what_is_refused(tmp_path: Path, old: str, new: str, code: str) -> None:
    """What ptxas would only warn of is an error before anything runs."""
    with pytest.raises(KdslError) as caught:
        hazards(changed(tmp_path, GEMM, (old, new)))
    assert caught.value.code == code and caught.value.loc is not None


def test_examples_are_clean(tmp_path: Path) -> None:
    """Without a change nothing is found."""
    assert hazards(changed(tmp_path, GEMM)) == hazards(changed(tmp_path, TRANSPOSE)) == []


@pytest.mark.parametrize("name", ["by_hand", "with_collectives"])
def test_products_on_both_machines(execute: Executor, name: str) -> None:
    """Tiles that hang over every edge, more steps along K than stages; equal bits on a GPU."""
    module = module_of(ROOT / f"examples/{GEMM}.py")
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((n, 328)).astype(ml_dtypes.bfloat16) for n in (200, 72))
    c = np.zeros((200, 72), ml_dtypes.bfloat16)
    got = execute(getattr(module, name), (2, 2), module.THREADS, a, b, c)[2]
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=2**-7, atol=0.05)


@pytest.mark.parametrize("swizzle", [False, True])
def test_transposes_on_both_machines(execute: Executor, swizzle: bool) -> None:
    """With and without the swizzle; equal bits on a GPU."""
    module = module_of(ROOT / f"examples/{TRANSPOSE}.py")
    x = np.random.default_rng(2).standard_normal((200, 72)).astype(ml_dtypes.bfloat16)
    y = np.zeros((72, 200), ml_dtypes.bfloat16)
    got = execute(module.transpose, (2, 4), 128, x, y, swizzle=swizzle)[1]
    np.testing.assert_array_equal(got, x.T)
