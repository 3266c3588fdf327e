"""Every instruction family gives the same bits in the simulator and on a GPU.

`--agreement-json FILE` writes what was compared. Without a GPU the cases run in the simulator
twice, the second time in a shuffled order.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from execution import Executor
from gpu import test_clusters_gpu, test_instructions_gpu, test_tma_gpu, test_warp_groups_gpu
from gpu.agreement.cases import CASES
from gpu.agreement.comparison import Outcome, compared, note, summed
from gpu.agreement.programs import Runner, gpu, simulator
from gpu.agreement.rows import Everything, Row, rows
from kdsl_core import sim
from kdsl_core.dtypes import boolean, u32
from kdsl_core.ir import Kernel, Op, Target, target_of
from kdsl_core.isa import ALL_OPS
from kdsl_core.isa.instruction import InstructionOp
from kdsl_core.isa.wgmma_shapes import TYPES
from kdsl_core.ptx import emit
from kdsl_runtime.assemble import assemble

shuffled = partial(simulator, order="shuffle", seed=1)
BY_BOTH = pytest.mark.parametrize(
    "where", ["simulator", pytest.param("gpu", marks=pytest.mark.gpu)]
)
OTHER: dict[str, Runner] = {"simulator": shuffled, "gpu": gpu}
LANES = {"simulator": 256, "gpu": 1 << 16}
PARTS = range(24)  # of the rows, each in kernels of its own


def agreed(request: pytest.FixtureRequest, outcomes: Iterable[Outcome]) -> None:
    """Note what was compared, and fail where anything differs."""
    table = summed(outcomes)
    note(request, table)
    assert not [line for row in table for line in (row.shown or ("differs",)) if row.differ]


# -- regular instructions --------------------------------------------------------------------------
@cache
def all_rows(target: Target) -> list[Row]:
    """Everything regular that a target has."""
    return rows(target)


def target_of_machine(where: str) -> Target:
    """The GPU's own target; for the simulator one that has fp8."""
    if where == "simulator":
        return target_of("sm_90a")
    from kdsl_runtime import driver

    return target_of(driver.device(0).target)


def outcomes_of(some: list[Row], lanes: int, runner: Runner) -> Iterable[Outcome]:
    """One outcome for each row."""
    everything = Everything(some, lanes)
    arrays = {"input": everything.input, "output": everything.output}
    runner(everything.kernel, everything.grid, arrays)
    for row, expected, got in everything.results():
        kind = boolean if row.moves else row.result
        yield compared(row.family, row.name, expected, got, kind)


@BY_BOTH
@pytest.mark.parametrize("part", PARTS)
def test_regular_instructions(request: pytest.FixtureRequest, where: str, part: int) -> None:
    """What each row states is what the machine gives, on all patterns of up to 16 bits."""
    some = all_rows(target_of_machine(where))[part :: len(PARTS)]
    runner = partial(simulator, on_hazard="collect") if where == "simulator" else gpu
    agreed(request, outcomes_of(some, LANES[where], runner))


# -- instructions that are not regular -------------------------------------------------------------
@BY_BOTH
@pytest.mark.parametrize("name", CASES)
def test_cases(request: pytest.FixtureRequest, where: str, name: str) -> None:
    """Every word that the threads write is the same on both machines, and no hazard is found."""
    case = CASES[name]
    expected, got = (case.outputs(name, runner) for runner in (simulator, OTHER[where]))
    written = (expected.view(np.uint32) | got.view(np.uint32)).any(axis=0)
    assert written.any()
    words = [array.view(np.uint32)[:, written] for array in (expected, got)]
    agreed(request, [compared(case.family, name, *words, u32)])


def test_fast_numerics_reach_the_tensor_core() -> None:
    """`numerics="fast"` gives close numbers, not the same bits."""
    name = next(name for name in CASES if "m16n8k16.row.col.f32.bf16" in name)
    runners = (simulator, partial(simulator, numerics="fast"))
    exact, fast = (CASES[name].outputs(name, runner)[:, :16] for runner in runners)
    assert not np.array_equal(exact, fast)
    np.testing.assert_allclose(fast.view(np.float32), exact.view(np.float32), 1e-3, 1e-3)


@pytest.mark.parametrize("a_from", ["shared", "registers"])
@pytest.mark.parametrize("types", TYPES, ids=lambda row: "_".join(map(str, row)))
def test_warp_groups(execute: Executor, types: Any, a_from: str) -> None:
    """Every combination of types of `wgmma`, from two sources."""
    d, a, b = types
    atom = kd.atoms.wgmma(64, a, b, d, a_from=a_from)
    test_warp_groups_gpu.check(execute, atom, (128, 64, 128 // a.bytes), None)


@kd.kernel
def talks(x: kd.Tensor["i32", "n"]) -> None:
    """Each thread says two numbers."""
    kd.print("{} of {}%", x[kd.thread_rank()], kd.thread_rank())


@BY_BOTH
def test_prints(where: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The same lines, where the simulator says before each which thread it is of."""
    x = np.arange(64, dtype=np.int32) ** 2
    talks[1, 64](x)
    told = {line.partition(": ")[2] for line in capfd.readouterr().out.splitlines()}
    assert told == {f"{square} of {i}%" for i, square in enumerate(x.tolist())}
    if where == "gpu":
        from kdsl_runtime.device_array import to_device

        held = to_device(x)
        talks[1, 64](held)
        held.read()  # waits, and lets the driver write
        assert told == set(capfd.readouterr().out.splitlines())


def test_every_kernel_assembles() -> None:
    """ptxas takes what the GPU is to run, without a warning."""
    target, everything = target_of("sm_90a"), all_rows(target_of("sm_90a"))
    parts = [everything[part :: len(PARTS)] for part in PARTS]
    kernels = [Everything(part, LANES["gpu"]).kernel for part in parts]
    kernels += [case.kernel(name) for name, case in CASES.items()]
    for kernel in kernels:
        assert assemble(emit(kernel, target), str(target)).report.warnings == (), kernel.name


# -- what is covered -------------------------------------------------------------------------------
# Tests that compare both machines through the language: name → one run of it
THROUGH_THE_LANGUAGE: dict[str, Any] = {
    "named barriers": test_instructions_gpu.test_named_barriers,
    "nested control flow": test_instructions_gpu.test_nested_control_flow,
    "early returns": test_instructions_gpu.test_divergent_loops_and_early_return,
    "copies that arrive": test_clusters_gpu.test_copies_that_arrive,
    "registers change hands": test_clusters_gpu.test_registers_change_hands,
    "launches in a row": partial(test_clusters_gpu.test_launches_in_a_row, overlap=True),
    "multicast": partial(test_tma_gpu.test_multicast, blocks=2, sharers=2),
    "runs of bytes": partial(test_tma_gpu.test_runs, dtype="f32", how="add"),
    "tiles brought near": partial(test_tma_gpu.test_maps_and_tiles_brought_near, dtype="f32"),
    "reducing stores": partial(test_tma_gpu.test_reducing_stores, dtype="f32", how="add"),
    "wgmma": partial(test_warp_groups_gpu.test_widths, n=8),
}
REASONS = {
    "PrintOp": "writes to the driver's output, not to memory: test_prints compares the text",
}


def ops_of(kernel: Kernel) -> set[type[Op]]:
    """The operations of a kernel."""
    return {type(op) for op in kernel.body.walk()}


def ops_through_the_language(run: Any, monkeypatch: pytest.MonkeyPatch) -> set[type[Op]]:
    """The operations that a test executes in the simulator."""
    found: set[type[Op]] = set()
    real = sim.run

    def watched(kernel: Kernel, *args: Any, **options: Any) -> sim.Result:
        found.update(ops_of(kernel))
        return real(kernel, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(sim, "run", watched)
        run(Executor(gpu=False))
    return found


def test_every_operation_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of ALL_OPS occurs in a case or a test of this folder, or is named with a reason."""
    found = {name: ops_of(case.kernel(name)) for name, case in CASES.items()}
    families = {row.family for row in all_rows(target_of("sm_90a"))}
    found["rows"] = {
        op for op in ALL_OPS if issubclass(op, InstructionOp) and op.FAMILY in families
    }
    for name, run in THROUGH_THE_LANGUAGE.items():
        found[name] = ops_through_the_language(run, monkeypatch)
    covered = {op.__name__ for ops in found.values() for op in ops}
    missing = {op.__name__ for op in ALL_OPS} - covered
    assert missing == REASONS.keys()
