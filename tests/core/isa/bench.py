"""A machine of one row of lanes, for tests of instructions on arrays of values."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.ir import Builder, Const, Kernel, Operand, Reg, Value


class OneRow:
    """Registers are rows of as many lanes as the inputs have; nothing else is simulated."""

    checks_values = True

    def __init__(self, lanes: int) -> None:
        self.active = np.ones((1, lanes), bool)
        self.registers: dict[Reg, Any] = {}
        self.hazards: list[tuple[str, str, Any]] = []

    def read(self, operand: Operand) -> Any:
        return operand.array() if isinstance(operand, Const) else self.registers[operand]

    def write(self, reg: Reg, value: Any) -> None:
        assert value.dtype == reg.dtype.numpy, f"{reg} was written with {value.dtype}"
        self.registers[reg] = np.broadcast_to(value, self.active.shape)

    def sums(self, operands: Any) -> None:
        """None are kept."""

    def special_sum(self, name: str) -> None:
        """None are kept."""

    def special(self, name: str) -> Any:
        return {"tid.x": np.arange(self.active.size, dtype=np.uint32)[None]}[name]

    def hazard(self, code: str, message: str, *, where: Any) -> None:
        self.hazards.append((code, message, where))


class Traced:
    """A builder function applied to fresh values of the dtypes given."""

    def __init__(self, build: Callable[..., Any], *dtypes: DType) -> None:
        self.kernel = Kernel("k", (32, 1, 1))
        b = Builder(self.kernel)
        self.inputs = [Value(dtype) for dtype in dtypes]
        self.result = build(b, *self.inputs)
        self.hazards: list[tuple[str, str, Any]] = []

    def __call__(self, *arrays: Any) -> Any:
        """The result for one-dimensional arrays of inputs."""
        lanes = max(np.size(array) for array in arrays)
        m = OneRow(lanes)
        for value, array in zip(self.inputs, arrays, strict=True):
            m.write(value, np.asarray(array).astype(value.dtype.numpy)[None])
        with np.errstate(all="ignore"):
            for op in self.kernel.body.ops:
                op.simulate(m)
        self.hazards = m.hazards
        return np.broadcast_to(m.read(self.result), (1, lanes))[0]

    @property
    def names(self) -> Counter[str]:
        """How often each operation occurs."""
        return Counter(op.name for op in self.kernel.body.ops)


def assembler() -> str:
    """Path of ptxas: on the search path, or the one of the nvidia-cuda-nvcc wheel."""
    found = shutil.which("ptxas")
    if found is None:
        import nvidia  # a namespace package without code

        found = next(
            str(path) for root in nvidia.__path__ for path in Path(root).glob("*/bin/ptxas")
        )
    return found
