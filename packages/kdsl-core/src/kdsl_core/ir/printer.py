"""The IR as text for people: one operation a line, nested blocks indented, registers numbered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from kdsl_core.dtypes import DType
from kdsl_core.ir.block import Block, Kernel, SharedAlloc
from kdsl_core.ir.op import Op
from kdsl_core.ir.value import Const, Operand, Var

_PLAIN = (str, int, float, bool, tuple, DType, type(None))


def print_kernel(kernel: Kernel) -> str:
    """The text of a kernel; equal kernels give equal text.

    `%3` is a value and `$2` a variable, numbered as they first appear.
    """
    return "\n".join(_Printer().kernel(kernel)) + "\n"


def print_operations(kernel: Kernel) -> Iterator[tuple[Op, str]]:
    """Every operation in the order of the text, without those nested in it, and its first line."""
    printer = _Printer()
    for op in kernel.body.walk():
        yield op, next(printer.operation(op, ""))


class _Printer:
    """Numbers the registers of one kernel."""

    def __init__(self) -> None:
        self.names: dict[Operand, str] = {}

    def kernel(self, kernel: Kernel) -> Iterator[str]:
        params = ", ".join(
            f"{self.name(param.value)} {param.name}: {param.dtype}" for param in kernel.params
        )
        yield f"kernel {kernel.name}({params}) block {kernel.block_dim} {{"
        for alloc in kernel.shared:
            place = f"{alloc.bytes} bytes at {alloc.offset} align {alloc.align}"
            yield f"  shared {alloc.name}: {place}"
        yield from self.block(kernel.body, "  ")
        yield "}"

    def block(self, block: Block, indent: str) -> Iterator[str]:
        for op in block.ops:
            yield from self.operation(op, indent)

    def operation(self, op: Op, indent: str) -> Iterator[str]:
        if op.REGIONS == ("head", "body", "step"):  # the condition is computed in the head
            yield f"{indent}{op.name}"
            yield from self.regions(op, ("head",), indent)
            yield f"{indent}while {', '.join(map(self.name, op.reads()))}"
            yield from self.regions(op, ("body", "step"), indent)
            return
        reads = ", ".join(self.name(operand) for operand in op.reads())
        written = list(op.writes())
        results = ", ".join(self.name(register) for register in written)
        types = ", ".join(dict.fromkeys(str(register.dtype) for register in written))
        parts = [f"{results} =" if results else "", op.name, reads, *_attributes(op)]
        text = " ".join(part for part in parts if part)
        yield f"{indent}{text}{f' : {types}' if types else ''}"
        yield from self.regions(op, op.REGIONS, indent)

    def regions(self, op: Op, names: tuple[str, ...], indent: str) -> Iterator[str]:
        for name in names:
            block: Block = getattr(op, name)
            if block.ops:
                yield f"{indent}{name} {{"
                yield from self.block(block, indent + "  ")
                yield f"{indent}}}"

    def name(self, operand: Operand) -> str:
        if isinstance(operand, Const):
            return repr(operand)
        if operand not in self.names:
            sign = "$" if isinstance(operand, Var) else "%"
            self.names[operand] = f"{sign}{len(self.names) + 1}"
        return self.names[operand]


def _attributes(op: Op) -> Iterator[str]:
    """What is known about an operation while tracing, but defaults."""
    registers = {*op.READS, *op.WRITES, *op.REGIONS, "loc"}
    for item in fields(op):
        held: Any = getattr(op, item.name)
        if item.name in registers or held == item.default:
            continue
        if isinstance(held, SharedAlloc):
            held = held.name
        if isinstance(held, _PLAIN):
            yield f"{item.name}={held!r}"
