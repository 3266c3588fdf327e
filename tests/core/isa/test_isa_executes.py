"""One kernel executes every regular instruction on many bit patterns, in simulator and GPU.

What each instruction must give is its own NumPy function; approximate ones have a tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from core.isa.bench import Traced
from kdsl_core.dtypes import ALL_DTYPES, DType, boolean, f32, i32, u8, u64
from kdsl_core.ir import Builder, Const, Kernel, Operand, Param, Target, Value, target_of
from kdsl_core.isa import arith, compare, functions
from kdsl_core.isa.arith import binary
from kdsl_core.isa.compare import select
from kdsl_core.isa.conversions import ROUNDINGS, direct
from kdsl_core.isa.convert import convert
from kdsl_core.isa.instruction import Instruction, InstructionOp
from kdsl_core.isa.math import NAMES, function
from kdsl_core.isa.memory import load, store
from kdsl_core.isa.special import special
from kdsl_core.ptx import emit

LANES = 256
NUMBERS = [dtype for dtype in ALL_DTYPES if dtype is not boolean]
BY_THE_SIMULATOR = pytest.param("simulator")
BY_THE_GPU = pytest.param("gpu", marks=pytest.mark.gpu)


@dataclass(frozen=True)
class Case:
    """One thing to compute: operand types, how it is built, what it must give.

    `divides` says that lanes whose second operand is 0 give nothing defined.
    """

    name: str
    operands: tuple[DType, ...]
    result: DType
    build: Any
    expected: Any
    divides: bool = False


def instructions() -> Iterator[Instruction]:
    """Every regular instruction."""
    yield from (*arith.INSTRUCTIONS, *compare.INSTRUCTIONS, *functions.INSTRUCTIONS)
    yield from (compare.selection(dtype) for dtype in NUMBERS)
    for source, target in product(NUMBERS, NUMBERS):
        for mode, saturate in product((None, *ROUNDINGS), (False, True)):
            row = direct(source, target, mode, saturate) if source is not target else None
            if row is not None:
                yield replace(row, name=f"{row.name}_{mode}_{saturate}")


def of_instruction(row: Instruction) -> Case:
    """The instruction by itself."""

    def build(b: Builder, *operands: Operand) -> Operand:
        op = InstructionOp(instruction=row, operands=operands, d=Value(row.result))
        return b.append(op).d

    divides = row.undefined is not None and row.name in ("div", "rem")
    return Case(repr(row), row.operands, row.result, build, row.run, divides)


def of_function(name: str) -> Case:
    """A function of f32 at full precision: simulator and GPU agree in every bit."""

    def build(b: Builder, x: Operand) -> Operand:
        return function(b, name, x, False)

    return Case(name, (f32,), f32, build, Traced(build, f32))


def cases(target: Target) -> list[Case]:
    """Everything that the target has."""
    rows = [row for row in instructions() if row.need.missing(target) is None]
    return [*map(of_instruction, rows), *map(of_function, NAMES)]


def inputs(dtype: DType, position: int) -> Any:
    """Bit patterns: random ones, ordinary numbers, and the special values."""
    rng = np.random.default_rng([position, dtype.bits])
    if dtype is boolean:
        return rng.integers(0, 2, LANES).astype(bool)
    values = rng.integers(0, 256, LANES * dtype.bytes, np.uint8).view(dtype.numpy).copy()
    ordinary = rng.standard_normal(64) * 20
    values[64:128] = (ordinary if dtype.is_float else np.abs(ordinary)).astype(dtype.numpy)
    special_values = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 2.5, -2.5]
    if dtype.is_float:
        grid = np.array(special_values).astype(dtype.numpy)
        values[:64] = np.tile(grid, 8) if position % 2 else np.repeat(grid, 8)
    return values


class Everything:
    """A kernel with one store per case, and the layout of its input and output bytes."""

    def __init__(self, some: list[Case]) -> None:
        self.cases = some
        self.kernel = Kernel("everything", (LANES, 1, 1))
        self.input = np.zeros(len(ALL_DTYPES) * 3 * LANES * 8, np.uint8)
        self.output_bytes = len(some) * LANES * 8
        pointers = [Value(u64) for _ in range(2)]
        self.kernel.params = [
            Param("input", pointers[0], ("input", u8)),
            Param("output", pointers[1], ("output", u8)),
        ]
        self._write(Builder(self.kernel), *pointers)

    def _write(self, b: Builder, source: Value, destination: Value) -> None:
        lane = convert(b, special(b, "tid.x"), u64)
        step = binary(b, "mul", lane, Const(u64, 8))
        read, write = binary(b, "add", source, step), binary(b, "add", destination, step)
        held: dict[tuple[DType, int], Operand] = {}
        for place, (dtype, position) in enumerate(product(ALL_DTYPES, range(3))):
            held[dtype, position] = self._load(b, read, dtype, place, inputs(dtype, position))
        for place, case in enumerate(self.cases):
            result = case.build(b, *(held[t, i] for i, t in enumerate(case.operands)))
            if result.dtype is boolean:
                result = select(b, result, Const(i32, 1), Const(i32, 0))
            store(b, "global", write, (result,), offset=place * LANES * 8)

    def _load(self, b: Builder, read: Operand, dtype: DType, place: int, values: Any) -> Operand:
        rows = self.input.reshape(-1, LANES, 8)[place]
        rows[:, : dtype.bytes] = values.view(np.uint8).reshape(LANES, -1)
        stored = u8 if dtype is boolean else dtype
        (loaded,) = load(b, "global", read, stored, offset=place * LANES * 8)
        return convert(b, loaded, boolean) if dtype is boolean else loaded

    def results(self, output: Any) -> Iterator[tuple[Case, Any, Any]]:
        """(case, expected, got) for each case, one lane an element."""
        for rows, case in zip(output.reshape(-1, LANES, 8), self.cases, strict=True):
            operands = [inputs(dtype, i) for i, dtype in enumerate(case.operands)]
            expected = case.expected(*operands)
            raw = np.ascontiguousarray(rows[:, : case.result.bytes])
            yield case, np.asarray(expected).reshape(-1), raw.view(case.result.numpy)[:, 0]


def simulated(everything: Everything) -> Any:
    """The output of the simulator."""
    from kdsl_core import sim

    memory = sim.GlobalMemory()
    output = np.zeros(everything.output_bytes, np.uint8)
    params = {
        "input": memory.add("input", everything.input, u8),
        "output": memory.add("output", output, u8),
    }
    sim.run(everything.kernel, (1, 1, 1), params, memory.buffers, on_hazard="collect")
    return output


def measured(everything: Everything, target: Target) -> Any:
    """The output of the GPU."""
    from kdsl_runtime.device_array import to_device
    from kdsl_runtime.launch import load as load_kernel

    source, output = map(to_device, (everything.input, np.zeros(everything.output_bytes, np.uint8)))
    module = emit(everything.kernel, target)
    load_kernel(module).launch(1, LANES, [source.pointer, output.pointer])
    return output.read()


def target_here(where: str) -> Target:
    """The GPU's own target; for the simulator one that has fp8."""
    if where == "simulator":
        return target_of("sm_90a")
    from kdsl_runtime import driver

    return target_of(driver.device(0).target)


def agree(case: Case, expected: Any, got: Any) -> bool:
    """Equal bits where the result is defined; any NaN is NaN; approximations within 2^-10."""
    defined = np.ones(LANES, bool)
    if case.divides:
        defined = inputs(case.operands[1], 1) != 0
    if case.name.endswith("_approx.f32"):
        return close(case.name, expected, got)
    if not case.result.is_float:
        return bool((expected == got)[defined].all())
    nan = np.isnan(expected.astype(np.float64))
    word = f"u{expected.dtype.itemsize}"
    same = expected.view(word) == got.view(word)
    return bool((same | (nan & np.isnan(got.astype(np.float64)))).all())


def close(name: str, expected: Any, got: Any) -> bool:
    """Whether an approximation is good on ordinary numbers."""
    x = inputs(f32, 0)
    ordinary = (np.abs(x) > 2.0**-10) & (np.abs(x) < 60.0)
    if name.startswith(("sin", "cos")):
        ordinary &= np.abs(x) < 3.0
    return bool(np.allclose(got[ordinary], expected[ordinary], 2.0**-10, 2.0**-19, equal_nan=True))


@pytest.mark.parametrize("where", [BY_THE_SIMULATOR, BY_THE_GPU])
def test_every_instruction_gives_what_it_states(where: str) -> None:
    """All lanes of all instructions agree with their NumPy functions."""
    target = target_here(where)
    everything = Everything(cases(target))
    output = simulated(everything) if where == "simulator" else measured(everything, target)
    with np.errstate(all="ignore"):
        wrong = [
            f"{case.name}: expected {expected[lanes][:4]}, got {got[lanes][:4]}, lanes {lanes[:4]}"
            for case, expected, got in everything.results(output)
            if not agree(case, expected, got)
            for lanes in [np.flatnonzero(expected != got)]
        ]
    assert not wrong, "\n".join([f"{len(wrong)} instructions differ", *wrong[:40]])
