"""Copies of 8×8 matrices of 16-bit elements between shared memory and a warp's registers.

Row r of matrix j starts at the address that lane 8j + r holds. Register j of lane l holds the two
elements 2(l mod 4) and 2(l mod 4) + 1 of row l div 4; `transposed` exchanges rows and columns.
"""

from __future__ import annotations

import numpy as np

from kdsl_core.dtypes import u32
from kdsl_core.ir import Array, Builder, Effect, Machine, Need, Op, Operand, PtxWriter
from kdsl_core.isa.operands import (
    Register,
    address_text,
    expect_address,
    expect_count,
    expect_type,
    in_register,
    lane_addresses,
    lanes,
)
from kdsl_core.records import dataclass

ROW_BYTES = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class LdmatrixOp(Op):
    """Load one, two or four matrices; a register that is None is dropped.

    Threads: all lanes of the warp together; the first eight lanes per matrix give addresses.
    Source: PTX ISA 9.0 `ldmatrix`.
    """

    dst: tuple[Register | None, ...]
    address: Operand
    transposed: bool = False
    offset: int = 0

    NAME = "matrix_copy.ldmatrix"
    READS = ("address",)
    WRITES = ("dst",)

    @property
    def effects(self) -> Effect:
        return Effect.READS_SHARED | Effect.CONVERGED

    def verify(self) -> None:
        expect_address(self, "shared", self.address)
        expect_count(self, "the number of matrices", len(self.dst), (1, 2, 4))
        for register in self.dst:
            if register is not None:
                expect_type(self, "a matrix register", register, (u32,))

    def ptx(self, w: PtxWriter) -> None:
        registers = [w.temp("b32") if reg is None else w.reg(reg) for reg in self.dst]
        kind = _instruction("ldmatrix", len(registers), self.transposed)
        source = address_text(w, self.address, self.offset)
        w.emit(f"{kind} {{{', '.join(registers)}}}, {source}")

    def simulate(self, m: Machine) -> None:
        count = len(self.dst)
        address = lane_addresses(m, self.address, self.offset)[:, : 8 * count]
        data = m.load("shared", address, ROW_BYTES, kind="ldmatrix")
        values = to_fragments(data.reshape(m.warps, count, 8, ROW_BYTES), self.transposed)
        for index, register in enumerate(self.dst):
            if register is not None:
                m.write(register, values[:, index])


@dataclass(frozen=True, kw_only=True, eq=False)
class StmatrixOp(Op):
    """Store one, two or four matrices.

    Threads: all lanes of the warp together; the first eight lanes per matrix give addresses.
    Source: PTX ISA 9.0 `stmatrix`.
    """

    address: Operand
    src: tuple[Operand, ...]
    transposed: bool = False
    offset: int = 0

    NAME = "matrix_copy.stmatrix"
    READS = ("address", "src")

    @property
    def effects(self) -> Effect:
        return Effect.WRITES_SHARED | Effect.CONVERGED

    @property
    def need(self) -> Need:
        return Need(sm=90, ptx=(7, 8))

    def verify(self) -> None:
        expect_address(self, "shared", self.address)
        expect_count(self, "the number of matrices", len(self.src), (1, 2, 4))
        for operand in self.src:
            expect_type(self, "a matrix register", operand, (u32,))

    def ptx(self, w: PtxWriter) -> None:
        registers = [in_register(w, operand, "b32") for operand in self.src]
        kind = _instruction("stmatrix", len(registers), self.transposed)
        w.emit(f"{kind} {address_text(w, self.address, self.offset)}, {{{', '.join(registers)}}}")

    def simulate(self, m: Machine) -> None:
        count = len(self.src)
        address = lane_addresses(m, self.address, self.offset)[:, : 8 * count]
        values = np.stack([lanes(m, operand) for operand in self.src], axis=1)
        rows = from_fragments(values, self.transposed)
        m.store("shared", address, rows.reshape(m.warps, 8 * count, ROW_BYTES), kind="stmatrix")


def _instruction(name: str, count: int, transposed: bool) -> str:
    return f"{name}.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"


def to_fragments(rows: Array, transposed: bool) -> Array:
    """Registers u32 [W, count, 32] of matrices given as bytes [W, count, 8, 16]."""
    elements = np.ascontiguousarray(rows).view(np.uint16)
    if transposed:
        elements = np.ascontiguousarray(elements.swapaxes(-1, -2))
    return elements.view(np.uint32).reshape(*rows.shape[:2], 32)


def from_fragments(registers: Array, transposed: bool) -> Array:
    """Bytes [W, count, 8, 16] of the matrices that registers u32 [W, count, 32] hold."""
    shape = (*registers.shape[:2], 8, 8)
    elements = np.ascontiguousarray(registers).view(np.uint16).reshape(shape)
    if transposed:
        elements = np.ascontiguousarray(elements.swapaxes(-1, -2))
    return elements.view(np.uint8)


def ldmatrix(
    b: Builder,
    address: Operand,
    dst: tuple[Register | None, ...],
    transposed: bool = False,
    offset: int = 0,
) -> None:
    """Load len(dst) matrices of 8×8 16-bit elements from shared memory."""
    b.append(
        LdmatrixOp(loc=b.loc(), dst=dst, address=address, transposed=transposed, offset=offset)
    )


def stmatrix(
    b: Builder,
    address: Operand,
    src: tuple[Operand, ...],
    transposed: bool = False,
    offset: int = 0,
) -> None:
    """Store len(src) matrices of 8×8 16-bit elements to shared memory."""
    b.append(
        StmatrixOp(loc=b.loc(), address=address, src=src, transposed=transposed, offset=offset)
    )


OPS: tuple[type[Op], ...] = (LdmatrixOp, StmatrixOp)
