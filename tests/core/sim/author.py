"""Kernels built by hand for the simulator's tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from kdsl_core import sim
from kdsl_core.dtypes import DType, boolean, dtype_of, u32, u64
from kdsl_core.ir import Builder, Const, Kernel, Operand, Param
from kdsl_core.isa import arith, compare, control, convert, memory, register, special


class Author:
    """Writes a kernel's IR: short names for what the tests need, with the test's lines."""

    def __init__(self, block: int | tuple[int, int, int], **pointers: Any) -> None:
        dims = (block, 1, 1) if isinstance(block, int) else block
        self.kernel = Kernel("test", dims)
        self.b = Builder(self.kernel)
        self.pointers: dict[str, Operand] = {}
        for name, dtype in pointers.items():
            value = self.b.value(u64, name)
            self.kernel.params.append(Param(name, value, (name, dtype_of(dtype))))
            self.pointers[name] = value
        self.tid = special.special(self.b, "tid.x")
        self.block = special.special(self.b, "ctaid.x")

    def scalar(self, name: str, dtype: DType = u32) -> Operand:
        """A scalar parameter."""
        value = self.b.value(dtype, name)
        self.kernel.params.append(Param(name, value))
        return value

    def const(self, value: int, dtype: DType = u32) -> Const:
        """A constant."""
        return Const(dtype, value)

    def do(self, name: str, x: Operand, y: Operand | int) -> Operand:
        """Arithmetic of two operands of one dtype."""
        return arith.binary(self.b, name, x, self._operand(y, x))

    def test(self, name: str, x: Operand, y: Operand | int) -> Operand:
        """A comparison."""
        return compare.compare(self.b, name, x, self._operand(y, x))

    def _operand(self, y: Operand | int, like: Operand) -> Operand:
        return Const(like.dtype, y) if isinstance(y, int) else y

    def address(self, name: str, index: Operand, size: int) -> Operand:
        """The address of element `index` of a tensor argument."""
        scaled = self.do("mul", index, size)
        return self.do("add", self.pointers[name], convert.convert(self.b, scaled, u64))

    def shared(self, name: str, size: int) -> Operand:
        """The address of a new piece of shared memory."""
        return memory.shared_address(self.b, self.kernel.allocate_shared(name, size, 16))

    def word(self, base: Operand, index: Operand, size: int = 4) -> Operand:
        """The shared address of element `index`."""
        return self.do("add", base, self.do("mul", index, size))

    def get(self, space: str, address: Operand, dtype: DType = u32, **more: Any) -> Operand:
        """Load one register."""
        return memory.load(self.b, space, address, dtype, **more)[0]

    def put(self, space: str, address: Operand, value: Operand, **more: Any) -> None:
        """Store one register."""
        memory.store(self.b, space, address, (value,), **more)

    def when(
        self,
        condition: Operand,
        then: Callable[[], None],
        otherwise: Callable[[], None] | None = None,
    ) -> None:
        """Run `then` where the condition holds and `otherwise` where it does not."""
        op = control.IfOp(condition=condition)
        with self.b.inside(op.then):
            then()
        if otherwise:
            with self.b.inside(op.otherwise):
                otherwise()
        self.b.append(op)

    def run(
        self,
        grid: int | tuple[int, int, int] = 1,
        scalars: dict[str, int] | None = None,
        **arrays: np.ndarray[Any, Any],
    ) -> Callable[..., sim.Result]:
        """A function that runs the kernel on the arrays with the options it is given."""
        dims = (grid, 1, 1) if isinstance(grid, int) else grid

        def go(**options: Any) -> sim.Result:
            global_memory = sim.GlobalMemory()
            params: dict[str, int | float] = dict(scalars or {})
            for name, array in arrays.items():
                params[name] = global_memory.add(name, array, dtype_of(array.dtype))
            return sim.run(self.kernel, dims, params, global_memory.buffers, **options)

        return go

    def loop(self, count: Operand | int, body: Callable[[Operand], None]) -> None:
        """Run `body(i)` for i below `count`."""
        i = register.declare(self.b, u32, Const(u32, 0))
        op = control.LoopOp(condition=self.b.value(boolean))
        with self.b.inside(op.head):
            now = register.snapshot(self.b, i)
            condition = self.test("lt", now, count)
        op = dataclasses.replace(op, condition=condition)
        with self.b.inside(op.body):
            body(now)
        with self.b.inside(op.step):
            register.assign(self.b, i, self.do("add", i, 1))
        self.b.append(op)


def codes(result: sim.Result) -> list[str]:
    """The codes of the hazards found."""
    return [hazard.code for hazard in result.hazards]


def found(run: Callable[..., sim.Result], **options: Any) -> list[str]:
    """The codes of all hazards of a run."""
    return codes(run(on_hazard="collect", **options))
