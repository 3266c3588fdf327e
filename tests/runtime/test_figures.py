"""Figures of kernels and how much they may grow: what `kdsl check` and the gate go by."""

from __future__ import annotations

import doctest
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import kdsl_core as kd
import kdsl_runtime as kr
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, gemm_sm80, identity
from kdsl_runtime import disassembly, instruction_counts
from kdsl_runtime.assemble import ResourceReport, assemble
from kdsl_runtime.builds import build
from kdsl_runtime.cli import main
from kdsl_runtime.instruction_counts import ptx_counts, sass_counts
from kdsl_runtime.pins import Lock, Severity, changes
from kdsl_runtime.pins.cubin import instruction_count
from kdsl_runtime.pins.figures import built_figures, run_figures
from kdsl_runtime.pins.limits import LIMITS, SLOWER, Measured, compared, limit_of
from runtime import served

SIDE, WARPS = 32, 4


@kd.kernel
def turned(
    x: kd.Tensor["f32", "m n"],
    y: kd.Tensor["f32", "n m"],
    pad: kd.Static,
    shift: kd.Static,
    wasted: kd.Static,
    twice: kd.Static,
):
    """y = xᵀ by tiles in rows of 32 + `pad` words; `wasted` rows of shared memory are not used."""
    tile = kd.smem(kd.f32, kd.Layout((SIDE + wasted, SIDE), (SIDE + pad, 1)))
    lane, warp = kd.thread_idx()[0] % SIDE, kd.thread_idx()[0] // SIDE
    for row in range(0, SIDE, WARPS):
        value = x[row + warp, lane + shift]
        for _ in range(twice):
            value = value * 1.5 + 0.25
        tile[row + warp, lane] = value
    kd.sync_threads()
    for row in range(0, SIDE, WARPS):
        y[row + warp, lane] = tile[lane, row + warp]


def figures(pad: int = 1, shift: int = 0, wasted: int = 0, twice: int = 0) -> dict[str, float]:
    """Those of the kernel, built and run."""
    x = np.arange(SIDE * (SIDE + 8), dtype=np.float32).reshape(SIDE, -1)
    y = np.zeros((x.shape[1], SIDE), np.float32)
    statics = {"pad": pad, "shift": shift, "wasted": wasted, "twice": twice}
    block = SIDE * WARPS
    module = turned.module(x, y, block=block, target="sm_90a", **statics)
    cubin = assemble(module, "sm_90a")
    ran = kd.simulate(turned, grid=1, block=block, args=(x, y), kwargs=statics)
    return {**built_figures(module, cubin.data, cubin.report), **run_figures(ran.profile)}


@pytest.fixture(scope="module")
def good() -> dict[str, float]:
    """The figures that later ones are compared with."""
    return figures()


def worse(before: dict[str, float], after: dict[str, float]) -> set[str]:
    """The names of regressions."""
    return {change.name for change in compared(before, after) if change.regression}


# -- planted changes -------------------------------------------------------------------------------
def test_nothing_changed(good: dict[str, float]) -> None:
    """The same kernel again has the same figures."""
    assert list(compared(good, figures())) == []
    assert good["run_wavefronts"] == good["run_ideal_wavefronts"] and good["spill_bytes"] == 0


@pytest.mark.filterwarnings("ignore::kdsl_runtime.assemble.KdslBuildWarning")
def test_a_planted_spill() -> None:
    """A product whose sums alone take 64 registers, and that is given 32."""
    config = GemmConfig("SM80_16x8x16_F32BF16BF16F32_TN", (64, 64, 32), (1, 2), 2)
    specs = [kd.spec("bf16", (64, 64)) for _ in range(3)]
    statics = {"epilogue": identity, "config": config}
    module = gemm_sm80.module(*specs, block=config.threads, target="sm_80", **statics)
    tight = module.text.replace(".reqntid", ".maxnreg 32\n.reqntid")
    built = (assemble(text, "sm_80") for text in (module.text, tight))
    before, after = (built_figures(module, cubin.data, cubin.report) for cubin in built)
    assert before["spill_bytes"] == 0 < after["spill_bytes"]
    assert "spill_bytes" in worse(before, after)


def test_planted_shared_memory(good: dict[str, float]) -> None:
    """More shared memory is none of it by itself; fewer blocks on a multiprocessor are."""
    little, much = figures(wasted=1), figures(wasted=300)
    assert little["shared_bytes"] > good["shared_bytes"] and worse(good, little) == set()
    assert much["blocks_per_sm"] < good["blocks_per_sm"]
    assert worse(good, much) == {"blocks_per_sm"}
    assert worse(much, good) == set()


def test_planted_instructions(good: dict[str, float]) -> None:
    """A computation more for each element is in the text, the machine code, and the run."""
    after = figures(twice=2)
    assert worse(good, after) == {"ptx_instructions", "sass_instructions", "run_instructions"}


def test_planted_conflicts(good: dict[str, float]) -> None:
    """Columns of rows of 32 words collide in their bank."""
    assert worse(good, figures(pad=0)) == {"run_wavefronts"}


def test_planted_sectors(good: dict[str, float]) -> None:
    """Rows that begin within a sector touch one sector more each."""
    after = figures(shift=4)
    assert after["run_sectors"] > good["run_sectors"]
    assert "run_sectors" in worse(good, after)


@pytest.mark.parametrize(
    ("name", "before", "allowed", "refused"),
    (
        ("spill_bytes", 8, 8, 9),
        ("stack_bytes", 0, 0, 8),
        ("blocks_per_sm", 4, 4, 3),
        ("ptx_instructions", 1000, 1030, 1031),
        ("sass_instructions", 200, 206, 207),
        ("run_sectors", 1000, 1010, 1011),
        ("run_wavefronts", 1000, 1010, 1011),
        ("run_mbarrier_waits", 1000, 1000, 1001),
        ("cold_opens", 17, 17, 18),
        ("calls_bound", 100, 103, 104),
    ),
)
def test_where_limits_are(name: str, before: float, allowed: float, refused: float) -> None:
    """Growth up to the limit is none, beyond it is a regression; the other way never is."""
    assert worse({name: before}, {name: allowed}) == set()
    assert worse({name: before}, {name: refused}) == {name}
    assert worse({name: refused}, {name: before}) == set()


@pytest.mark.parametrize("name", ("registers", "shared_bytes", "ptx_move", "run_ideal_sectors"))
def test_what_is_no_regression_by_itself(name: str) -> None:
    """Some figures only explain others."""
    assert worse({name: 1}, {name: 100}) == set() and len(list(compared({name: 1}, {name: 2}))) == 1


def test_figures_that_one_side_lacks() -> None:
    """A figure that only one of both knows says nothing."""
    assert list(compared({"registers": 1}, {"run_sectors": 5})) == []


def test_every_limit_is_reached() -> None:
    """No pattern hides behind an earlier one."""
    for limit in LIMITS:
        assert limit_of(limit.names.replace("*", "something")) is limit


def test_times() -> None:
    """A time is a regression beyond both spreads and beyond the limit."""
    before = Measured(100.0, 1.0)
    assert Measured(100 * (1 + SLOWER) + 0.1, 1.0).slower_than(before)
    assert not Measured(102.9, 0.1).slower_than(before)
    assert not Measured(110.0, 9.5).slower_than(before)
    assert not Measured(50.0, 1.0).slower_than(before) and Measured(50.0, 1.0).differs(before)


# -- pins ------------------------------------------------------------------------------------------
@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> kr.pins.Pin:
    """A pin, with a cache and a current folder of this test."""
    monkeypatch.setenv("KDSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    needed = served.scaled.specialisation(kd.spec("f32", 64), by=1.0, block=32)
    return kr.pins.pin(kr.Variant.of(served.scaled, needed, "sm_80"))


def test_a_pin_has_figures(pinned: kr.pins.Pin, tmp_path: Path) -> None:
    """Instructions, blocks and what the run on its sample moved; the file keeps them."""
    assert pinned.figures["run_sectors"] > 0 and pinned.figures["sass_instructions"] > 0
    assert pinned.numbers["registers"] == pinned.registers
    Lock([pinned]).save(tmp_path / "kdsl.lock")
    (read,) = Lock.load(tmp_path / "kdsl.lock")
    assert read == pinned and list(changes(pinned, read)) == []


def test_without_a_run_there_are_no_counters(pinned: kr.pins.Pin) -> None:
    """What is known of the text and the machine code stays comparable."""
    plain = kr.pins.pin(pinned.variant, numerics=False)
    assert not any(name.startswith("run_") for name in plain.figures)
    assert list(changes(pinned, plain)) == []


def test_check_tells_regressions_from_changes(pinned: kr.pins.Pin, tmp_path: Path) -> None:
    """`--regressions` leaves out what is only different."""
    figures = dict(pinned.figures)
    other = replace(
        pinned, registers=pinned.registers + 1, instructions="0" * 64,
        figures={**figures, "run_sectors": figures["run_sectors"] * 2},
    )  # fmt: skip
    assert [c.fact for c in changes(pinned, other) if c.regression] == ["run_sectors"]
    Lock([pinned]).save("before.lock")
    Lock([other]).save("after.lock")
    words = ["check", "before.lock", "--against", "after.lock", "--format", "json"]
    every, alone = (CliRunner().invoke(main, [*words, *more]) for more in ([], ["--regressions"]))
    assert every.exit_code == alone.exit_code == Severity.PERFORMANCE, every.output
    assert len(json.loads(every.output)["changes"]) == 3
    (found,) = json.loads(alone.output)["changes"]
    assert found["fact"] == "run_sectors" and found["regression"] is True


# -- counting instructions -------------------------------------------------------------------------
PTX = """
.visible .entry k(
    .param .u64 k_param_0
)
{
    .reg .b32 %r<3>;
    ld.param.u64 %rd1, [k_param_0];
$L_loop:
    @!%p1 bra $L_loop;
    cp.async.bulk.wait_group.read 0;
    cp.async.wait_group 0;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1}, %rd1, %rd2, 1, 1, 1, 0, 0;
    wgmma.fence.sync.aligned;
    ld.shared::cluster.b32 %r1, [%r2];
    add.s32 %r1, %r1, 1; // a comment
    fma.rn.f32 %f1, %f1, %f1, %f1;
    ret;
}
"""


def test_doctests() -> None:
    """The examples of the module hold."""
    found = doctest.testmod(instruction_counts)
    assert found.attempted and not found.failed


def test_kinds_of_ptx() -> None:
    """Directives, labels and braces are none; the longest prefix decides."""
    counts = ptx_counts(PTX.replace(" // a comment", ""))
    assert counts == {
        "instructions": 10, "parameter": 1, "branch": 2, "bulk_copy": 1, "async_copy": 1,
        "tensor": 1, "barrier": 1, "shared": 1, "integer": 1, "float": 1,
    }  # fmt: skip


@pytest.mark.skipif(disassembly.find_nvdisasm() is None, reason="needs nvdisasm")
def test_machine_instructions_are_those_of_nvdisasm(pinned: kr.pins.Pin) -> None:
    """Counted in the image as in the disassembly, padding apart."""
    entry = build(pinned.variant.module())
    counts = sass_counts(disassembly.sass(entry.payload))
    assert instruction_count(entry.payload) == counts["instructions"] == sum(counts.values()) / 2
    assert counts["global"] == 2 and counts["float"] >= 1
    assert ResourceReport.from_json(entry.metadata["report"]).registers == pinned.registers


def test_what_is_no_elf_has_none() -> None:
    """An image of another kind counts as nothing."""
    assert instruction_count(b"something else") == 0
