"""PTX text: accepted by the assembler, the same in every process, readable."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from core.ptx.kernels import Parts, clusters, every_instruction, mbarriers, sum_of_four
from kdsl_core.dtypes import boolean, f32, u32, u64
from kdsl_core.ir import Block, Builder, Const, Kernel, Value, target_of
from kdsl_core.isa import cluster, launch
from kdsl_core.isa.barrier import barrier_sync, fence
from kdsl_core.isa.control import IfOp
from kdsl_core.isa.memory import load, store
from kdsl_core.passes import optimise, verify
from kdsl_core.ptx import emit
from kdsl_core.ptx.spelling import identifier
from kdsl_runtime.assemble import KdslBuildWarning, assemble

TARGETS = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_103", "sm_120", "sm_120a"]


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_every_instruction_is_assembled(target: str) -> None:
    """ptxas accepts one of each instruction, with the author's lines in it."""
    chip = target_of(target)
    kernel = every_instruction(chip)
    verify(kernel)
    with warnings.catch_warnings():
        warnings.simplefilter("error", KdslBuildWarning)
        assert assemble(emit(kernel, chip, lines=True), target).data


@pytest.mark.parametrize("target", TARGETS)
def test_the_least_version_is_accepted(target: str) -> None:
    """The stated PTX version is the least that the assembler takes for the target."""
    kernel = Kernel("empty", (32, 1, 1))
    assert assemble(emit(kernel, target_of(target)), target).data


def test_versions_rise_with_the_instructions() -> None:
    """An instruction that needs a newer PTX raises the version of its module."""
    ada = target_of("sm_89")
    assert emit(Kernel("empty", (32, 1, 1)), ada).ptx_version == (7, 8)
    module = emit(every_instruction(ada), ada)
    assert module.ptx_version == (8, 4)
    assert module.text.startswith(".version 8.4\n.target sm_89\n")


def test_hopper_versions_are_the_least_that_work() -> None:
    """Other blocks' memory is in PTX 7.8, what waits for copies in 8.0, as their needs say."""
    hopper = target_of("sm_90")
    near, whole = Parts(), Parts()
    for parts in (near, whole):
        there = cluster.map_address(parts.b, parts.shared, Const(u32, 1))
        parts.keep(*load(parts.b, "cluster", there, u32))
        launch.wait_for_dependencies(parts.b)
    mbarriers(whole)
    clusters(whole)
    for parts, version in ((near, (7, 8)), (whole, (8, 0))):
        module = emit(parts.kernel, hopper)
        assert module.ptx_version == version
        assert assemble(module, "sm_90").data


def test_golden(golden: Callable[[str, str], None]) -> None:
    """The whole text of a small kernel."""
    golden("ptx/sum_of_four.ptx", emit(optimise(sum_of_four()), target_of("sm_80")).text)


def test_what_the_launcher_needs() -> None:
    """The module states entry, parameters, threads and shared memory."""
    module = emit(sum_of_four(), target_of("sm_90a"))
    assert module.entry == "sum_of_four" and module.target == "sm_90a"
    assert module.params == (("x", u64),)
    assert (module.threads, module.shared_bytes) == (128, 2048)


def test_text_is_the_same_in_every_process() -> None:
    """Neither hash seeds nor object identities show in the text."""
    code = (
        "from core.ptx.kernels import every_instruction\n"
        "from kdsl_core.ir import target_of\n"
        "from kdsl_core.ptx import emit\n"
        "print(emit(every_instruction(target_of('sm_90a')), target_of('sm_90a')).text, end='')"
    )
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    texts = set()
    for seed in ("1", "2"):
        environ = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True)
        assert run.returncode == 0, run.stderr.decode()
        texts.add(run.stdout)
    here = target_of("sm_90a")
    assert texts == {emit(every_instruction(here), here).text.encode()}


def test_lines_are_only_there_when_asked_for() -> None:
    """By default no path and no line of the author is in the text; `.loc` has the base name."""
    plain, located = (emit(sum_of_four(), target_of("sm_80"), lines=x).text for x in (False, True))
    assert "kernels.py" not in plain and ".loc" not in plain
    assert '.file 1 "kernels.py"' in located
    assert located.count(".loc 1 ") > 10
    without = [line for line in located.splitlines() if ".loc" not in line and ".file" not in line]
    assert without == plain.splitlines()


def test_argument_names_do_not_matter() -> None:
    """Two kernels that differ in their arguments' names share their text."""
    kernel, renamed = sum_of_four(), sum_of_four()
    renamed.params[0] = type(renamed.params[0])("other", renamed.params[0].value)
    texts = {emit(k, target_of("sm_80")).text for k in (kernel, renamed)}
    assert len(texts) == 1


def body_of(kernel: Kernel) -> list[str]:
    """The instructions of a kernel's text."""
    text = emit(kernel, target_of("sm_80")).text
    lines = text[text.index("{\n") :].splitlines()[1:-1]
    return [line.strip() for line in lines if ".reg" not in line]


def test_unread_parameters_are_not_loaded() -> None:
    """Only parameters that the body reads are loaded."""
    parts = Parts()
    store(parts.b, "global", parts.pointer, (Const(u32, 1),))
    loads = [line for line in body_of(parts.kernel) if line.startswith("ld.param")]
    assert loads == ["ld.param.b64 %rd1, [every_instruction_param_0];"]


def test_known_conditions_leave_no_branch() -> None:
    """A constant condition becomes plain code."""
    kernel = Kernel("known", (32, 1, 1))
    b = Builder(kernel)
    then, otherwise = Block(), Block()
    with b.inside(then):
        fence(b, "gpu")
    with b.inside(otherwise):
        barrier_sync(b)
    b.append(IfOp(condition=Const(boolean, True), then=then, otherwise=otherwise))
    assert body_of(kernel) == ["fence.acq_rel.gpu;", "ret;"]


def test_constants_without_immediates_are_hoisted() -> None:
    """An f16 constant is moved to a register once, before everything else."""
    lines = body_of(sum_of_four())
    assert lines[0] == "mov.b16 %h1, 0x3C00;"
    assert "st.global.v2.b16 [%rd1+8], {%h1, %h1};" in lines


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "0f3F800000"), (-0.0, "0f80000000"), (float("inf"), "0f7F800000")]
)
def test_floats_are_exact(value: float, text: str) -> None:
    """Float immediates are their bits."""
    pointer = Value(u64)
    kernel = Kernel("floats", (32, 1, 1))
    store(Builder(kernel), "global", pointer, (Const(f32, value),))
    assert body_of(kernel)[0] == f"st.global.b32 [%rd1], {text};"


@pytest.mark.parametrize(
    ("name", "clean"), [("gemm", "gemm"), ("a.b<c>", "a_b_c_"), ("9x", "_9x"), ("größe", "gr__e")]
)
def test_names_are_what_ptx_allows(name: str, clean: str) -> None:
    """Every character that PTX does not allow becomes an underscore."""
    assert identifier(name) == clean
