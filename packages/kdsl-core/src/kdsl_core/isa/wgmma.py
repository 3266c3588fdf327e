"""Tensor-core multiply-accumulate of a warp group (`wgmma`): D = A·B + D, in the background.

Four warps, the first of which has an index that is a multiple of 4, multiply 64×K by K×N. B lies
in shared memory and A there or in registers; a *descriptor* says where and how. Warp w of the four
holds rows 16w … 16w + 15 of D (and of A in registers), as it would hold the matrices of `mma.sync`.

Source: PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

import numpy as np

from kdsl_core.dtypes import boolean, u64
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import (
    Array,
    Builder,
    Const,
    Effect,
    Machine,
    Need,
    Op,
    Operand,
    PtxWriter,
    Var,
)
from kdsl_core.isa.mma import gather, scatter
from kdsl_core.isa.operands import (
    expect_choice,
    expect_condition,
    expect_count,
    expect_type,
    in_register,
    lanes,
)
from kdsl_core.isa.wgmma_shapes import MAJORS, NEED, ROWS, WARP_ROWS, WARPS, WgmmaShape
from kdsl_core.isa.wgmma_sums import WarpgroupSums
from kdsl_core.records import dataclass

MAX_PENDING = 7
ACCUMULATE = Const(boolean, True)


class _WarpgroupOp(Op):
    """An operation of all threads of a warp group, on sm_90a alone."""

    @property
    def effects(self) -> Effect:
        return Effect.SYNC | Effect.CONVERGED

    @property
    def need(self) -> Need:
        return NEED


@dataclass(frozen=True, kw_only=True, eq=False)
class WgmmaOp(_WarpgroupOp):
    """Start multiplying A and B; add to D, or replace it where `scale_d` is false.

    A is a descriptor, or registers. The accumulators D are the same registers in and out; they and
    A's registers must be left alone until `wgmma.wait_group`.

    Threads: all four warps of a warp group together.
    Memory: reads shared memory in the background, as the async proxy does.
    Source: PTX ISA 9.0 `wgmma.mma_async`.
    """

    shape: WgmmaShape
    d: tuple[Var, ...]
    a: Operand | tuple[Operand, ...]
    b: Operand
    scale_d: Operand
    a_major: str = "K"
    b_major: str = "K"
    negate_a: bool = False
    negate_b: bool = False

    NAME = "wgmma"
    READS = ("a", "b", "scale_d", "d")
    WRITES = ("d",)

    @property
    def name(self) -> str:
        s = self.shape
        return f"{self.NAME}.m{ROWS}n{s.n}k{s.k}.{s.d}.{s.a}.{s.b}"

    @property
    def effects(self) -> Effect:
        return Effect.READS_SHARED | Effect.CONVERGED

    @property
    def need(self) -> Need:
        return self.shape.need

    @property
    def fills_in(self) -> bool:
        """Where warp groups choose at run time, those that replace D may find it undefined."""
        return not isinstance(self.scale_d, Const)

    @property
    def a_registers(self) -> tuple[Operand, ...]:
        """The registers that hold A; none when it is in shared memory."""
        return self.a if isinstance(self.a, tuple) else ()

    def verify(self) -> None:
        self._verify_registers("d", "c", self.d)
        if isinstance(self.a, tuple):
            self._verify_registers("a", "a", self.a)
            expect_choice(self, "the major of A in registers", self.a_major, ("K",))
        else:
            expect_type(self, "A's descriptor", self.a, (u64,))
        expect_type(self, "B's descriptor", self.b, (u64,))
        expect_condition(self, self.scale_d)
        self._verify_modifiers()

    def _verify_registers(self, name: str, matrix: str, registers: tuple[Operand, ...]) -> None:
        part = self.shape.of_warp
        wanted = (part.registers(matrix),)
        expect_count(self, f"the number of {name} registers", len(registers), wanted)
        types = part.register_types(matrix)
        for register in registers:
            if register.dtype not in types:  # asked of hundreds
                expect_type(self, f"a register of {name}", register, types)

    def _verify_modifiers(self) -> None:
        for name, major in (("A", self.a_major), ("B", self.b_major)):
            expect_choice(self, f"{name}'s major", major, MAJORS)
            if major == "MN" and not self.shape.transposable:
                raise TypeMismatch(
                    f"{self.name}: {name} must have its neighbours along K, got them along "
                    f"{'M' if name == 'A' else 'N'}; only 16-bit types may be transposed",
                    code="K286",
                    loc=self.loc,
                    fix="store the operand K-major, or transpose a copy of it first",
                )
        if (self.negate_a or self.negate_b) and not self.shape.negatable:
            raise TypeMismatch(
                f"{self.name}: integers cannot be negated on the way",
                code="K287",
                loc=self.loc,
                fix="negate the operand when it is written",
            )

    def ptx(self, w: PtxWriter) -> None:
        d = [w.reg(register) for register in self.d]
        if isinstance(self.a, tuple):
            a = f"{{{', '.join(in_register(w, operand, 'b32') for operand in self.a)}}}"
        else:
            a = in_register(w, self.a, "b64")
        operands = [f"{{{', '.join(d)}}}", a, in_register(w, self.b, "b64"), w.reg(self.scale_d)]
        if self.shape.negatable:
            operands += ["-1" if negate else "1" for negate in (self.negate_a, self.negate_b)]
        if self.shape.transposable:
            majors = (self.b_major,) if self.a_registers else (self.a_major, self.b_major)
            operands += [str(int(major == "MN")) for major in majors]
        w.emit(f"{self.shape.text} {', '.join(operands)}")

    def simulate(self, m: Machine) -> None:
        shape = self.shape
        a = self._rows_of_a(m)
        b, of_warp = m.matrix_rows(lanes(m, self.b), 0, shape.n, shape.k, shape.b, self.b_major)
        a, b = (-a if self.negate_a else a), (-b if self.negate_b else b)
        sums = self._sums(m)
        sums.add(a, b, of_warp)
        m.warpgroup_uses(tuple(reg for reg in self.a_registers if not isinstance(reg, Const)))
        m.warpgroup_write(self.d, sums, self._registers_of)
        m.count("wgmma")

    def _rows_of_a(self, m: Machine) -> Array:
        """A's 16 rows of each warp: [W, 16, K]."""
        shape = self.shape
        if isinstance(self.a, tuple):
            return gather(shape.of_warp, "a", [lanes(m, operand) for operand in self.a])
        whole, of_warp = m.matrix_rows(lanes(m, self.a), 0, ROWS, shape.k, shape.a, self.a_major)
        quarter = np.broadcast_to(m.special("warpid"), (m.warps, 32))[:, 0] % WARPS
        parts, of_each = whole.reshape(-1, WARP_ROWS, shape.k), of_warp * WARPS + quarter
        if of_each.size == len(parts) and (of_each == np.arange(len(parts))).all():
            return parts
        return np.asarray(parts[of_each])

    def _sums(self, m: Machine) -> WarpgroupSums:
        """The accumulators before, zero where they are replaced."""
        part = self.shape.of_warp
        keep = lanes(m, self.scale_d)[:, 0]
        if not keep.any():
            nothing = np.zeros((m.warps, WARP_ROWS, part.n), part.d.numpy)
            return WarpgroupSums(nothing, m.numerics)
        known: WarpgroupSums | None = m.warpgroup_matrices(self.d)
        whole = keep.all()
        if known is not None and whole:
            return known
        old = self._gathered(m) if known is None else known.values()
        kept = old if whole else np.where(keep[:, None, None], old, old.dtype.type(0))
        return WarpgroupSums(kept, m.numerics)

    def _gathered(self, m: Machine) -> Array:
        """The accumulators that registers hold."""
        return gather(self.shape.of_warp, "c", [lanes(m, register) for register in self.d])

    def _registers_of(self, sums: WarpgroupSums) -> list[Array]:
        """The registers (W, 32) that hold D."""
        values = scatter(self.shape.of_warp, "c", sums.values())
        return [values[:, index] for index in range(len(self.d))]


@dataclass(frozen=True, kw_only=True, eq=False)
class WgmmaFenceOp(_WarpgroupOp):
    """Let later wgmma see registers as they are now.

    It stands before the first wgmma, and wherever other instructions wrote accumulators or A.

    Threads: all four warps of a warp group together.
    Source: PTX ISA 9.0 `wgmma.fence`.
    """

    NAME = "wgmma.fence"

    def ptx(self, w: PtxWriter) -> None:
        w.emit("wgmma.fence.sync.aligned")

    def simulate(self, m: Machine) -> None:
        m.warpgroup_fence()


@dataclass(frozen=True, kw_only=True, eq=False)
class WgmmaCommitOp(_WarpgroupOp):
    """Close the group of the wgmma issued since the last commit.

    Threads: all four warps of a warp group together.
    Source: PTX ISA 9.0 `wgmma.commit_group`.
    """

    NAME = "wgmma.commit"

    def ptx(self, w: PtxWriter) -> None:
        w.emit("wgmma.commit_group.sync.aligned")

    def simulate(self, m: Machine) -> None:
        m.warpgroup_commit()


@dataclass(frozen=True, kw_only=True, eq=False)
class WgmmaWaitOp(_WarpgroupOp):
    """Wait until at most `pending` committed groups are unfinished.

    Threads: all four warps of a warp group together.
    Memory: the operands of finished groups may be overwritten, their results may be read.
    Source: PTX ISA 9.0 `wgmma.wait_group`.
    """

    pending: int

    NAME = "wgmma.wait"

    def verify(self) -> None:
        expect_count(self, "the pending groups", self.pending, range(MAX_PENDING + 1))

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"wgmma.wait_group.sync.aligned {self.pending}")

    def simulate(self, m: Machine) -> None:
        m.warpgroup_wait(self.pending)


def wgmma(
    b: Builder,
    shape: WgmmaShape,
    d: tuple[Var, ...],
    a: Operand | tuple[Operand, ...],
    b_: Operand,
    *,
    scale_d: Operand = ACCUMULATE,
    a_major: str = "K",
    b_major: str = "K",
    negate_a: bool = False,
    negate_b: bool = False,
) -> None:
    """Start D = A·B + D, or A·B where `scale_d` is false; a tuple A is in registers."""
    b.append(
        WgmmaOp(
            loc=b.loc(),
            shape=shape,
            d=d,
            a=a,
            b=b_,
            scale_d=scale_d,
            a_major=a_major,
            b_major=b_major,
            negate_a=negate_a,
            negate_b=negate_b,
        )
    )


def fence(b: Builder) -> None:
    """Let later wgmma see registers as they are now."""
    b.append(WgmmaFenceOp(loc=b.loc()))


def commit(b: Builder) -> None:
    """Close the group of the wgmma issued since the last commit."""
    b.append(WgmmaCommitOp(loc=b.loc()))


def wait(b: Builder, pending: int) -> None:
    """Wait until at most `pending` committed groups are unfinished."""
    b.append(WgmmaWaitOp(loc=b.loc(), pending=pending))


OPS: tuple[type[Op], ...] = (WgmmaOp, WgmmaFenceOp, WgmmaCommitOp, WgmmaWaitOp)
