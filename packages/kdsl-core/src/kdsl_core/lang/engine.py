"""Engines: where a tensor's elements live, and how one of them is read and written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.dtypes import DType
from kdsl_core.ir import Const, Operand, Var
from kdsl_core.isa import arith, convert, memory, register
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.tracer import builder
from kdsl_core.layout import Swizzle
from kdsl_core.records import dataclass

MAX_VECTOR_BYTES = 16


@dataclass(frozen=True, eq=False)
class Place:
    """An address as an instruction takes it: a register and a static byte offset.

    `align` is the alignment in bytes that is proven for their sum.
    """

    address: Operand
    offset: int
    align: int


@dataclass(frozen=True, eq=False)
class Pointer:
    """Memory behind an address: `space` is "global", "shared" or "cluster" (another block's).

    `align` is the proven alignment of `address` in bytes; `name` says whose memory it is.
    """

    space: str
    address: Operand
    align: int
    name: str

    def place(self, offset: Any, dtype: DType, swizzle: Swizzle | None) -> Place:
        """The place of the element `offset` elements (int or Scalar) from the start."""
        moving, fixed = _split(offset, swizzle)
        align = math.gcd(self.align, fixed * dtype.bytes) if fixed else self.align
        if moving is None:
            return Place(self.address, fixed * dtype.bytes, align)
        align = math.gcd(align, moving.divisor * dtype.bytes)
        return Place(self._plus(moving, dtype.bytes), fixed * dtype.bytes, align)

    def _plus(self, elements: Scalar, size: int) -> Operand:
        b = builder()
        if self.space != "global":
            bytes_ = (elements * size).operand
            moved = bytes_ if bytes_.dtype is dt.u32 else convert.bitcast(b, bytes_, dt.u32)
            return arith.binary(b, "add", self.address, moved)
        if elements.dtype is dt.i32:
            wide = arith.mul_wide(b, elements.operand, Const(dt.i32, size))
        else:
            wide = (elements.to(dt.i64) * size).operand
        return arith.binary(b, "add", self.address, convert.bitcast(b, wide, dt.u64))


def _split(offset: Any, swizzle: Swizzle | None) -> tuple[Scalar | None, int]:
    """An element offset as a run-time part and a static part that may follow it unswizzled.

    Beyond its period a swizzle repeats, so whole periods of the static part stay outside.
    """
    if not isinstance(offset, Scalar):
        return None, int(swizzle(offset) if swizzle else offset)
    if swizzle is None:
        return offset.base, offset.plus
    period = swizzle_period(swizzle)
    inside = offset.plus % period
    return swizzled(offset.base + inside, swizzle), offset.plus - inside


def swizzle_period(swizzle: Swizzle) -> int:
    """Elements after which a swizzle repeats."""
    return 1 << (swizzle.base + swizzle.bits + max(swizzle.shift, 0))


def swizzled(offset: Scalar, swizzle: Swizzle) -> Scalar:
    """`swizzle(offset)`; elements below 2**base stay together, so that alignment is kept."""
    mixed = swizzle(offset)
    unit = math.gcd(offset.divisor, 1 << swizzle.base)
    return Scalar(mixed.operand, divisor=unit, nonneg=True)


@dataclass(frozen=True, eq=False)
class Registers:
    """A register array: one variable an element, or packed u32 variables for narrow types."""

    variables: tuple[Var, ...]
    dtype: DType

    @property
    def per_variable(self) -> int:
        """Elements that one variable holds."""
        return elements_per_register(self.dtype)

    def read(self, index: int) -> Scalar:
        """Element `index`, as it is now."""
        b, per = builder(), self.per_variable
        variable = self.variables[index // per]
        if per == 1:
            held = register.snapshot(b, variable)
            return Scalar(
                held if held.dtype is self.dtype else convert.bitcast(b, held, self.dtype)
            )
        return Scalar(convert.extract(b, variable, self.dtype, index % per))

    def write(self, index: int, value: Scalar) -> None:
        """Set element `index`."""
        b, per = builder(), self.per_variable
        variable = self.variables[index // per]
        operand = value.operand
        if per > 1:
            operand = convert.insert(b, variable, operand, index % per)
        assign_word(variable, operand)

    def write_all(self, values: Sequence[Scalar]) -> None:
        """Set every element; narrow types are packed whole."""
        b, per = builder(), self.per_variable
        for number, variable in enumerate(self.variables):
            parts = [value.operand for value in values[number * per : (number + 1) * per]]
            parts += [Const(self.dtype, 0)] * (per - len(parts))
            assign_word(variable, parts[0] if per == 1 else convert.pack(b, tuple(parts)))


def elements_per_register(dtype: DType) -> int:
    """Elements of `dtype` that share one 32-bit register."""
    return 32 // dtype.bits if dtype.bits in (8, 16) else 1


def register_type(dtype: DType) -> DType:
    """The type of the variables that hold elements of `dtype`."""
    return dt.u32 if elements_per_register(dtype) > 1 or dtype is dt.tf32 else dtype


def assign_word(variable: Var, word: Operand) -> None:
    """Set a register variable to a word of its width, whatever that word is called."""
    b = builder()
    if word.dtype is not variable.dtype:
        word = convert.bitcast(b, word, variable.dtype)
    register.assign(b, variable, word)


def make_registers(dtype: DType, count: int, hint: str) -> Registers:
    """Fresh, unwritten registers for `count` elements, called acc[4] or, packed, acc[4:6]."""
    per = elements_per_register(dtype)
    kind, var = register_type(dtype), builder().var
    names = [f"{i}" if per == 1 else f"{i}:{i + per}" for i in range(0, count, per)]
    return Registers(tuple(var(kind, f"{hint}[{name}]") for name in names), dtype)


@dataclass(frozen=True, eq=False)
class Coordinates:
    """No memory: the elements of an identity tensor are coordinates."""


def load_words(
    place: Place, space: str, dtype: DType, count: int, pred: Operand | None, cache: str = ""
) -> tuple[list[Operand], int]:
    """`count` neighbouring elements read with the widest accesses that alignment allows.

    Returns register words and how many elements each holds: packed u32 words where alignment
    allows 4-byte accesses, else one element a word.
    """
    word, per = _word(dtype, count, place.align)
    found: list[Operand] = []
    width = vector_registers(place.align, word.bytes, count // per)
    for start in range(0, count // per, width):
        found += memory.load(
            builder(),
            space,
            place.address,
            word,
            vector=width,
            offset=place.offset + start * word.bytes,
            pred=pred,
            cache=cache,
        )
    return found, per


def store_words(
    place: Place,
    space: str,
    words: Sequence[Operand],
    size: int,
    pred: Operand | None,
    cache: str = "",
) -> None:
    """Neighbouring words of `size` bytes written with the widest accesses that alignment allows."""
    width = vector_registers(place.align, size, len(words))
    for start in range(0, len(words), width):
        memory.store(
            builder(),
            space,
            place.address,
            tuple(words[start : start + width]),
            offset=place.offset + start * size,
            pred=pred,
            cache=cache,
        )


def load_elements(
    place: Place, space: str, dtype: DType, count: int, pred: Operand | None, cache: str = ""
) -> list[Scalar]:
    """`count` neighbouring elements of memory as scalars."""
    words, per = load_words(place, space, dtype, count, pred, cache)
    return unpack_words(words, dtype, per)


def store_elements(
    place: Place,
    space: str,
    dtype: DType,
    values: Sequence[Scalar],
    pred: Operand | None,
    cache: str = "",
) -> None:
    """Scalars written to neighbouring elements of memory."""
    word, per = _word(dtype, len(values), place.align)
    store_words(place, space, pack_words(values, per), word.bytes, pred, cache)


def unpack_words(words: Sequence[Operand], dtype: DType, per: int) -> list[Scalar]:
    """The elements that register words hold, `per` in each."""
    if per == 1:
        return [Scalar(word) for word in words]
    return [Scalar(part) for word in words for part in convert.unpack(builder(), word, dtype)]


def pack_words(values: Sequence[Scalar], per: int) -> list[Operand]:
    """Scalars packed into register words, `per` in each."""
    operands = [value.operand for value in values]
    if per == 1:
        return operands
    groups = [tuple(operands[i : i + per]) for i in range(0, len(operands), per)]
    return [convert.pack(builder(), group) for group in groups]


def _word(dtype: DType, count: int, align: int) -> tuple[DType, int]:
    """The type of one access register, and how many elements it holds."""
    per = elements_per_register(dtype)
    if per > 1 and count % per == 0 and align % 4 == 0:
        return dt.u32, per
    return dtype, 1


def vector_registers(align: int, step: int, count: int) -> int:
    """The most registers (4, 2 or 1) of `step` bytes that one access may move."""
    for width in (4, 2):
        span = width * step
        if count % width == 0 and span <= MAX_VECTOR_BYTES and align % span == 0:
            return width
    return 1
