"""What the rules of many operations share: type checks, addresses, and bytes to registers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

import numpy as np

from kdsl_core.dtypes import DType, boolean, u32, u64
from kdsl_core.errors import TypeMismatch, VerifyError
from kdsl_core.ir import Array, Const, Machine, Need, Op, Operand, PtxWriter, Value, Var
from kdsl_core.ir.target import BASELINE

Register: TypeAlias = Value | Var
# memory space → its name in PTX; "cluster" is the shared memory of any block of the cluster
SPACES = {"global": "global", "shared": "shared", "cluster": "shared::cluster"}


# -- type rules --------------------------------------------------------------------------------
def expect_type(op: Op, what: str, operand: Operand, allowed: Collection[DType]) -> None:
    """Raise TypeMismatch unless the operand has one of the types."""
    if operand.dtype not in allowed:
        names = " or ".join(dtype.name for dtype in allowed)
        raise TypeMismatch(
            f"{op.name}: {what} must be {names}, got {operand.dtype}",
            code="K270",
            loc=op.loc,
            fix=f"convert it to {next(iter(allowed))}",
        )


def expect_count(op: Op, what: str, got: int, allowed: Collection[int]) -> None:
    """Raise TypeMismatch unless a number is one that the instruction has."""
    if got not in allowed:
        names = " or ".join(map(str, allowed))
        if isinstance(allowed, range):
            names = f"{allowed.start} to {allowed.stop - 1}"
        raise TypeMismatch(f"{op.name}: {what} must be {names}, got {got}", code="K271", loc=op.loc)


def expect_choice(op: Op, what: str, got: Any, allowed: Collection[Any]) -> None:
    """Raise VerifyError unless an attribute is one that the instruction has."""
    if got not in allowed:
        names = ", ".join(repr(choice) for choice in allowed)
        raise VerifyError(
            f"{op.name}: {what} must be one of {names}, got {got!r}", code="K430", loc=op.loc
        )


def expect_address(op: Op, space: str, address: Operand) -> None:
    """Check a memory space and the width of its addresses."""
    expect_choice(op, "the memory space", space, SPACES)
    expect_type(op, f"a {space} address", address, (u64 if space == "global" else u32,))


def need_of_space(space: str) -> Need:
    """What an access to a memory space asks of the target."""
    return Need(sm=90, ptx=(7, 8)) if space == "cluster" else BASELINE


def expect_condition(op: Op, condition: Operand) -> None:
    """Check that an operand is a truth value."""
    expect_type(op, "the condition", condition, (boolean,))


# -- PTX ---------------------------------------------------------------------------------------
def in_register(w: PtxWriter, operand: Operand, register_class: str) -> str:
    """The operand in a register of a class; constants and other classes are moved to one."""
    if not isinstance(operand, Const) and operand.dtype.reg == register_class:
        return w.reg(operand)
    register = w.temp(register_class)
    bits = "".join(filter(str.isdigit, register_class))
    w.emit(f"mov.b{bits} {register}, {w.reg(operand)}")
    return register


def address_text(w: PtxWriter, address: Operand, offset: int = 0) -> str:
    """The operand in brackets of a memory access."""
    register = in_register(w, address, address.dtype.reg)
    # ptxas before 13 takes a negative offset only behind a plus sign.
    return f"[{register}+{offset}]" if offset else f"[{register}]"


def guard(w: PtxWriter, condition: Operand | None) -> str:
    """What stands before an instruction that only some lanes execute."""
    return "" if condition is None else f"@{w.reg(condition)} "


def braces(registers: Collection[str]) -> str:
    """A vector operand; a single register stands alone."""
    text = ", ".join(registers)
    return f"{{{text}}}" if len(registers) > 1 else text


# -- the simulator -----------------------------------------------------------------------------
def lanes(m: Machine, operand: Operand) -> Array:
    """The operand's value as a full (W, 32) array, which must not be modified."""
    return _spread(m.read(operand), (m.warps, 32))


def _spread(value: Array, shape: tuple[int, int]) -> Array:
    """`np.broadcast_to` for arrays of two axes, in a fraction of its time."""
    if value.shape == shape:
        return value
    if value.dtype.isbuiltin != 1 or not value.flags.c_contiguous:
        return np.broadcast_to(value, shape)
    rows, columns = value.shape
    strides = (value.strides[0] if rows > 1 else 0, value.strides[1] if columns > 1 else 0)
    wide: Array = np.ndarray(shape, value.dtype, value, 0, strides)
    wide.flags.writeable = False
    return wide


def lane_addresses(m: Machine, address: Operand, offset: int = 0) -> Array:
    """The address of each lane, (W, 32), which must not be modified."""
    base = m.read(address)
    if offset:
        base = np.asarray(base + np.int64(offset).astype(base.dtype))
    return _spread(base, (m.warps, 32))


def condition_lanes(m: Machine, condition: Operand | None) -> Array | None:
    """Lanes in which the condition holds; None when there is no condition."""
    return None if condition is None else lanes(m, condition)


def from_bytes(data: Array, dtype: DType) -> Array:
    """Registers (W, n, count) that memory bytes uint8 (W, n, size) hold."""
    if dtype is boolean:
        return np.not_equal(data, 0)
    return np.ascontiguousarray(data).view(dtype.numpy)


def to_bytes(values: list[Array]) -> Array:
    """Memory bytes uint8 (W, 32, size) of registers (W, 32) of one type."""
    return np.stack(values, axis=-1).view(np.uint8)
