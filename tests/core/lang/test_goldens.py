"""Whole kernels as IR and PTX for people to read: what changes in the compiler shows here."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import kdsl_core as kd

EXAMPLES = Path(__file__).parents[3] / "examples"
RSQRT_2 = 0.7071067811865476


def bias_gelu(acc: Any, bias: Any) -> Any:
    """The tail of a linear layer: add the bias, then the exact GELU."""
    x = acc + bias
    return x * 0.5 * (kd.erf(x * RSQRT_2) + 1.0)


@dataclass(frozen=True)
class Case:
    """A kernel with the arguments that make its golden."""

    kernel: Any
    args: tuple[Any, ...]
    block: int
    statics: dict[str, Any] = field(default_factory=dict)

    def ir(self) -> str:
        """Its IR as text."""
        return str(self.kernel.ir(*self.args, block=self.block, **self.statics))

    def module(self, target: str) -> Any:
        """Its PTX module."""
        return self.kernel.module(*self.args, target=target, block=self.block, **self.statics)


def f32(*shape: int, **facts: Any) -> Any:
    """An f32 array that is described only."""
    return kd.spec("f32", shape, **facts)


def bf16(*shape: int) -> Any:
    """A bf16 matrix that is described only."""
    return kd.spec("bf16", shape)


@cache
def example(name: str, kernel: str) -> Any:
    """The kernel of an example file."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))[kernel]


def cases() -> dict[str, Case]:
    """The kernels by the names of their goldens."""
    from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, gemm_sm80

    tile = GemmConfig("SM80_16x8x16_F32BF16BF16F32_TN", (16, 16, 32), (1, 1), 2)
    matrices = (bf16(128, 64), bf16(128, 64), bf16(128, 128))
    x, y = f32(1000), f32(1000)
    bias = f32(128, 128, strides=(0, 1))
    linear = {"config": tile, "epilogue": bias_gelu}
    return {
        "scaled_add": Case(example("vector_add", "scaled_add"), (x, y, x, 0.5), 128),
        "softmax": Case(example("softmax", "softmax"), (f32(10, 77), f32(10, 77)), 128),
        "transpose": Case(example("transpose", "transpose"), (f32(70, 50), f32(50, 70)), 256),
        "matmul": Case(example("matmul", "matmul"), matrices, 128),
        "gemm_bias_gelu": Case(gemm_sm80, (*matrices, bias), tile.threads, linear),
    }


NAMES = ("scaled_add", "softmax", "transpose", "matmul", "gemm_bias_gelu")


@pytest.mark.parametrize("name", NAMES)
def test_ir(name: str, golden: Callable[[str, str], None]) -> None:
    """The optimised IR of the kernel."""
    golden(f"ir/{name}.ir", cases()[name].ir())


@pytest.mark.parametrize("name", NAMES)
def test_ptx(name: str, golden: Callable[[str, str], None]) -> None:
    """The PTX for sm_80; the one for sm_90a differs in its first two lines only."""
    case = cases()[name]
    text, newer = (case.module(target).text for target in ("sm_80", "sm_90a"))
    golden(f"ptx/{name}.ptx", text)
    assert newer.splitlines()[2:] == text.splitlines()[2:]
    assert newer.splitlines()[1] == ".target sm_90a"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", NAMES)
def test_assembles(name: str, target: str) -> None:
    """ptxas takes the kernel, spills no register and sees its shared memory."""
    from kdsl_runtime.assemble import assemble
    from kdsl_runtime.toolchain import default_toolchain

    module = cases()[name].module(target)
    cubin = assemble(module, target, default_toolchain())
    assert cubin.data.startswith(b"\x7fELF")
    assert (cubin.report.spill_stores, cubin.report.spill_loads) == (0, 0)
    assert module.text.count(".visible .entry") == 1


def texts() -> dict[str, str]:
    """IR and PTX of all cases."""
    return {name: case.ir() + case.module("sm_80").text for name, case in cases().items()}


def test_same_text_in_every_process(tmp_path: Path) -> None:
    """Neither the seed of Python's hashes nor the working directory shows in what is compiled."""
    code = f"import runpy, json; print(json.dumps(runpy.run_path({__file__!r})['texts']()))"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed, folder in (("1", tmp_path), ("4711", Path(__file__).parent))
    ]
    answers = [json.loads(child.communicate(timeout=60)[0]) for child in children]
    here = texts()
    assert set(here) == set(NAMES)
    for answer in answers:
        assert answer == here


def test_the_same_kernel_twice_in_one_process() -> None:
    """What was traced before leaves no trace in names or numbers."""
    before = texts()
    for case in cases().values():
        case.kernel.clear()
    assert texts() == before
