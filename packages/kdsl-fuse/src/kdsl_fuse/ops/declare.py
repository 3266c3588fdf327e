"""What the declaration of an operator holds, and the rules that many of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kdsl_core.dtypes import DType, bf16, boolean, f16, f32
from kdsl_core.errors import FusionError
from kdsl_core.loc import Loc
from kdsl_fuse.graph import Node, Op
from kdsl_fuse.strided import Shape, Strided

ValueType = tuple[Shape, DType]
Infer = Callable[[Op, Sequence[Node], Loc | None], ValueType]


@dataclass(frozen=True)
class OpDef:
    """An operator: the type of its result, its meaning in NumPy, and its code inside a kernel.

    `reference(*arrays, **attrs)` computes in the precision of its arrays. `kernel(kd, *values,
    **attrs)` is written with kdsl_core's words on one element; an operator that has it is
    *pointwise* and may join a kernel's tail. `view(source, op, shape)` gives the elements of its
    first operand in another order; an operator that has it moves no data, unless the view needs
    strides that there are not (None).
    """

    name: str
    infer: Infer
    reference: Callable[..., Any]
    kernel: Callable[..., Any] | None = None
    view: Callable[[Strided, Op, Shape], Strided | None] | None = None

    @property
    def is_pointwise(self) -> bool:
        """Whether each element of the result needs only the elements at its own coordinate."""
        return self.kernel is not None


def broadcast(op: Op, operands: Sequence[Node], loc: Loc | None) -> Shape:
    """The common shape of `operands` by NumPy's rule; K901 names both values and their lines."""
    rank = max(node.rank for node in operands)
    result: list[int] = []
    for axis in range(-rank, 0):
        sized = [node for node in operands if node.rank >= -axis and node.shape[axis] != 1]
        for node in sized[1:]:
            if node.shape[axis] != sized[0].shape[axis]:
                raise _shape_conflict(op, sized[0], node, axis, loc)
        result.append(sized[0].shape[axis] if sized else 1)
    return tuple(result)


def _shape_conflict(op: Op, a: Node, b: Node, axis: int, loc: Loc | None) -> FusionError:
    return FusionError(
        f"{op.name} cannot broadcast {list(a.shape)} with {list(b.shape)}: "
        f"axis {axis} is {a.shape[axis]} and {b.shape[axis]}",
        code="K901",
        loc=loc,
        notes=[a.note(), b.note()],
        fix="sizes on an axis must be equal, or one of them 1",
    )


def promote(op: Op, operands: Sequence[Node], loc: Loc | None) -> DType:
    """The dtype in which `operands` meet.

    Equal dtypes stay; f16 or bf16 with f32 gives f32; everything else needs a stated cast. (Python
    numbers never come here: they took the dtype of their partner when they joined the graph.)
    """
    widest = operands[0]
    for node in operands[1:]:
        if node.dtype is widest.dtype:
            continue
        if node.dtype is f32 and widest.dtype in (f16, bf16):
            widest = node
        elif not (widest.dtype is f32 and node.dtype in (f16, bf16)):
            raise FusionError(
                f"{op.name} does not mix {widest.dtype} and {node.dtype}",
                code="K902",
                loc=loc,
                notes=[widest.note(), node.note()],
                fix=f"cast one of them: kf.cast({node.name}, {widest.dtype.name!r})",
            )
    return widest.dtype


_KINDS: dict[str, Callable[[DType], bool]] = {
    "float": lambda dtype: dtype.is_float,
    "number": lambda dtype: dtype is not boolean,
    "boolean": lambda dtype: dtype is boolean,
}


def require(kind: str, op: Op, operands: Sequence[Node], loc: Loc | None) -> None:
    """Refuse (K904) operands that are not of `kind`: "float", "number" or "boolean"."""
    for node in operands:
        if not _KINDS[kind](node.dtype):
            raise FusionError(
                f"{op.name} takes {kind} values, got {node}",
                code="K904",
                loc=loc,
                notes=[node.note()],
                fix="cast it first: kf.cast(x, 'f32')" if kind == "float" else None,
            )


def pointwise(kind: str) -> Infer:
    """The rule of an operator on values of `kind`: broadcast shapes, promoted dtype."""

    def infer(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
        require(kind, op, operands, loc)
        return broadcast(op, operands, loc), promote(op, operands, loc)

    return infer


def compare(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    """The rule of a comparison: operands as for arithmetic, truth values out."""
    shape, _ = pointwise("number")(op, operands, loc)
    return shape, boolean


def axes_of(op: Op, axes: Sequence[int], rank: int, loc: Loc | None) -> tuple[int, ...]:
    """`axes` counted from 0; K950 for one that a value of `rank` lacks, or one named twice."""
    found = tuple(axis + rank if axis < 0 else axis for axis in axes)
    if len(set(found)) < len(found) or any(not 0 <= axis < rank for axis in found):
        raise FusionError(
            f"{op.name} on a value of rank {rank} has no axes {list(axes)}",
            code="K950",
            loc=loc,
            fix=f"name different axes from {-rank} to {rank - 1}" if rank else "give it an axis",
        )
    return found
