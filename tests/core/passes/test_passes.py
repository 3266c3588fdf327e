"""The passes: what they keep, what they remove, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kdsl_core.dtypes import boolean, f32, u32, u64
from kdsl_core.errors import ResourceError, TargetError, TypeMismatch, VerifyError
from kdsl_core.ir import Block, Builder, Const, Kernel, Op, Operand, Param, Value, Var, target_of
from kdsl_core.ir.printer import print_kernel
from kdsl_core.isa.arith import ArithOp, binary
from kdsl_core.isa.barrier import FenceOp, barrier_sync
from kdsl_core.isa.compare import compare
from kdsl_core.isa.control import BreakOp, ContinueOp, IfOp, LoopOp, ReturnOp
from kdsl_core.isa.matrix_copy import stmatrix
from kdsl_core.isa.memory import load, store
from kdsl_core.isa.register import MoveOp, assign, declare, snapshot
from kdsl_core.passes import (
    check_resources,
    check_target,
    forward_reads,
    optimise,
    remove_dead_code,
    verify,
)
from kdsl_core.passes.pipeline import PIPELINE


class Draft:
    """A kernel with a pointer, a word and a truth value as parameters."""

    def __init__(self) -> None:
        self.pointer, self.word, self.truth = Value(u64), Value(u32), Value(boolean)
        values = {"p": self.pointer, "w": self.word, "t": self.truth}
        self.kernel = Kernel("draft", (32, 1, 1), [Param(n, v) for n, v in values.items()])
        self.b = Builder(self.kernel)

    def put(self, value: Operand) -> None:
        """Store a word, so that it is needed."""
        store(self.b, "global", self.pointer, (value,))

    def text(self) -> str:
        return print_kernel(self.kernel)

    def one_more(self, x: Operand) -> Operand:
        return binary(self.b, "add", x, Const(u32, 1))

    def conditional(self, fill: Callable[[], Any]) -> None:
        """An `if` on the truth value."""
        then = Block()
        with self.b.inside(then):
            fill()
        self.b.append(IfOp(condition=self.truth, then=then))

    def loop(self, fill: Callable[[], Any]) -> None:
        """A loop while the truth value holds."""
        body = Block()
        with self.b.inside(body):
            fill()
        self.b.append(LoopOp(condition=self.truth, body=body))


def ops(kernel: Kernel, kind: type[Op]) -> list[Op]:
    """The operations of a kind, nested ones too."""
    return [op for op in kernel.body.walk() if isinstance(op, kind)]


# -- dead code -----------------------------------------------------------------------------------
def test_unread_results_go_and_effects_stay() -> None:
    """A chain that nobody reads goes; stores, what they read, and loads stay."""
    d = Draft()
    d.one_more(d.one_more(d.word))
    load(d.b, "global", d.pointer, f32)
    d.put(binary(d.b, "mul", d.word, Const(u32, 3)))
    remove_dead_code(d.kernel)
    assert [op.name for op in d.kernel.body.ops] == ["memory.load", "arith.mul", "memory.store"]


def test_unread_variables_go() -> None:
    """A variable that only updates itself goes, one that is stored stays."""
    d = Draft()
    dead, live = declare(d.b, u32, Const(u32, 0)), declare(d.b, u32, Const(u32, 0))
    d.loop(lambda: [assign(d.b, v, d.one_more(snapshot(d.b, v))) for v in (dead, live)])
    d.put(live)
    remove_dead_code(d.kernel)
    written = {register for op in d.kernel.body.walk() for register in op.writes()}
    assert dead not in written and live in written


def test_unreachable_code_and_empty_conditionals_go() -> None:
    """What follows a return in its block never runs; an `if` around nothing is nothing."""
    d = Draft()
    d.conditional(lambda: d.one_more(d.word))
    d.conditional(lambda: (d.b.append(ReturnOp()), d.put(d.word)))
    remove_dead_code(d.kernel)
    (only,) = d.kernel.body.ops
    assert isinstance(only, IfOp) and [op.name for op in only.then.ops] == ["control.return"]


# -- snapshots -----------------------------------------------------------------------------------
def forwarded(build: Callable[[Draft, Var, Value], Any]) -> bool:
    """Whether a snapshot taken before what `build` adds is replaced by its variable."""
    d = Draft()
    var = declare(d.b, u32, Const(u32, 0))
    taken = snapshot(d.b, var)
    assert isinstance(taken, Value)
    build(d, var, taken)
    verify(d.kernel)
    forward_reads(d.kernel)
    verify(d.kernel)
    reads = {operand for op in d.kernel.body.walk() for operand in op.reads()}
    return taken not in reads


def write(d: Draft, var: Var) -> None:
    assign(d.b, var, Const(u32, 7))


CASES: dict[str, tuple[bool, Callable[[Draft, Var, Value], Any]]] = {
    "used before the next write": (True, lambda d, v, s: (d.put(s), write(d, v))),
    "never written again": (True, lambda d, v, s: d.put(s)),
    "used in its own update": (True, lambda d, v, s: assign(d.b, v, d.one_more(s))),
    "used after the next write": (False, lambda d, v, s: (write(d, v), d.put(s))),
    "used inside a loop": (True, lambda d, v, s: d.loop(lambda: d.put(s))),
    "used inside a loop that writes": (
        False,
        lambda d, v, s: d.loop(lambda: (d.put(s), write(d, v))),
    ),
    "written in a loop, then used": (
        False,
        lambda d, v, s: (d.loop(lambda: write(d, v)), d.put(s)),
    ),
    "written on one path, then used": (
        False,
        lambda d, v, s: (d.conditional(lambda: write(d, v)), d.put(s)),
    ),
    "used inside a conditional, then written": (
        True,
        lambda d, v, s: (d.conditional(lambda: d.put(s)), write(d, v)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_snapshots_are_forwarded_only_while_equal(name: str) -> None:
    """A snapshot is replaced exactly where its variable still has the same value."""
    expected, build = CASES[name]
    assert forwarded(build) is expected


def test_swap_keeps_what_it_needs() -> None:
    """`a, b = b, a` needs one of its two snapshots."""
    d = Draft()
    a, b = declare(d.b, u32, d.word), declare(d.b, u32, Const(u32, 1))
    old_a, old_b = snapshot(d.b, a), snapshot(d.b, b)
    assign(d.b, a, old_b)
    assign(d.b, b, old_a)
    d.put(a)
    d.put(b)
    optimise(d.kernel)
    moves = [(op.source, op.d) for op in ops(d.kernel, MoveOp) if isinstance(op, MoveOp)]
    assert moves[2:] == [(a, old_a), (b, a), (old_a, b)]


def test_loop_conditions_read_the_variable() -> None:
    """A condition computed in the head from a snapshot reads the variable itself."""
    d = Draft()
    i, head, step = declare(d.b, u32, Const(u32, 0)), Block(), Block()
    with d.b.inside(head):
        running = compare(d.b, "lt", snapshot(d.b, i), d.word)
    with d.b.inside(step):
        assign(d.b, i, d.one_more(snapshot(d.b, i)))
    d.b.append(LoopOp(head=head, condition=running, step=step))
    optimise(d.kernel)
    assert [op.name for op in head.ops] == ["compare.lt"]
    assert [op.name for op in step.ops] == ["arith.add", "register.move"]


def test_conditions_taken_before_the_loop_keep_their_snapshot() -> None:
    """A snapshot as the condition itself is read again before every iteration."""
    d = Draft()
    flag = declare(d.b, boolean, d.truth)
    taken, body = snapshot(d.b, flag), Block()
    with d.b.inside(body):
        assign(d.b, flag, Const(boolean, False))
    d.b.append(LoopOp(condition=taken, body=body))
    forward_reads(d.kernel)
    (loop,) = ops(d.kernel, LoopOp)
    assert list(loop.reads()) == [taken]


# -- the verifier --------------------------------------------------------------------------------
def test_the_pipeline_checks_before_and_after() -> None:
    """The list that every kernel goes through begins and ends with the verifier."""
    assert PIPELINE[0] is verify and PIPELINE[-1] is verify


def test_values_end_with_their_block() -> None:
    """A value of a branch cannot be read behind it."""
    d = Draft()
    inner: list[Operand] = []
    d.conditional(lambda: inner.append(d.one_more(d.word)))
    d.put(inner[0])
    with pytest.raises(VerifyError, match="outside of the block that defines it") as caught:
        verify(d.kernel)
    assert caught.value.code == "K422"


def test_values_are_defined_before_use() -> None:
    """A value that nobody writes cannot be read."""
    d = Draft()
    d.put(Value(u32))
    with pytest.raises(VerifyError, match="before it is defined"):
        verify(d.kernel)


def test_values_are_written_once() -> None:
    """The same operation twice writes its value twice."""
    d = Draft()
    d.put(d.one_more(d.word))
    (add,) = ops(d.kernel, ArithOp)
    d.kernel.body.ops.append(add)
    with pytest.raises(VerifyError, match="written already") as caught:
        verify(d.kernel)
    assert caught.value.code == "K423"


@pytest.mark.parametrize("op", [BreakOp(), ContinueOp()], ids=["break", "continue"])
def test_break_and_continue_need_a_loop(op: Op) -> None:
    """Neither stands outside of a loop, also not inside a conditional."""
    d = Draft()
    d.loop(lambda: d.b.append(op))
    verify(d.kernel)
    d.conditional(lambda: d.b.append(op))
    with pytest.raises(VerifyError, match="outside of a loop"):
        verify(d.kernel)


def test_operations_obey_their_own_rules() -> None:
    """Every operation's type rule is checked again."""
    d = Draft()
    d.kernel.body.ops.append(IfOp(condition=d.word))
    with pytest.raises(TypeMismatch, match="condition must be boolean"):
        verify(d.kernel)


def test_operands_are_registers() -> None:
    """A Python number is no operand."""
    d = Draft()
    d.kernel.body.ops.append(_Loose(x=3))
    with pytest.raises(VerifyError, match="reads 3, which is no operand"):
        verify(d.kernel)


class _Loose(FenceOp):
    """An operation without a type rule that reads whatever it is given."""

    READS = ("x",)

    def __init__(self, x: Any) -> None:
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "loc", None)

    def verify(self) -> None:
        pass


# -- targets and resources -----------------------------------------------------------------------
def test_missing_instructions_are_named_with_the_target() -> None:
    """The error names the operation, the target and the author's line."""
    d = Draft()
    d.conditional(lambda: stmatrix(d.b, Const(u32, 0), (d.word,)))
    check_target(d.kernel, target_of("sm_90"))
    with pytest.raises(
        TargetError, match=r"matrix_copy\.stmatrix does not exist on sm_80"
    ) as caught:
        check_target(d.kernel, target_of("sm_80"))
    assert caught.value.loc is not None and caught.value.loc.short().startswith("test_passes.py")


def test_clusters_need_hopper() -> None:
    """A cluster shape is refused on older targets."""
    kernel = Kernel("clustered", (32, 1, 1), cluster_dim=(2, 1, 1))
    check_target(kernel, target_of("sm_90"))
    with pytest.raises(TargetError, match="clusters do not exist on sm_86"):
        check_target(kernel, target_of("sm_86"))


def test_too_much_shared_memory_is_told_with_numbers() -> None:
    """The message has what is needed and what there is, at the largest allocation's line."""
    kernel = Kernel("big", (32, 1, 1))
    kernel.allocate_shared("small", 1024, 16)
    kernel.allocate_shared("stages", 100 * 1024, 1024)
    check_resources(kernel, target_of("sm_80"))
    with pytest.raises(ResourceError, match=r"103424 bytes .* sm_86 has 101376") as caught:
        check_resources(kernel, target_of("sm_86"))
    assert "stages" in str(caught.value.fix)


@pytest.mark.parametrize("block", [(2048, 1, 1), (32, 33, 1), (1, 1, 65), (0, 1, 1)])
def test_too_many_threads_are_refused(block: tuple[int, int, int]) -> None:
    """A block has 1 to 1024 threads and at most 64 along z."""
    with pytest.raises(ResourceError, match="1024 threads"):
        check_resources(Kernel("wide", block), target_of("sm_90"))


# -- the printer ---------------------------------------------------------------------------------
def test_printed_kernel() -> None:
    """Registers are numbered as they appear and blocks are indented."""
    d = Draft()
    barrier_sync(d.b)
    d.conditional(lambda: d.put(d.one_more(d.word)))
    assert d.text() == (
        "kernel draft(%1 p: u64, %2 w: u32, %3 t: boolean) block (32, 1, 1) {\n"
        "  barrier.sync 0:u32\n"
        "  control.if %3\n"
        "  then {\n"
        "    %4 = arith.add %2, 1:u32 : u32\n"
        "    memory.store %1, %4 space='global'\n"
        "  }\n"
        "}\n"
    )
