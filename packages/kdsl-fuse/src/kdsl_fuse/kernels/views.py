"""Views of operands with as few modes as their strides allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kdsl_core.errors import ArgumentError
from kdsl_core.lang.arguments import facts_of
from kdsl_core.lang.spec import ArraySpec
from kdsl_fuse import arrays
from kdsl_fuse.strided import Strided


class Modes(NamedTuple):
    """A common shape, and each operand's strides over it."""

    shape: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, operands: Sequence[Any], shape: Sequence[int]) -> Modes:
        """Operands broadcast to a shape, in which repeated modes have strides of 0.

        Raises: ArgumentError K944 where an operand does not broadcast to it.
        """
        return cls(tuple(shape), tuple(broadcast_strides(x, tuple(shape)) for x in operands))

    def permuted(self, order: Sequence[int]) -> Modes:
        """The modes in another order."""
        return Modes(
            tuple(self.shape[i] for i in order),
            tuple(tuple(strides[i] for i in order) for strides in self.strides),
        )

    def joined(self) -> Modes:
        """Neighbouring modes joined where all operands go on with the same step; no modes of 1."""
        shape: list[int] = []
        steps: list[list[int]] = []
        for extent, *step in zip(self.shape, *self.strides, strict=True):
            if extent == 1:
                continue
            if shape and all(a == b * extent for a, b in zip(steps[-1], step, strict=True)):
                shape[-1], steps[-1] = shape[-1] * extent, step
            else:
                shape.append(extent)
                steps.append(step)
        strides = tuple(zip(*steps, strict=True)) or ((),) * len(self.strides)
        return Modes(tuple(shape), strides)

    def described(self, operands: Sequence[Any]) -> list[ArraySpec]:
        """What the views would be, also of operands without data."""
        found = [facts_of(x, "operand") for x in operands]
        return [
            ArraySpec(x.dtype, self.shape, strides, x.pointer)
            for x, strides in zip(found, self.strides, strict=True)
        ]

    def views(self, operands: Sequence[Any]) -> list[Any]:
        """The operands as views with these modes."""
        pairs = zip(operands, self.strides, strict=True)
        return [arrays.view(x, Strided(self.shape, strides)) for x, strides in pairs]


def broadcast_strides(x: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an operand that is repeated to a shape.

    Raises: ArgumentError K944 where it cannot be.
    """
    spec = arrays.spec_of(x)
    assert spec is not None, "operands are arrays"
    missing = len(shape) - len(spec.shape)
    pairs = list(zip(spec.shape, shape[max(missing, 0) :], strict=False))
    if missing < 0 or any(have not in (1, want) for have, want in pairs):
        raise ArgumentError(
            f"an operand {spec} cannot be repeated to the shape {list(shape)}",
            code="K944",
            fix="sizes must be equal or 1, counted from the last one",
        )
    return Strided(spec.shape, spec.strides).broadcast(shape).strides


def require_distinct(x: Any, name: str) -> None:
    """Refuse an output in which several places share an element.

    Raises: ArgumentError K945.
    """
    spec = arrays.spec_of(x)
    assert spec is not None, "outputs are arrays"
    if 0 in spec.shape:
        return
    reached = 1
    for step, extent in sorted(zip(spec.strides, spec.shape, strict=True)):
        if extent > 1 and step < reached:
            raise ArgumentError(
                f"{name} {spec} with strides {list(spec.strides)} has several places for one "
                "element",
                code="K945",
                fix="write to memory of its own, not to a broadcast or overlapping view",
            )
        reached += step * max(extent - 1, 0)
