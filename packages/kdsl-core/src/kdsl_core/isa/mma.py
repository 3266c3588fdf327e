"""Tensor-core multiply-accumulate of one warp (`mma.sync`): D = A·B + C.

Matrices live in the registers of the 32 lanes as *fragments*. Where element e of register r of
lane l lies, with g = l div 4, t = l mod 4 and E elements in each register:

* A (M×K):  row g + 8(r mod 2),  column tE + e + 4E(r div 2)
* B (K×N):  row tE + e + 4Er,    column g
* C, D (M×N): row g + 8(i div 2 mod 2), column 8(i div 4) + 2t + i mod 2, where i = rE + e

Source: PTX ISA 9.0, "Matrix fragments for mma.m16n8k8, m16n8k16, m16n8k32".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Literal, TypeAlias

import numpy as np

from kdsl_core.dtypes import DType, bf16, e4m3, e5m2, f16, f32, i8, i32, tf32, u8, u32
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Array, Builder, Effect, Machine, Need, Op, Operand, PtxWriter
from kdsl_core.ir.protocols import Accumulation, Evaluation
from kdsl_core.ir.target import BASELINE
from kdsl_core.isa.operands import Register, expect_count, expect_type, in_register, lanes
from kdsl_core.records import dataclass

LANES = 32
_Fragments: TypeAlias = "list[Sequence[Array]]"  # the registers (W, 32) of each
_FP8 = Need(sm=89, ptx=(8, 4))


@dataclass(frozen=True)
class MmaShape:
    """One instruction: M×N×K and the element types; C has the type of D."""

    m: int
    n: int
    k: int
    d: DType
    a: DType
    b: DType
    need: Need = BASELINE

    def __hash__(self) -> int:
        return hash((self.m, self.n, self.k, self.d.name, self.a.name))  # asked for at every step

    @property
    def text(self) -> str:
        """The PTX instruction."""
        types = f"{self.d.ptx}.{self.a.ptx}.{self.b.ptx}.{self.d.ptx}"
        return f"mma.sync.aligned.m{self.m}n{self.n}k{self.k}.row.col.{types}"

    def registers(self, matrix: str) -> int:
        """Registers per lane of matrix "a", "b" or "c" (which is also D)."""
        rows, columns, dtype = self._matrix(matrix)
        return rows * columns * dtype.bits // (LANES * 32)

    def _matrix(self, matrix: str) -> tuple[int, int, DType]:
        """Rows, columns and type; B is described as its transpose, N×K."""
        return {
            "a": (self.m, self.k, self.a),
            "b": (self.n, self.k, self.b),
            "c": (self.m, self.n, self.d),
        }[matrix]

    def register_types(self, matrix: str) -> tuple[DType, ...]:
        """Types that a register of the matrix may have."""
        if matrix != "c":
            return (u32, f32, tf32) if self.a is tf32 else (u32,)
        return (self.d,) if self.d.bits == 32 else (u32,)


MMA_SHAPES = (
    MmaShape(16, 8, 16, f32, f16, f16),
    MmaShape(16, 8, 16, f32, bf16, bf16),
    MmaShape(16, 8, 16, f16, f16, f16),
    MmaShape(16, 8, 8, f32, f16, f16),
    MmaShape(16, 8, 8, f32, bf16, bf16),
    MmaShape(16, 8, 8, f16, f16, f16),
    MmaShape(16, 8, 8, f32, tf32, tf32),
    *(MmaShape(16, 8, 32, f32, a, b, _FP8) for a in (e4m3, e5m2) for b in (e4m3, e5m2)),
    *(MmaShape(16, 8, 32, i32, a, b) for a in (i8, u8) for b in (i8, u8)),
)


def shape_of(shape: tuple[int, int, int], types: tuple[DType, DType, DType, DType]) -> MmaShape:
    """The instruction with this (M, N, K) and these types of (D, A, B, C).

    Raises: TypeMismatch K276 when there is none.
    """
    d, a, b, c = types
    for row in MMA_SHAPES:
        if (row.m, row.n, row.k) == shape and (row.d, row.a, row.b, row.d) == (d, a, b, c):
            return row
    same = [row for row in MMA_SHAPES if (row.a, row.b) == (a, b)] or list(MMA_SHAPES)
    known = ", ".join(f"m{row.m}n{row.n}k{row.k} {row.d}+={row.a}×{row.b}" for row in same)
    raise TypeMismatch(
        f"no mma instruction m{shape[0]}n{shape[1]}k{shape[2]} computes {d} = {a}×{b} + {c}",
        code="K276",
        fix=f"use one of {known}",
    )


@cache
def fragment_places(shape: MmaShape, matrix: str) -> Array:
    """Where each fragment element lies: row·columns + column for [register, lane, element].

    B counts as its transpose, N×K, as the tensor-core model takes it.
    """
    _, columns, dtype = shape._matrix(matrix)
    per_register = 32 // dtype.bits
    r, lane, e = np.ogrid[: shape.registers(matrix), :LANES, :per_register]
    g, t = lane // 4, lane % 4
    if matrix == "c":
        i = r * per_register + e
        return np.asarray((g + 8 * (i // 2 % 2)) * columns + 8 * (i // 4) + 2 * t + i % 2)
    if matrix == "a":
        return np.asarray((g + 8 * (r % 2)) * columns + (t + 4 * (r // 2)) * per_register + e)
    return np.asarray(g * columns + (t + 4 * r) * per_register + e)


@cache
def _matrix_sources(shape: MmaShape, matrix: str) -> Array:
    """For each matrix element in row-major order, its place in [register, lane, element]."""
    return np.argsort(fragment_places(shape, matrix), axis=None)


def gather(shape: MmaShape, matrix: str, registers: list[Array]) -> Array:
    """The matrices [W, rows, columns] that registers (W, 32) hold."""
    rows, columns, dtype = shape._matrix(matrix)
    held = np.stack(registers, axis=1).view(dtype.numpy)
    flat = held.reshape(len(held), -1)
    return flat.take(_matrix_sources(shape, matrix), axis=1).reshape(-1, rows, columns)


def scatter(shape: MmaShape, matrix: str, values: Array) -> Array:
    """Registers [W, count, 32] (u32, or the 32-bit type itself) that hold matrices."""
    flat = values.reshape(len(values), -1)
    held = flat.take(fragment_places(shape, matrix), axis=1)
    if held.dtype.itemsize < 4:
        held = held.view(np.uint32)
    return held[..., 0]


@cache
def evaluation(shape: MmaShape, numerics: Literal["exact", "fast"]) -> Evaluation:
    """D's registers after each of many accumulations, whose steps take A's and B's registers."""
    return partial(_accumulate_all, shape, numerics)


def _accumulate_all(
    shape: MmaShape, numerics: Literal["exact", "fast"], many: Sequence[Accumulation]
) -> list[list[Array]]:
    """Where every A meets every B, they are the parts of one tall and of one wide matrix."""
    from kdsl_core.isa.tensor_core import accumulate_products  # not needed where nothing runs

    if len(many) == len(many[0].steps) == 1:
        return [_multiply(shape, numerics, many[0])]
    grid = _grid(many)
    if grid is None:  # some do not meet
        return [_accumulate_all(shape, numerics, [alone])[0] for alone in many]
    places, tall, wide = grid
    old = _matrices(shape, "c", [accumulation.start for accumulation in many])
    steps, warps = len(many[0].steps), old.shape[1]
    whole = np.empty((warps, len(tall) // steps, shape.m, len(wide) // steps, shape.n), old.dtype)
    for (i, j), matrix in zip(places, old, strict=True):
        whole[:, i, :, j] = matrix
    a, b = (
        _matrices(shape, name, x)
        .reshape(steps, -1, warps, *shape._matrix(name)[:2])
        .swapaxes(1, 2)
        .reshape(steps, warps, -1, shape.k)
        for name, x in (("a", tall), ("b", wide))
    )
    c = whole.reshape(warps, whole.shape[1] * shape.m, -1)
    d = accumulate_products(a, b, c, numerics=numerics).reshape(whole.shape)
    values = scatter(shape, "c", np.concatenate([d[:, i, :, j] for i, j in places]))
    return [list(part.swapaxes(0, 1)) for part in values.reshape(len(many), warps, -1, LANES)]


def _multiply(
    shape: MmaShape, numerics: Literal["exact", "fast"], one: Accumulation
) -> list[Array]:
    """One accumulation of one step."""
    from kdsl_core.isa.tensor_core import multiply_accumulate  # not needed where nothing runs

    fragments = *one.steps[0], one.start
    a, b, c = (gather(shape, m, list(x)) for m, x in zip("abc", fragments, strict=True))
    d = scatter(shape, "c", multiply_accumulate(a, b, c, numerics=numerics))
    return [d[:, index] for index in range(d.shape[1])]


def _grid(
    many: Sequence[Accumulation],
) -> tuple[list[tuple[int, int]], _Fragments, _Fragments] | None:
    """Row and column of each accumulation, and A's and B's fragments of all steps.

    None where some A and B of a step do not meet, or places change from step to step.
    """
    tall: _Fragments = []
    wide: _Fragments = []
    places: list[tuple[int, int]] = []
    if len({len(accumulation.steps) for accumulation in many}) > 1:
        return None
    for step in range(len(many[0].steps)):
        (row, rows), (column, columns) = (
            _numbered([accumulation.steps[step][i] for accumulation in many]) for i in range(2)
        )
        now = list(zip(row, column, strict=True))
        meet = len(set(now)) == len(many) == len(rows) * len(columns)
        if not meet or (step and now != places):
            return None
        places = now
        tall += rows
        wide += columns
    return places, tall, wide


def _numbered(fragments: _Fragments) -> tuple[list[int], _Fragments]:
    """The number of each fragment among the distinct ones, and those; arrays are never changed."""
    distinct: dict[tuple[int, ...], int] = {}
    numbers: list[int] = []
    firsts: _Fragments = []
    for registers in fragments:
        numbers.append(distinct.setdefault(tuple(map(id, registers)), len(distinct)))
        if len(distinct) > len(firsts):
            firsts.append(registers)
    return numbers, firsts


def _matrices(shape: MmaShape, matrix: str, fragments: _Fragments) -> Array:
    """The matrices [n, W, rows, columns] of n fragments."""
    rows, columns, dtype = shape._matrix(matrix)
    count, warps = len(fragments), len(fragments[0][0])
    held = np.concatenate([register for registers in fragments for register in registers])
    each = np.ascontiguousarray(held.reshape(count, -1, warps, LANES).swapaxes(1, 2))
    flat = each.view(dtype.numpy).reshape(count, warps, -1)
    return flat.take(_matrix_sources(shape, matrix), axis=2).reshape(count, warps, rows, columns)


@dataclass(frozen=True, kw_only=True, eq=False)
class MmaOp(Op):
    """Multiply A by B and add C, into D in place; D and C may be the same registers.

    Threads: all lanes of the warp together.
    Source: PTX ISA 9.0 `mma`.
    """

    shape: MmaShape
    d: tuple[Register, ...]
    a: tuple[Operand, ...]
    b: tuple[Operand, ...]
    c: tuple[Operand, ...]

    NAME = "mma.sync"
    READS = ("a", "b", "c")
    WRITES = ("d",)

    @property
    def name(self) -> str:
        shape = self.shape
        return f"{self.NAME}.m{shape.m}n{shape.n}k{shape.k}.{shape.d}.{shape.a}.{shape.b}"

    @property
    def effects(self) -> Effect:
        return Effect.CONVERGED

    @property
    def need(self) -> Need:
        return self.shape.need

    def verify(self) -> None:
        for name, operands in (("a", self.a), ("b", self.b), ("c", self.c), ("d", self.d)):
            matrix = "c" if name == "d" else name
            count = self.shape.registers(matrix)
            expect_count(self, f"the number of {name} registers", len(operands), (count,))
            allowed = self.shape.register_types(matrix)
            for operand in operands:
                expect_type(self, f"a register of {name}", operand, allowed)

    def ptx(self, w: PtxWriter) -> None:
        accumulator = "f32" if self.shape.d is f32 else "b32"
        d = [w.reg(reg) for reg in self.d]
        a = [in_register(w, operand, "b32") for operand in self.a]
        b = [in_register(w, operand, "b32") for operand in self.b]
        c = [in_register(w, operand, accumulator) for operand in self.c]
        fragments = ", ".join(f"{{{', '.join(registers)}}}" for registers in (d, a, b, c))
        w.emit(f"{self.shape.text} {fragments}")

    def simulate(self, m: Machine) -> None:
        inputs = [[lanes(m, x) for x in operands] for operands in (self.a, self.b)]
        m.compute(self.d, self.c, inputs, evaluation(self.shape, m.numerics))
        m.count("mma")


def mma(
    b: Builder,
    shape: tuple[int, int, int],
    types: tuple[DType, DType, DType, DType],
    d: tuple[Register, ...],
    a: tuple[Operand, ...],
    b_: tuple[Operand, ...],
    c: tuple[Operand, ...],
) -> None:
    """D = A·B + C with the instruction of this (M, N, K) and these types of (D, A, B, C)."""
    row = shape_of(shape, types)
    b.append(MmaOp(loc=b.loc(), shape=row, d=d, a=a, b=b_, c=c))


OPS: tuple[type[Op], ...] = (MmaOp,)
