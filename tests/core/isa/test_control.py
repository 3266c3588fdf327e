"""Structured control flow, assertions and printing."""

from __future__ import annotations

import re

import numpy as np
import pytest

from core.isa.warps import Bench, ptx_of
from kdsl_core.dtypes import boolean, f16, f32, i16, i32, i64, u32
from kdsl_core.errors import TypeMismatch, VerifyError
from kdsl_core.ir import Block, Branch, Const, Exit, Jump, Op, Operand, flatten
from kdsl_core.isa.barrier import FenceOp
from kdsl_core.isa.control import (
    BreakOp,
    ContinueOp,
    IfOp,
    LoopOp,
    ReturnOp,
    assert_that,
    print_line,
)


def marks(*ops: Op) -> Block:
    """A block of these operations."""
    return Block(list(ops))


A, B, C = (FenceOp(scope=scope) for scope in ("cta", "gpu", "sys"))


def flat(op: Op) -> list[str]:
    """The flat program of one operation: scopes of marks, and jumps as "→ index"."""
    bench = Bench(1)
    bench.kernel.body.ops.append(op)
    text = []
    for i in flatten(bench.kernel).instructions:
        if isinstance(i, FenceOp):
            text.append(i.scope)
        elif isinstance(i, Jump):
            text.append(f"→{i.label.index}")
        elif isinstance(i, Branch):
            text.append(f"{'if' if i.if_true else 'unless'}→{i.label.index}")
        else:
            assert isinstance(i, Exit)
            text.append("exit")
    return text


def condition() -> Operand:
    return Bench(1).b.var(boolean)


def test_conditionals() -> None:
    """Both arms, one arm, and a condition known while tracing."""
    both = IfOp(condition=condition(), then=marks(A), otherwise=marks(B))
    assert flat(both) == ["unless→3", "cta", "→4", "gpu", "exit"]
    assert flat(IfOp(condition=condition(), then=marks(A))) == ["unless→2", "cta", "exit"]
    known = IfOp(condition=Const(boolean, False), then=marks(A), otherwise=marks(B))
    assert flat(known) == ["gpu", "exit"]


def test_loops() -> None:
    """The head runs before each test, continue goes to the step, break behind the loop."""
    body = marks(
        IfOp(condition=condition(), then=marks(BreakOp())),
        IfOp(condition=condition(), then=marks(ContinueOp())),
        B,
    )
    loop = LoopOp(head=marks(A), condition=condition(), body=body, step=marks(C))
    assert flat(loop) == [
        "cta",
        "unless→9",
        "unless→4",
        "→9",
        "unless→6",
        "→7",
        "gpu",
        "sys",
        "→0",
        "exit",
    ]


def test_loops_with_known_conditions() -> None:
    """A loop that never runs leaves its head; an endless one has no test."""
    never = LoopOp(head=marks(A), condition=Const(boolean, False), body=marks(B))
    assert flat(never) == ["cta", "exit"]
    endless = LoopOp(condition=Const(boolean, True), body=marks(B, BreakOp()))
    assert flat(endless) == ["gpu", "→3", "→0", "exit"]


def test_break_and_continue_in_the_step_belong_to_the_outer_loop() -> None:
    """Outside of a body there is nothing to leave."""
    with pytest.raises(VerifyError, match="break stands outside of a loop"):
        flat(BreakOp())
    with pytest.raises(VerifyError, match="continue stands outside of a loop"):
        flat(LoopOp(condition=condition(), step=marks(ContinueOp())))


def test_return_ends_lanes() -> None:
    """Return is an exit."""
    assert flat(IfOp(condition=condition(), then=marks(ReturnOp()))) == ["unless→2", "exit", "exit"]


def test_conditions_are_truth_values() -> None:
    """An integer is no condition."""
    b = Bench(1).b
    for op in (IfOp(condition=b.var(u32)), LoopOp(condition=b.var(u32))):
        with pytest.raises(TypeMismatch, match="condition must be boolean, got u32"):
            b.append(op)


def test_assertions_report_the_lanes_that_fail() -> None:
    """Active lanes whose condition is false are a hazard; on the GPU they trap."""
    bench = Bench(1)
    bench.m.active = np.arange(32)[None] < 4
    held = bench.b.var(boolean)
    bench.m.registers[held] = np.arange(32)[None] % 2 == 0
    assert_that(bench.b, held, "even")
    ((kind, code, message, where),) = bench.run().asked
    assert (kind, code, message) == ("hazard", "value", "assertion failed: even")
    assert np.flatnonzero(where).tolist() == [1, 3]
    assert ptx_of(bench.kernel.body) == ["@!pred_1 trap"]


def test_print() -> None:
    """Values are promoted as C promotes them and the template becomes a format."""
    bench = Bench(1)
    values = (bench.holding(f32, 1.5), bench.holding(i32, -1), bench.holding(boolean, True))
    print_line(bench.b, "{} at {}: {} 100%", values)
    lines = ptx_of(bench.kernel.body)
    assert any("'%.9g at %d: %d 100%%\\n'" in line for line in lines)
    assert any(line.startswith("cvt.f64.f32") for line in lines)
    assert lines[-1].startswith("call.uni (status_")
    ((kind, template, arrays),) = bench.run().asked
    assert (kind, template) == ("print", "{} at {}: {} 100%")
    assert [array[0, 0] for array in arrays] == [1.5, -1, True]


def test_printed_values_lie_where_c_puts_them() -> None:
    """Each promoted value is aligned to its own size, without gaps between 32-bit ones."""
    bench = Bench(1)
    b = bench.b
    values = tuple(b.var(dtype) for dtype in (i32, u32, f32, i16, i64, boolean))
    print_line(b, "{} {} {} {} {} {}", values)
    text = " ".join(ptx_of(bench.kernel.body))
    assert "[36]" in text
    stores = re.findall(r"st\.local\.(\w+) \[\w+\+(\d+)\]", text)
    assert [kind for kind, _ in stores] == ["b32", "b32", "f64", "b32", "b64", "b32"]
    assert [int(offset) for _, offset in stores] == [0, 4, 8, 16, 24, 32]


def test_print_needs_matching_values() -> None:
    """One place for each value, and only types that C can print."""
    b = Bench(1).b
    with pytest.raises(TypeMismatch, match="2 places for 1 values"):
        print_line(b, "{} {}", (b.var(f32),))
    with pytest.raises(TypeMismatch, match="a f16 cannot be printed"):
        print_line(b, "{}", (b.var(f16),))
