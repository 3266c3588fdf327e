"""Structured control flow, and the operations that talk to the author: assert and print."""

from __future__ import annotations

import re
from dataclasses import field

from kdsl_core.dtypes import DType, f32, f64
from kdsl_core.errors import TypeMismatch, VerifyError
from kdsl_core.ir import Block, Builder, Const, Effect, Flattener, Machine, Op, Operand, PtxWriter
from kdsl_core.isa.operands import expect_condition, lanes
from kdsl_core.records import dataclass


class _Control(Op):
    """An operation that decides what runs next."""

    @property
    def effects(self) -> Effect:
        return Effect.CONTROL


@dataclass(frozen=True, kw_only=True, eq=False)
class IfOp(_Control):
    """Lanes whose condition holds run `then`, the others `otherwise`."""

    condition: Operand
    then: Block = field(default_factory=Block)
    otherwise: Block = field(default_factory=Block)

    NAME = "control.if"
    READS = ("condition",)
    REGIONS = ("then", "otherwise")

    def verify(self) -> None:
        expect_condition(self, self.condition)

    def lower(self, f: Flattener) -> None:
        if isinstance(self.condition, Const):
            f.block(self.then if self.condition.value else self.otherwise)
        elif not self.otherwise.ops:
            end = f.label("endif")
            f.branch(self.condition, False, end, self)
            f.block(self.then)
            f.place(end)
        else:
            self._lower_both(f)

    def _lower_both(self, f: Flattener) -> None:
        other, end = f.label("else"), f.label("endif")
        f.branch(self.condition, False, other, self)
        f.block(self.then)
        f.jump(end, self)
        f.place(other)
        f.block(self.otherwise)
        f.place(end)


@dataclass(frozen=True, kw_only=True, eq=False)
class LoopOp(_Control):
    """Before each iteration `head` runs; lanes whose condition holds run `body`, then `step`.

    `continue` goes to `step`, `break` ends the loop. The condition may be computed in `head`.
    """

    head: Block = field(default_factory=Block)
    condition: Operand
    body: Block = field(default_factory=Block)
    step: Block = field(default_factory=Block)

    NAME = "control.loop"
    READS = ("condition",)
    REGIONS = ("head", "body", "step")

    def verify(self) -> None:
        expect_condition(self, self.condition)

    def lower(self, f: Flattener) -> None:
        if isinstance(self.condition, Const) and not self.condition.value:
            f.block(self.head)
            return
        start, step, end = f.label("loop"), f.label("step"), f.label("endloop")
        f.place(start)
        f.block(self.head)
        if not isinstance(self.condition, Const):
            f.branch(self.condition, False, end, self)
        f.enter_loop(end, step)
        f.block(self.body)
        f.place(step)
        f.leave_loop()
        f.block(self.step)
        f.jump(start, self)
        f.place(end)


class Terminator(_Control):
    """An operation after which nothing in its block runs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BreakOp(Terminator):
    """The lanes that are here leave the innermost loop."""

    NAME = "control.break"

    def lower(self, f: Flattener) -> None:
        label = f.break_label()
        if label is None:
            raise _outside_loop(self, "break")
        f.jump(label, self)


@dataclass(frozen=True, kw_only=True, eq=False)
class ContinueOp(Terminator):
    """The lanes that are here go on with the next iteration of the innermost loop."""

    NAME = "control.continue"

    def lower(self, f: Flattener) -> None:
        label = f.continue_label()
        if label is None:
            raise _outside_loop(self, "continue")
        f.jump(label, self)


def _outside_loop(op: Op, word: str) -> VerifyError:
    return VerifyError(
        f"{word} stands outside of a loop",
        code="K420",
        loc=op.loc,
        fix=f"put {word} inside a loop that is not unrolled",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ReturnOp(Terminator):
    """The lanes that are here leave the kernel."""

    NAME = "control.return"

    def lower(self, f: Flattener) -> None:
        f.exit(self)


@dataclass(frozen=True, kw_only=True, eq=False)
class AssertOp(Op):
    """Stop the kernel when the condition fails: a hazard in the simulator, a trap on the GPU.

    Source: PTX ISA 9.0 `trap`.
    """

    condition: Operand
    message: str

    NAME = "control.assert"
    READS = ("condition",)

    @property
    def effects(self) -> Effect:
        return Effect.OBSERVABLE

    def verify(self) -> None:
        expect_condition(self, self.condition)

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"@!{w.reg(self.condition)} trap")

    def simulate(self, m: Machine) -> None:
        failed = ~lanes(m, self.condition) & m.active
        if failed.any():
            m.hazard("value", f"assertion failed: {self.message}", where=failed)


_PLACES = re.compile(r"\{\}")
_CONVERSIONS = {
    "b16": ("b32", "%d"),
    "b32": ("b32", "%d"),
    "b64": ("b64", "%lld"),
    "f32": ("f64", "%.9g"),
    "f64": ("f64", "%.17g"),
    "pred": ("b32", "%d"),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class PrintOp(Op):
    """Print one line per lane: the template with each `{}` replaced by a value.

    Source: CUDA C++ Programming Guide, "Formatted output" (`vprintf`).
    """

    template: str
    values: tuple[Operand, ...] = ()

    NAME = "control.print"
    READS = ("values",)

    @property
    def effects(self) -> Effect:
        return Effect.OBSERVABLE

    def verify(self) -> None:
        places = len(_PLACES.findall(self.template))
        if places != len(self.values):
            raise TypeMismatch(
                f"{self.name}: the template {self.template!r} has {places} places "
                f"for {len(self.values)} values",
                code="K274",
                loc=self.loc,
                fix="write one {} for each value",
            )
        for value in self.values:
            if value.dtype.is_float and value.dtype not in (f32, f64):
                raise TypeMismatch(
                    f"{self.name}: a {value.dtype} cannot be printed",
                    code="K275",
                    loc=self.loc,
                    fix="convert it to f32",
                )

    def ptx(self, w: PtxWriter) -> None:
        w.declare(".extern .func (.param .b32 status) vprintf (.param .b64 a, .param .b64 b)")
        formats = [_format(value.dtype) for value in self.values]
        parts = [part.replace("%", "%%") for part in _PLACES.split(self.template)]
        text = "".join(a + b for a, b in zip(parts, [*formats, "\n"], strict=True))
        name = w.temp("b64")[1:]  # its number makes the names below unique
        offsets, size = _packed([value.dtype for value in self.values])
        w.emit(f".local .align 8 .b8 values_{name}[{max(size, 1)}]")
        for offset, value in zip(offsets, self.values, strict=True):
            kind, register = _promoted(w, value)
            w.emit(f"st.local.{kind} [values_{name}+{offset}], {register}")
        template, values = w.temp("b64"), w.temp("b64")
        w.emit(f"cvta.global.u64 {template}, {w.string(text)}")
        w.emit(f"cvta.local.u64 {values}, values_{name}")
        for prefix, kind in (("template", "b64"), ("pointer", "b64"), ("status", "b32")):
            w.emit(f".param .{kind} {prefix}_{name}")
        w.emit(f"st.param.b64 [template_{name}], {template}")
        w.emit(f"st.param.b64 [pointer_{name}], {values}")
        w.emit(f"call.uni (status_{name}), vprintf, (template_{name}, pointer_{name})")

    def simulate(self, m: Machine) -> None:
        m.print(self.template, tuple(lanes(m, value) for value in self.values))


def _format(dtype: DType) -> str:
    conversion = _CONVERSIONS[dtype.reg][1]
    return conversion.replace("d", "u") if dtype.kind == "u" else conversion


def _packed(dtypes: list[DType]) -> tuple[list[int], int]:
    """Where `vprintf` looks for promoted values, each aligned to its own size, and the end."""
    offsets, end = [], 0
    for dtype in dtypes:
        size = int(_CONVERSIONS[dtype.reg][0][1:]) // 8
        offsets.append(-(-end // size) * size)
        end = offsets[-1] + size
    return offsets, end


def _promoted(w: PtxWriter, value: Operand) -> tuple[str, str]:
    """(type, register) of a value as C passes it to a variadic function."""
    kind = _CONVERSIONS[value.dtype.reg][0]
    register = w.temp(kind)
    if value.dtype.reg == "pred":
        w.emit(f"selp.b32 {register}, 1, 0, {w.reg(value)}")
    elif value.dtype.bits < 32:
        sign = "s" if value.dtype.kind == "i" else "u"
        w.emit(f"cvt.{sign}32.{sign}16 {register}, {w.reg(value)}")
    elif value.dtype is f32:
        w.emit(f"cvt.f64.f32 {register}, {w.reg(value)}")
    else:
        w.emit(f"mov.b{value.dtype.bits} {register}, {w.reg(value)}")
    return kind, register


def assert_that(b: Builder, condition: Operand, message: str) -> None:
    """Stop the kernel where the condition does not hold."""
    b.append(AssertOp(loc=b.loc(), condition=condition, message=message))


def print_line(b: Builder, template: str, values: tuple[Operand, ...] = ()) -> None:
    """Print one line per lane."""
    b.append(PrintOp(loc=b.loc(), template=template, values=values))


OPS: tuple[type[Op], ...] = (
    IfOp,
    LoopOp,
    BreakOp,
    ContinueOp,
    ReturnOp,
    AssertOp,
    PrintOp,
)
