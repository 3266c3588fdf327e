"""Every regular instruction on many bit patterns, in kernels with one store for each of them.

What an instruction must give is its own NumPy function, which is what the simulator executes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from core.isa.bench import Traced
from gpu.agreement.comparison import Array
from kdsl_core.dtypes import (
    ALL_DTYPES,
    DType,
    bf16,
    boolean,
    e4m3,
    e5m2,
    f16,
    f32,
    f64,
    i32,
    u8,
    u16,
    u32,
    u64,
)
from kdsl_core.ir import Builder, Const, Kernel, Operand, Param, Target, Value
from kdsl_core.isa import arith, compare, functions
from kdsl_core.isa.arith import binary
from kdsl_core.isa.compare import select
from kdsl_core.isa.conversions import ROUNDINGS, direct
from kdsl_core.isa.convert import bitcast, convert
from kdsl_core.isa.instruction import Instruction, InstructionOp
from kdsl_core.isa.math import NAMES, function
from kdsl_core.isa.memory import load, store
from kdsl_core.isa.packed import convert_pack, extract, insert, pack, widen_pair
from kdsl_core.isa.special import special

BLOCK = 256
NUMBERS = [dtype for dtype in ALL_DTYPES if dtype is not boolean]
NARROW = [dtype for dtype in NUMBERS if dtype.bits <= 16]
CELL = 8  # bytes that each value takes in memory


@dataclass(frozen=True)
class Row:
    """One thing to compute: operand types, how it is built, what it must give.

    `divides` says that lanes whose second operand is 0 give nothing defined.
    """

    family: str
    name: str
    operands: tuple[DType, ...]
    result: DType
    build: Any
    expected: Any
    divides: bool = False

    @property
    def moves(self) -> bool:
        """Whether it moves bits only, so that those of a NaN must arrive as well."""
        return self.family in ("pack", "convert, bits") or self.name.startswith("select")


def families() -> Iterator[tuple[str, Instruction]]:
    """Every regular instruction with its family."""
    yield from (("arith", row) for row in arith.INSTRUCTIONS)
    yield from (("compare", row) for row in compare.INSTRUCTIONS)
    yield from (("math", row) for row in functions.INSTRUCTIONS)
    yield from (("compare", compare.selection(dtype)) for dtype in NUMBERS)
    for source, target in product(NUMBERS, NUMBERS):
        for mode, saturate in product((None, *ROUNDINGS), (False, True)):
            row = direct(source, target, mode, saturate) if source is not target else None
            if row is not None:
                yield "convert", replace(row, name=f"{row.name}_{mode}_{saturate}")


def of_instruction(family: str, row: Instruction) -> Row:
    """The instruction by itself."""

    def build(b: Builder, *operands: Operand) -> Operand:
        op = InstructionOp(instruction=row, operands=operands, d=Value(row.result))
        return b.append(op).d

    divides = row.undefined is not None and row.name in ("div", "rem")
    return Row(family, repr(row), row.operands, row.result, build, row.run, divides)


def of_builder(family: str, name: str, operands: tuple[DType, ...], build: Any) -> Row:
    """What a function of a builder and operands appends, one operation or several."""
    traced = Traced(build, *operands)
    return Row(family, name, operands, traced.result.dtype, build, traced)


def full_functions() -> Iterator[Row]:
    """Functions at full precision: simulator and GPU agree in every bit."""
    for name, dtype in product(NAMES, (f32, f16, bf16)):
        yield of_builder(
            "math, composed",
            f"{name}.{dtype}",
            (dtype,),
            lambda b, x, name=name: function(b, name, x, False),
        )


def packings() -> Iterator[Row]:
    """Words that hold several narrow values, and the bits of one type taken as another."""
    for t in NARROW:
        count = 32 // t.bits
        if count == 2:
            yield of_builder("pack", f"pack.{t}", (t, t), lambda b, *parts: pack(b, parts))
        for index in range(count):
            yield of_builder(
                "pack", f"extract{index}.{t}", (u32,),
                lambda b, x, t=t, index=index: extract(b, x, t, index),
            )  # fmt: skip
            yield of_builder(
                "pack", f"insert{index}.{t}", (u32, t),
                lambda b, x, part, index=index: insert(b, x, part, index),
            )  # fmt: skip
    for t in (f16, bf16, e4m3, e5m2):
        yield of_builder(
            "pack", f"convert_pack.{t}", (f32, f32),
            lambda b, x, y, t=t: convert_pack(b, x, y, t),
        )  # fmt: skip
    for t in (e4m3, e5m2):
        yield of_builder("pack", f"widen.{t}", (u16,), lambda b, x, t=t: widen_pair(b, x, t))
    for source, target in product(NUMBERS, NUMBERS):
        if source.bits == target.bits and source is not target:
            yield of_builder(
                "convert, bits", f"{source}.{target}", (source,),
                lambda b, x, target=target: bitcast(b, x, target),
            )  # fmt: skip


def rows(target: Target) -> list[Row]:
    """Everything that the target has."""
    regular = [(family, row) for family, row in families() if row.need.missing(target) is None]
    return [*(of_instruction(*pair) for pair in regular), *full_functions(), *packings()]


# -- inputs ----------------------------------------------------------------------------------------
def inputs(dtype: DType, position: int, lanes: int) -> Array:
    """Bit patterns of one operand: all of them where there are no more than lanes.

    The first two operands of 8 bits go through all pairs. Wider ones are random bits, ordinary
    numbers and special ones, a third each.
    """
    rng = np.random.default_rng([position, dtype.bits])
    if dtype is boolean:
        return rng.integers(0, 2, lanes).astype(bool)
    lane = np.arange(lanes)
    if dtype.bits == 8 and position < 2:
        return (lane >> 8 * position).astype(np.uint8).view(dtype.numpy)
    if dtype.bits == 16:
        every = rng.permutation(1 << 16).astype(np.uint16)
        return np.resize(every, lanes).view(dtype.numpy)
    values = rng.integers(0, 256, lanes * dtype.bytes, np.uint8).view(dtype.numpy).copy()
    ordinary = rng.standard_normal(lanes) * 20
    whole = ordinary if dtype.is_float else ordinary.astype(np.int64)
    pool = specials(dtype)
    special_ones = pool[rng.integers(0, len(pool), lanes)]
    kind = lane // 3**position % 3  # every kind meets every other
    return np.choose(kind, [values, whole.astype(dtype.numpy), special_ones])


def specials(dtype: DType) -> Array:
    """Numbers near which rounding, saturation and signs change."""
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        powers = [1 << k for k in range(dtype.bits - 1)]
        near = [p + d for p in powers for d in (-1, 0, 1)]
        every = {0, info.min, info.min + 1, info.max, *near, *(-n for n in near)}
        return np.array([n for n in sorted(every) if info.min <= n <= info.max], dtype.numpy)
    exponents = np.array(
        [-150, -149, -127, -126, -24, -14, -9, -6, -1, 0, 1, 7, 8, 15, 31, 63, 127]
    )
    steps = np.array([1, 1 + 2**-23, 1 + 2**-11, 1 + 2**-8, 1.0625, 1.5, 2 - 2**-23])
    finite = (np.ldexp(1.0, exponents)[:, None] * steps).reshape(-1)
    if dtype is f64:
        finite = np.concatenate([finite, [5e-324, 2.2e-308, 1.7e308, 2.0**-1022, 2.0**1023]])
    with np.errstate(over="ignore"):
        values = np.concatenate([[0.0, np.inf, np.nan], finite]).astype(dtype.numpy)
    return np.concatenate([values, -values])


# -- kernels ---------------------------------------------------------------------------------------
class Everything:
    """A kernel with one store per row, and the layout of its input and output bytes.

    Memory: cell [operand or row, lane] of 8 bytes each.
    """

    def __init__(self, some: Sequence[Row], lanes: int = BLOCK) -> None:
        self.rows = some
        self.lanes = lanes
        self.grid = (-(-lanes // BLOCK), 1, 1)
        self.kernel = Kernel("everything", (BLOCK, 1, 1))
        keys = {(dtype, i): None for row in some for i, dtype in enumerate(row.operands)}
        self.operands = {key: inputs(*key, lanes) for key in keys}
        self.input = np.zeros((len(keys), lanes, CELL), np.uint8)
        self.output = np.zeros((len(some), lanes, CELL), np.uint8)
        pointers = [Value(u64) for _ in range(2)]
        self.kernel.params = [
            Param("input", pointers[0], ("input", u8)),
            Param("output", pointers[1], ("output", u8)),
        ]
        self._write(Builder(self.kernel), *pointers)

    def _write(self, b: Builder, source: Value, destination: Value) -> None:
        block = binary(b, "mul", special(b, "ctaid.x"), Const(u32, BLOCK))
        lane = convert(b, binary(b, "add", special(b, "tid.x"), block), u64)
        step = binary(b, "mul", lane, Const(u64, CELL))
        read, write = binary(b, "add", source, step), binary(b, "add", destination, step)
        held = {
            key: self._load(b, read, place, key[0], values)
            for place, (key, values) in enumerate(self.operands.items())
        }
        for place, row in enumerate(self.rows):
            result = row.build(b, *(held[t, i] for i, t in enumerate(row.operands)))
            if result.dtype is boolean:
                result = select(b, result, Const(i32, 1), Const(i32, 0))
            store(b, "global", write, (result,), offset=place * self.lanes * CELL)

    def _load(self, b: Builder, read: Operand, place: int, dtype: DType, values: Array) -> Operand:
        self.input[place, :, : dtype.bytes] = values.view(np.uint8).reshape(self.lanes, -1)
        stored = u8 if dtype is boolean else dtype
        (loaded,) = load(b, "global", read, stored, offset=place * self.lanes * CELL)
        return convert(b, loaded, boolean) if dtype is boolean else loaded

    def results(self) -> Iterator[tuple[Row, Array, Array]]:
        """(row, expected, got) for each row, of the lanes whose result is defined."""
        for cells, row in zip(self.output, self.rows, strict=True):
            given = [self.operands[dtype, i] for i, dtype in enumerate(row.operands)]
            with np.errstate(all="ignore"):
                expected = np.asarray(row.expected(*given)).reshape(-1)
            raw = np.ascontiguousarray(cells[:, : row.result.bytes])
            got = raw.view(row.result.numpy)[:, 0]
            defined = given[1] != 0 if row.divides else slice(None)
            yield row, expected[defined], got[defined]
