"""Every regular instruction is PTX that the assembler takes, on every target that has it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import pytest

from core.isa.bench import assembler
from kdsl_core.dtypes import ALL_DTYPES, DType, boolean, e4m3, e5m2, f32, u16, u32
from kdsl_core.ir import Builder, Const, Kernel, Op, Operand, Target, Value, target_of
from kdsl_core.isa import arith, compare, functions
from kdsl_core.isa.conversions import ROUNDINGS, direct
from kdsl_core.isa.convert import bitcast, convert_pack, extract, insert, pack, widen_pair
from kdsl_core.isa.instruction import Instruction, InstructionOp
from kdsl_core.isa.math import NAMES, function
from kdsl_core.isa.register import assign, declare, snapshot
from kdsl_core.isa.special import NAMES as SPECIAL_NAMES
from kdsl_core.isa.special import SpecialOp, special
from kdsl_core.ptx import emit

NUMBERS = [dtype for dtype in ALL_DTYPES if dtype is not boolean]
NARROW = [dtype for dtype in NUMBERS if dtype.bits <= 16]


def conversions() -> Iterator[Instruction]:
    """Every conversion that is one instruction."""
    for source, target in product(NUMBERS, NUMBERS):
        for mode, saturate in product((None, *ROUNDINGS), (False, True)):
            row = direct(source, target, mode, saturate) if source is not target else None
            if row is not None:
                yield row


def selections() -> Iterator[Instruction]:
    """The select instruction of each type."""
    return (compare.selection(dtype) for dtype in NUMBERS)


def operations(rows: Iterable[Instruction]) -> Iterator[Op]:
    """Each instruction on registers, and with a constant as its last operand."""
    for row in rows:
        registers: tuple[Operand, ...] = tuple(Value(dtype) for dtype in row.operands)
        constant = Const(row.operands[-1], 3)
        for operands in (registers, (*registers[:-1], constant)):
            yield InstructionOp(instruction=row, operands=operands, d=Value(row.result))


def build_packed(b: Builder, dtype: DType) -> None:
    """Every operation on words that hold `dtype`."""
    count = 32 // dtype.bits
    word = pack(b, tuple(Value(dtype) for _ in range(count)))
    for index in range(count):
        extract(b, word, dtype, index)
        insert(b, word, Value(dtype), index)
    if dtype.is_float:
        convert_pack(b, Value(f32), Value(f32), dtype)
    if dtype in (e4m3, e5m2):
        widen_pair(b, Value(u16), dtype)


def build_the_rest(b: Builder) -> None:
    """What has no table: bit casts, moves, special registers, packed words."""
    for source, target in product(NUMBERS, NUMBERS):
        if source.bits == target.bits:
            bitcast(b, Value(source), target)
    for dtype in ALL_DTYPES:
        var = declare(b, dtype, Const(dtype, 1))
        assign(b, var, Value(dtype))
        snapshot(b, var)
    for dtype in NARROW:
        build_packed(b, dtype)
    for name in SPECIAL_NAMES:
        b.append(SpecialOp(register=name, d=Value(u32)))
    special(b, "warpid")


def available(kernel: Kernel, target: Target) -> Kernel:
    """The kernel with the operations that the target has."""
    kernel.body.ops = [op for op in kernel.body.ops if op.need.missing(target) is None]
    return kernel


@pytest.mark.parametrize("name", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"])
def test_every_instruction_assembles(name: str, tmp_path: Path) -> None:
    """One module with every instruction, with registers and constants, is accepted."""
    kernel = Kernel("everything", (32, 2, 1))
    b = Builder(kernel)
    rows = (*arith.INSTRUCTIONS, *compare.INSTRUCTIONS, *functions.INSTRUCTIONS)
    for op in operations((*rows, *selections(), *conversions())):
        b.append(op)
    build_the_rest(b)
    for function_name, approx in product(NAMES, (False, True)):
        function(b, function_name, Value(f32), approx)
    module = emit(available(kernel, target_of(name)), target_of(name))
    source = tmp_path / "everything.ptx"
    source.write_text(module.text)
    command = [assembler(), f"-arch={name}", "-O0", str(source), "-o", str(tmp_path / "o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[:3000]
