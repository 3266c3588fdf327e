"""Loads and stores of global and shared memory, the latter of any block of the cluster."""

from __future__ import annotations

from collections.abc import Iterator

from kdsl_core.dtypes import DType, boolean, u32
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import (
    Builder,
    Const,
    Effect,
    Machine,
    Need,
    Op,
    Operand,
    PtxWriter,
    SharedAlloc,
    Value,
)
from kdsl_core.isa.cache_policy import cache_hint, expect_policy, policy
from kdsl_core.isa.operands import (
    SPACES,
    Register,
    address_text,
    braces,
    condition_lanes,
    expect_address,
    expect_choice,
    expect_condition,
    expect_count,
    expect_type,
    from_bytes,
    guard,
    lane_addresses,
    lanes,
    need_of_space,
    to_bytes,
)
from kdsl_core.records import dataclass

_PRIORITIES = ("evict_first", "evict_last")  # of loads, in L1 and L2
LOAD_CACHES = ("", "ca", "cg", "cs", "nc", *_PRIORITIES)
STORE_CACHES = ("", "wb", "cg", "cs", "wt")
_READS = {
    "global": Effect.READS_GLOBAL,
    "shared": Effect.READS_SHARED,
    "cluster": Effect.READS_SHARED,
}
_WRITES = {
    "global": Effect.WRITES_GLOBAL,
    "shared": Effect.WRITES_SHARED,
    "cluster": Effect.WRITES_SHARED,
}
_PREFETCH_LEVELS = ("L1", "L2")


def memory_type(dtype: DType) -> str:
    """The type suffix of `ld` and `st`: bits, but 8-bit types say how they are extended."""
    if dtype.bytes > 1:
        return f"b{dtype.bits}"
    return "s8" if dtype.kind == "i" else "u8"


def _expect_vector(op: Op, registers: tuple[Operand, ...]) -> None:
    expect_count(op, "the number of registers", len(registers), (1, 2, 4))
    dtype = registers[0].dtype
    for register in registers:
        expect_type(op, "every register of a vector", register, (dtype,))
    size = len(registers) * dtype.bytes
    if size > 16:
        raise TypeMismatch(
            f"{op.name}: one access moves at most 16 bytes, "
            f"got {len(registers)} × {dtype} = {size}",
            code="K272",
            loc=op.loc,
            fix="split it",
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadOp(Op):
    """Read one or a vector of registers from memory.

    Lanes whose `pred` is false read nothing and get zeros.

    Memory: weak; `cache` "nc" promises that nobody writes the bytes while the kernel runs;
    "evict_first" and "evict_last" are for both caches, for L2 by `policy`.
    Source: PTX ISA 9.0 `ld`, `ld.global.nc`.
    """

    dst: tuple[Register, ...]
    space: str
    address: Operand
    offset: int = 0
    pred: Operand | None = None
    cache: str = ""
    policy: Operand | None = None

    NAME = "memory.load"
    READS = ("address", "pred", "policy")
    WRITES = ("dst",)

    @property
    def size(self) -> int:
        """Bytes that each lane reads."""
        return len(self.dst) * self.dst[0].dtype.bytes

    @property
    def effects(self) -> Effect:
        return _READS[self.space]

    @property
    def need(self) -> Need:
        return need_of_space(self.space)

    def verify(self) -> None:
        expect_address(self, self.space, self.address)
        expect_choice(
            self, "the cache operator", self.cache, LOAD_CACHES if self.space == "global" else ("",)
        )
        expect_policy(self, self.policy)
        _expect_vector(self, self.dst)
        if self.pred is not None:
            expect_condition(self, self.pred)
            if self.address in self.dst or self.pred in self.dst:
                raise TypeMismatch(
                    f"{self.name}: a predicated load cannot overwrite its address or predicate",
                    code="K273",
                    loc=self.loc,
                    fix="load into another register",
                )

    def ptx(self, w: PtxWriter) -> None:
        dtype = self.dst[0].dtype
        truth = dtype is boolean
        registers = [w.temp("b16") if truth else w.reg(reg) for reg in self.dst]
        if self.pred is not None:
            zero = {"f32": "0f00000000", "f64": "0d0000000000000000"}.get(dtype.reg, "0")
            for register in registers:
                w.emit(f"mov.{'b16' if truth else dtype.reg} {register}, {zero}")
        level = ".L1::" if self.cache in _PRIORITIES else "."
        cache = f"{level}{self.cache}" if self.cache else ""
        hint, behind = cache_hint(w, self.policy)
        vector = f".v{len(registers)}" if len(registers) > 1 else ""
        source = address_text(w, self.address, self.offset)
        kind = f"ld.{SPACES[self.space]}{cache}{hint}{vector}.{memory_type(dtype)}"
        w.emit(f"{guard(w, self.pred)}{kind} {braces(registers)}, {source}{behind}")
        if truth:
            for reg, register in zip(self.dst, registers, strict=True):
                w.emit(f"setp.ne.s16 {w.reg(reg)}, {register}, 0")

    def simulate(self, m: Machine) -> None:
        data = None
        if self.pred is None:
            data = m.load_lines(self.space, self.address, self.offset, self.size)
        if data is None:
            where = condition_lanes(m, self.pred)
            address = lane_addresses(m, self.address, self.offset)
            data = m.load(self.space, address, self.size, where=where)
        values = from_bytes(data, self.dst[0].dtype)
        for index, reg in enumerate(self.dst):
            m.write(reg, values[..., index])


@dataclass(frozen=True, kw_only=True, eq=False)
class StoreOp(Op):
    """Write one or a vector of registers to memory, in lanes whose `pred` is not false.

    Memory: weak; visible to the block after a barrier.
    Source: PTX ISA 9.0 `st`.
    """

    space: str
    address: Operand
    values: tuple[Operand, ...]
    offset: int = 0
    pred: Operand | None = None
    cache: str = ""

    NAME = "memory.store"
    READS = ("address", "values", "pred")

    @property
    def effects(self) -> Effect:
        return _WRITES[self.space]

    @property
    def need(self) -> Need:
        return need_of_space(self.space)

    def origins(self, byte: int) -> Iterator[tuple[Operand, int]]:
        width = self.values[0].dtype.bytes
        yield self.values[byte // width % len(self.values)], byte % width

    def verify(self) -> None:
        expect_address(self, self.space, self.address)
        allowed = STORE_CACHES if self.space == "global" else ("",)
        expect_choice(self, "the cache operator", self.cache, allowed)
        _expect_vector(self, self.values)
        if self.pred is not None:
            expect_condition(self, self.pred)

    def ptx(self, w: PtxWriter) -> None:
        dtype = self.values[0].dtype
        registers = [_stored(w, value) for value in self.values]
        cache = f".{self.cache}" if self.cache else ""
        vector = f".v{len(registers)}" if len(registers) > 1 else ""
        destination = address_text(w, self.address, self.offset)
        kind = f"st.{SPACES[self.space]}{cache}{vector}.{memory_type(dtype)}"
        w.emit(f"{guard(w, self.pred)}{kind} {destination}, {braces(registers)}")

    def simulate(self, m: Machine) -> None:
        data = to_bytes([lanes(m, value) for value in self.values])
        if self.pred is None and m.store_lines(self.space, self.address, self.offset, data):
            return
        address = lane_addresses(m, self.address, self.offset)
        m.store(self.space, address, data, where=condition_lanes(m, self.pred))


def _stored(w: PtxWriter, value: Operand) -> str:
    """A register that `st` takes: truth values become bytes."""
    if value.dtype is not boolean:
        return w.reg(value)
    byte = w.temp("b16")
    w.emit(f"selp.u16 {byte}, 1, 0, {w.reg(value)}")
    return byte


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedAddressOp(Op):
    """The 32-bit shared-window address of an allocation. Source: PTX ISA 9.0 `mov`."""

    dst: Value
    alloc: SharedAlloc

    NAME = "memory.shared_address"
    WRITES = ("dst",)

    def verify(self) -> None:
        expect_type(self, "a shared address", self.dst, (u32,))

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"mov.u32 {w.reg(self.dst)}, {w.shared_address(self.alloc)}")

    def simulate(self, m: Machine) -> None:
        m.write(self.dst, m.shared_address(self.alloc))


@dataclass(frozen=True, kw_only=True, eq=False)
class PrefetchOp(Op):
    """Ask for the cache line of a global address. Source: PTX ISA 9.0 `prefetch`."""

    address: Operand
    offset: int = 0
    level: str = "L2"

    NAME = "memory.prefetch"
    READS = ("address",)

    @property
    def effects(self) -> Effect:
        return Effect.OBSERVABLE

    def verify(self) -> None:
        expect_address(self, "global", self.address)
        expect_choice(self, "the cache level", self.level, _PREFETCH_LEVELS)

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"prefetch.global.{self.level} {address_text(w, self.address, self.offset)}")

    def simulate(self, m: Machine) -> None:
        m.count("prefetch")


def load(
    b: Builder,
    space: str,
    address: Operand,
    dtype: DType,
    vector: int = 1,
    offset: int = 0,
    pred: Operand | None = None,
    cache: str = "",
) -> tuple[Value, ...]:
    """Read `vector` registers of a type; lanes whose `pred` is false get zeros."""
    dst = tuple(b.value(dtype) for _ in range(vector))
    load_into(b, space, address, dst, offset, pred, cache)
    return dst


def load_into(
    b: Builder,
    space: str,
    address: Operand,
    dst: tuple[Register, ...],
    offset: int = 0,
    pred: Operand | None = None,
    cache: str = "",
) -> None:
    """Read registers that exist: variables are overwritten in place."""
    b.append(
        LoadOp(
            loc=b.loc(),
            dst=dst,
            space=space,
            address=address,
            offset=offset,
            pred=unless_true(pred),
            cache=cache,
            policy=policy(b, cache) if cache in _PRIORITIES else None,
        )
    )


def store(
    b: Builder,
    space: str,
    address: Operand,
    values: tuple[Operand, ...],
    offset: int = 0,
    pred: Operand | None = None,
    cache: str = "",
) -> None:
    """Write one, two or four operands of one type to consecutive memory."""
    b.append(
        StoreOp(
            loc=b.loc(),
            space=space,
            address=address,
            values=values,
            offset=offset,
            pred=unless_true(pred),
            cache=cache,
        )
    )


def unless_true(pred: Operand | None) -> Operand | None:
    """A predicate, or None when it is always true."""
    return None if isinstance(pred, Const) and pred.value is True else pred


def shared_address(b: Builder, alloc: SharedAlloc) -> Value:
    """The shared-window address of an allocation."""
    return b.share(SharedAddressOp(loc=b.loc(), dst=b.value(u32, alloc.name), alloc=alloc)).dst


def prefetch(b: Builder, address: Operand, offset: int = 0, level: str = "L2") -> None:
    """Bring the cache line of a global address into a cache."""
    b.append(PrefetchOp(loc=b.loc(), address=address, offset=offset, level=level))


OPS: tuple[type[Op], ...] = (LoadOp, StoreOp, SharedAddressOp, PrefetchOp)
