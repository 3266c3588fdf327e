"""A kernel of the caller's own as an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.loc import Loc
from kdsl_fuse.graph import Node, Op
from kdsl_fuse.ops.declare import OpDef, ValueType


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel with its grid and block, called as kernel(*operands, output, **statics).

    `result` is the shape and dtype of the output, a new row-major array. `reference` computes the
    same in NumPy; left out, the kernel itself is simulated where a reference is needed.
    """

    kernel: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    result: tuple[tuple[int, ...], DType]
    statics: Mapping[str, Any] = field(default_factory=dict)
    cluster: tuple[int, ...] | None = None
    reference: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(getattr(self.kernel, "__name__", type(self.kernel).__name__))

    def __str__(self) -> str:
        return self.name

    def simulate(self, dtypes: Sequence[DType], arrays: Sequence[Any]) -> Any:
        """The output for NumPy arrays, which are rounded to `dtypes` first."""
        shape, dtype = self.result
        output = np.zeros(shape, dtype.numpy)
        given = [np.asarray(x).astype(t.numpy) for x, t in zip(arrays, dtypes, strict=True)]
        configured = self.kernel.configure(grid=self.grid, block=self.block, cluster=self.cluster)
        configured(*given, output, **self.statics)
        return output


def _infer(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    shape, dtype = op["launch"].result
    return shape, dtype


def _reference(*arrays: Any, launch: Launch, dtypes: tuple[DType, ...]) -> Any:
    if launch.reference is not None:
        return launch.reference(*arrays)
    return launch.simulate(dtypes, arrays)


CUSTOM = (OpDef("Custom", _infer, _reference),)
