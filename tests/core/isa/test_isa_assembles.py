"""Every regular instruction is PTX that the assembler takes, on every target that has it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from kdsl_core.dtypes import ALL_DTYPES, DType, boolean, e4m3, e5m2, tf32
from kdsl_core.ir import Builder, Const, Kernel, Operand, Value, target_of
from kdsl_core.isa import arith, compare, functions, packed
from kdsl_core.isa.convert import ConvertOp, bitcast
from kdsl_core.isa.conversions import ROUNDINGS, direct
from kdsl_core.isa.instruction import Instruction, InstructionOp
from kdsl_core.isa.math import NAMES, function
from kdsl_core.isa.register import declare, snapshot
from kdsl_core.isa.special import NAMES as SPECIAL_NAMES
from kdsl_core.isa.special import SpecialOp, special
from kdsl_core.ptx import emit

NUMBERS = [dtype for dtype in ALL_DTYPES if dtype is not boolean]
PTXAS = shutil.which("ptxas")


def conversions() -> Iterator[Instruction]:
    """Every conversion that is one instruction."""
    for source, target in product(NUMBERS, NUMBERS):
        if source is target:
            continue
        for mode, saturate in product((None, *ROUNDINGS), (False, True)):
            row = direct(source, target, mode, saturate)
            if row is not None:
                yield row


def packings() -> Iterator[Instruction]:
    """Every instruction on packed words."""
    b = Builder(Kernel("k", (1, 1, 1)))
    for dtype in NUMBERS:
        if dtype.bits > 16:
            continue
        count = 32 // dtype.bits
        word = packed.pack(b, tuple(Value(dtype) for _ in range(count)))
        for index in range(count):
            packed.extract(b, word, dtype, index)
            packed.insert(b, word, Value(dtype), index)
        if dtype.is_float:
            single = [Value(BY_NAME_F32) for _ in range(2)]
            packed.convert_pack(b, single[0], single[1], dtype)
    for dtype in (e4m3, e5m2):
        packed.widen_pair(b, Value(U16), dtype)
    yield from (op.instruction for op in b.kernel.body.ops if isinstance(op, InstructionOp))
