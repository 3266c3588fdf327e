"""Collects the instructions of one kernel and numbers its registers as they first appear."""

from __future__ import annotations

from collections import Counter

from kdsl_core.dtypes import boolean
from kdsl_core.ir import Const, Kernel, Operand, SharedAlloc, Target
from kdsl_core.ir.value import Reg
from kdsl_core.ptx.spelling import (
    REGISTER_CLASSES,
    bits_of,
    identifier,
    immediate,
    string_bytes,
)

SHARED_SYMBOL = "kdsl_shared"


class Writer:
    """The PtxWriter of a kernel; `prologue` runs before `body`."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.target = target
        self.entry = identifier(kernel.name)
        self.prologue: list[str] = []
        self.body: list[str] = []
        self.declarations: list[str] = []
        self._names: dict[Reg, str] = {}
        self._constants: dict[Const, str] = {}
        self._strings: dict[str, str] = {}
        self._used: Counter[str] = Counter()
        self._labels = 0

    # -- the PtxWriter interface -----------------------------------------------------------
    def reg(self, operand: Operand) -> str:
        """The operand's register, or the constant as an immediate or in a register."""
        if isinstance(operand, Const):
            return immediate(operand) or self._constant(operand)
        name = self._names.get(operand)
        if name is None:
            name = self._names[operand] = self.temp(operand.dtype.reg)
        return name

    def emit(self, text: str) -> None:
        """Append one instruction."""
        self.body.append(f"    {text};")

    def temp(self, register_class: str) -> str:
        """A fresh register."""
        self._used[register_class] += 1
        return f"{REGISTER_CLASSES[register_class][0]}{self._used[register_class]}"

    def shared_address(self, alloc: SharedAlloc) -> str:
        """The allocation's place in the kernel's one dynamic array."""
        return f"{SHARED_SYMBOL}+{alloc.offset}" if alloc.offset else SHARED_SYMBOL

    def label(self, hint: str) -> str:
        """A fresh label's name."""
        self._labels += 1
        return f"$L_{identifier(hint)}_{self._labels - 1}"

    def place_label(self, label: str) -> None:
        """Put a label before the next instruction."""
        self.body.append(f"{label}:")

    def declare(self, text: str) -> None:
        """Put a declaration before the kernel, once."""
        if f"{text};" not in self.declarations:
            self.declarations.append(f"{text};")

    def string(self, text: str) -> str:
        """The global string that holds `text`."""
        if text not in self._strings:
            name = self._strings[text] = f"kdsl_text_{len(self._strings)}"
            self.declare(f".global .align 1 .b8 {name}{string_bytes(text)}")
        return self._strings[text]

    # -- what the emitter asks for ----------------------------------------------------------
    def _constant(self, const: Const) -> str:
        """A register that the prologue sets to the constant."""
        if const not in self._constants:
            register = self._constants[const] = self.temp(const.dtype.reg)
            if const.dtype is boolean:
                text = f"setp.eq.u32 {register}, {int(const.value)}, 1"
            else:
                text = f"mov.b16 {register}, 0x{bits_of(const):04X}"
            self.prologue.append(f"    {text};")
        return self._constants[const]

    def register_declarations(self) -> list[str]:
        """One line per register class in use."""
        return [
            f"    .reg .{kind} {prefix}<{self._used[name] + 1}>;"
            for name, (prefix, kind) in REGISTER_CLASSES.items()
            if self._used[name]
        ]
