"""Row-wise operators as programs for `kernels/rows.py`, and operands as it reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.strided import Shape, Strided

NORMS = ("LayerNormalization", "RMSNormalization")
POWERS = ("Softmax", "LogSoftmax")
LOSS = "SoftmaxCrossEntropyLoss"
REDUCTIONS = {
    "ReduceMax": "max", "ReduceMean": "mean", "ReduceMin": "min", "ReduceProd": "prod",
    "ReduceSum": "sum",
}  # fmt: skip
_NO_LABEL = -(2**31)  # what no label is, where none is to be ignored


programs = lru_cache(maxsize=1024)  # kernels of one program are found without comparing it


@dataclass(frozen=True)
class RowForm:
    """A row-wise operator of x: what runs along `axes` is a row.

    `by_column` are operands with an element for each column, `by_row` those with one for each row;
    the result has one for each row where `reduces`. `program(online=…)` makes the program.
    """

    x: Node
    axes: tuple[int, ...]
    program: Callable[..., Any]
    by_column: tuple[Node, ...] = ()
    by_row: tuple[Node, ...] = ()
    reduces: bool = False
    keepdims: bool = False

    @property
    def kept(self) -> tuple[int, ...]:
        """The other axes."""
        return tuple(axis for axis in range(self.x.rank) if axis not in self.axes)

    def rows_of(self, layout: Strided) -> Strided | None:
        """A view with x's axes as rows of the last axis; None where its strides do not allow it."""
        turned = layout.permuted((*self.kept, *self.axes))
        if len(self.axes) == 1:
            return turned
        sizes = turned.shape[: len(self.kept)]
        columns = 1
        for axis in self.axes:
            columns *= self.x.shape[axis]
        return turned.reshaped((*sizes, columns))

    def row_of(self, layout: Strided) -> Strided:
        """A view with the axes of a reduced result as one element for each row."""
        return layout.permuted(self.kept) if self.keepdims else layout

    @property
    def height(self) -> Shape:
        """Sizes of the other axes."""
        return tuple(self.x.shape[axis] for axis in self.kept)


def form_of(graph: Graph, node: Node) -> RowForm | None:
    """The form of an operator; None for one that no row-wise program computes."""
    x, *others = graph.operands(node)
    fast, name = node.dtype.bits <= 16, node.op.name
    if name in POWERS:
        return RowForm(x, (node.op["axis"],), partial(_powers, name, fast))
    if name in NORMS:
        axes = tuple(range(node.op["axis"], x.rank))
        centred, count = name == "LayerNormalization", len(others)
        norm = partial(_norm, node.op["epsilon"], centred, count)
        return RowForm(x, axes, norm, by_column=tuple(others))
    if name == LOSS and node.op["reduction"] == "none":
        loss = partial(_loss, node.op["ignore_index"], fast)
        return RowForm(x, (1,), loss, by_row=tuple(others), reduces=True)
    if name in REDUCTIONS:
        axes, keepdims = node.op["axes"], node.op["keepdims"]
        program = partial(_reduction, REDUCTIONS[name])
        return RowForm(x, axes, program, reduces=True, keepdims=keepdims)
    return None


@programs
def _powers(name: str, fast: bool, online: bool = False) -> Any:
    from kdsl_fuse.kernels import row_programs

    make = row_programs.softmax if name == "Softmax" else row_programs.log_softmax
    return make(fast=fast, online=online)


@programs
def _norm(epsilon: float, centred: bool, parameters: int, online: bool = False) -> Any:
    from kdsl_fuse.kernels.row_programs import norm

    return norm(epsilon, centred=centred, weight=parameters > 0, bias=parameters > 1, online=online)


@programs
def _loss(ignored: int | None, fast: bool, online: bool = False) -> Any:
    from kdsl_fuse.kernels.row_programs import cross_entropy

    label = _NO_LABEL if ignored is None else ignored
    return cross_entropy(fast=fast, ignore_index=label, online=online)


@programs
def _reduction(name: str, online: bool = False) -> Any:
    from kdsl_fuse.kernels.row_programs import reduction

    return reduction(name)
