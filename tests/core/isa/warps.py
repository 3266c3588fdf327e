"""A machine for tests: W warps, flat memories, and a record of everything asked of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from kdsl_core.dtypes import DType, boolean
from kdsl_core.ir import (
    Array,
    Block,
    Builder,
    Const,
    Kernel,
    Machine,
    Op,
    Operand,
    Reg,
    SharedAlloc,
    Var,
)
from kdsl_core.ir.protocols import Accumulation, Evaluation, Inputs, Sum

GLOBAL_BASE = 1 << 40
SHARED_BASE = 1 << 10


class Warps:
    """The Machine protocol in its simplest form: all memory is there and nothing is a hazard."""

    numerics: Literal["exact", "fast"] = "exact"
    checks_values = True

    def __init__(self, warps: int = 2, size: int = 4096) -> None:
        self.warps = warps
        self.active: Array = np.ones((warps, 32), bool)
        self.registers: dict[Reg, Array] = {}
        self.memory = {name: np.zeros(size, np.uint8) for name in ("global", "shared", "cluster")}
        self.asked: list[tuple[Any, ...]] = []

    def special(self, name: str) -> Array:
        return np.broadcast_to(np.arange(32, dtype=np.uint32), (self.warps, 32))

    def read(self, operand: Operand) -> Array:
        if isinstance(operand, Const):
            return operand.array()
        return self.registers[operand]

    def write(self, reg: Reg, value: Array, *, where: Array | None = None) -> None:
        shape = (self.warps, 32)
        old = self.registers.get(reg, np.zeros(shape, reg.dtype.numpy))
        value = np.broadcast_to(value, shape)
        assert value.dtype == reg.dtype.numpy, (value.dtype, reg)
        chosen = self.active if where is None else self.active & where
        self.registers[reg] = np.where(chosen, value, old)

    def compute(
        self,
        registers: tuple[Reg, ...],
        old: Sequence[Operand],
        inputs: Inputs,
        evaluate: Evaluation,
    ) -> None:
        start = [np.broadcast_to(self.read(operand), (self.warps, 32)) for operand in old]
        (values,) = evaluate([Accumulation(start, [inputs])])
        for reg, value in zip(registers, values, strict=True):
            self.write(reg, value)

    def sums(self, operands: Sequence[Operand]) -> list[Sum] | None:
        return None

    def special_sum(self, name: str) -> Sum | None:
        return None

    def write_sum(self, reg: Reg, value: Sum) -> None:
        self.write(reg, value.whole)

    # -- memory ------------------------------------------------------------------------------
    def load_lines(self, space: str, address: Operand, offset: int, size: int) -> Array | None:
        return None

    def store_lines(self, space: str, address: Operand, offset: int, data: Array) -> bool:
        return False

    def _places(self, space: str, address: Array, size: int) -> Array:
        base = GLOBAL_BASE if space == "global" else SHARED_BASE
        return address.astype(np.int64)[..., None] - base + np.arange(size)

    def load(
        self,
        space: str,
        address: Array,
        size: int,
        *,
        where: Array | None = None,
        kind: str = "ld",
    ) -> Array:
        self.asked.append(("load", space, size, kind))
        data = self.memory[space][self._places(space, address, size)]
        return data if where is None else np.where(where[..., None], data, np.uint8(0))

    def store(
        self,
        space: str,
        address: Array,
        data: Array,
        *,
        where: Array | None = None,
        kind: str = "st",
    ) -> None:
        self.asked.append(("store", space, data.shape[-1], kind))
        places = self._places(space, address, data.shape[-1])
        chosen = np.ones(address.shape, bool) if where is None else where
        self.memory[space][places[chosen]] = data[chosen]

    def atomic(
        self,
        space: str,
        address: Array,
        dtype: DType,
        update: Callable[[Array, int, int], Array],
        *,
        where: Array | None = None,
    ) -> Array:
        old = np.zeros(address.shape, dtype.numpy)
        for warp, lane in np.ndindex(address.shape):
            if where is None or where[warp, lane]:
                place = self._places(space, address[warp, lane], dtype.bytes)
                held = self.memory[space][place].view(dtype.numpy)[0]
                old[warp, lane] = held
                new = np.asarray(update(held, warp, lane)).astype(dtype.numpy)
                self.memory[space][place] = np.frombuffer(new.tobytes(), np.uint8)
        return old

    def shared_address(self, alloc: SharedAlloc) -> Array:
        return np.full((1, 1), SHARED_BASE + alloc.offset, np.uint32)

    def cluster_address(self, address: Array, rank: Array) -> Array:
        return address + ((rank + np.uint32(1)) << np.uint32(24))

    def mbarrier_test(self, address: Array, parity: Array, *, scope: str = "cluster") -> Array:
        self.asked.append(("mbarrier_test", address, parity))
        return parity != 0

    # -- what is only recorded -----------------------------------------------------------------
    def __getattr__(self, name: str) -> Callable[..., None]:
        """A method of the protocol that gives nothing: its arguments are recorded, in order."""
        if name not in vars(Machine):
            raise AttributeError(name)
        return lambda *args, **named: self.asked.append((name, *args, *named.values()))

    def barrier(self, number: Operand, threads: int | None, *, wait: bool = True) -> None:
        self.asked.append(("barrier", number, threads, wait))

    def require_lanes(self, source: Array, *, where: Array | None = None) -> None:
        absent = ~np.take_along_axis(self.active, source.astype(np.int64), axis=-1)
        if (absent & self.active & (True if where is None else where)).any():
            self.asked.append(("absent lanes",))

    def hazard(self, code: str, message: str, *, where: Array | None = None) -> None:
        self.asked.append(("hazard", code, message, where))

    def count(self, what: str, amount: float = 1.0) -> None:
        self.asked.append(("count", what, amount))

    def print(self, template: str, values: tuple[Array, ...]) -> None:
        self.asked.append(("print", template, values))


class Bench:
    """A kernel under construction and the machine that runs it: `b` builds, `run` executes."""

    def __init__(self, warps: int = 2) -> None:
        self.kernel = Kernel("bench", (32 * warps, 1, 1))
        self.b = Builder(self.kernel)
        self.m = Warps(warps)

    def holding(self, dtype: DType, values: Any) -> Var:
        """A variable that holds values, broadcast to all lanes."""
        var = self.b.var(dtype)
        self.m.write(var, np.asarray(values).astype(dtype.numpy))
        return var

    def random(self, dtype: DType, seed: int) -> Var:
        """A variable with random bits."""
        rng = np.random.default_rng(seed)
        data = rng.integers(0, 256, (self.m.warps, 32, dtype.bytes), np.uint8)
        if dtype is boolean:
            data &= 1
        return self.holding(dtype, data.view(dtype.numpy)[..., 0])

    def run(self) -> Warps:
        """Execute the straight-line body."""
        for op in self.kernel.body.ops:
            op.simulate(self.m)
        return self.m

    def got(self, operand: Operand) -> Array:
        """What an operand holds in each lane."""
        return np.broadcast_to(self.m.read(operand), (self.m.warps, 32))


class Lines:
    """A PtxWriter that keeps text and names registers by class, in order of appearance."""

    target: Any = None

    def __init__(self) -> None:
        self.text: list[str] = []
        self.names: dict[Reg, str] = {}
        self.next = 0

    def reg(self, operand: Operand) -> str:
        if isinstance(operand, Const):
            return f"#{operand.value}"
        if operand not in self.names:
            self.names[operand] = self.temp(operand.dtype.reg)
        return self.names[operand]

    def temp(self, register_class: str) -> str:
        self.next += 1
        return f"{register_class}_{self.next}"

    def emit(self, text: str) -> None:
        self.text.append(text)

    def shared_address(self, alloc: SharedAlloc) -> str:
        return f"shared+{alloc.offset}"

    def label(self, hint: str) -> str:
        self.next += 1
        return f"{hint}_{self.next}"

    def place_label(self, label: str) -> None:
        self.text.append(f"{label}:")

    def declare(self, text: str) -> None:
        self.text.append(f"declare {text}")

    def string(self, text: str) -> str:
        return repr(text)


def ptx_of(block: Block | Op) -> list[str]:
    """The PTX lines of an operation, or of a straight-line block."""
    lines = Lines()
    for op in [block] if isinstance(block, Op) else block.ops:
        op.ptx(lines)
    return lines.text
