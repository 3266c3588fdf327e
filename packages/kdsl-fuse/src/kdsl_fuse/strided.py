"""A view of an array in memory as numbers: shape, strides and offset, all in elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kdsl_core.records import dataclass

Shape = tuple[int, ...]


def row_major(shape: Shape) -> tuple[int, ...]:
    """Strides, in elements, of a dense row-major array of `shape`."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def broadcasts(shape: Shape, target: Shape) -> bool:
    """Whether an array of `shape` can be repeated to `target` by NumPy's rule."""
    pairs = zip(shape, target[len(target) - len(shape) :], strict=False)
    return len(shape) <= len(target) and all(have in (1, want) for have, want in pairs)


@dataclass(frozen=True)
class Strided:
    """Where the elements of a view lie, counted from the first element of the array below."""

    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of(cls, facts: Any) -> Strided:
        """The view that an array's facts or spec tell, by `shape` and `strides` in elements."""
        return cls(tuple(facts.shape), tuple(facts.strides))

    @classmethod
    def dense(cls, shape: Shape) -> Strided:
        """All of a row-major array."""
        return cls(shape, row_major(shape))

    def permuted(self, axes: Sequence[int]) -> Strided:
        """The axes in another order."""
        shape = tuple(self.shape[axis] for axis in axes)
        return Strided(shape, tuple(self.strides[axis] for axis in axes), self.offset)

    def sliced(self, starts: Sequence[int], steps: Sequence[int], shape: Shape) -> Strided:
        """`shape` elements from `starts`, every `steps`-th, along each axis."""
        offset = self.offset + sum(a * s for a, s in zip(starts, self.strides, strict=True))
        return Strided(
            shape, tuple(a * s for a, s in zip(steps, self.strides, strict=True)), offset
        )

    def broadcast(self, shape: Shape) -> Strided:
        """Repeated to `shape` by NumPy's rule, with stride 0 on repeated axes."""
        missing = len(shape) - len(self.shape)
        kept = [
            0 if have == 1 and want != 1 else stride
            for have, stride, want in zip(self.shape, self.strides, shape[missing:], strict=True)
        ]
        return Strided(shape, (0,) * missing + tuple(kept), self.offset)

    def reshaped(self, shape: Shape) -> Strided | None:
        """The same elements in row-major order as `shape`; None where that needs a copy."""
        if math.prod(shape) == 0:
            return Strided.dense(shape)
        runs = self._runs()
        strides: list[int] = []
        for size in reversed(shape):
            if size == 1:
                strides.append(1)
                continue
            if not runs or runs[-1][0] % size:
                return None
            length, stride = runs.pop()
            strides.append(stride)
            if length > size:
                runs.append((length // size, stride * size))
        return replace(self, shape=shape, strides=tuple(reversed(strides)))

    def _runs(self) -> list[tuple[int, int]]:
        """(length, stride) of the fewest axes with the same elements in the same order."""
        runs: list[tuple[int, int]] = []
        for size, stride in zip(self.shape, self.strides, strict=True):
            if size == 1:
                continue
            if runs and runs[-1][1] == stride * size:
                runs[-1] = (runs[-1][0] * size, stride)
            else:
                runs.append((size, stride))
        return runs

    def __str__(self) -> str:
        strides = ", ".join(map(str, self.strides))
        start = f"+{self.offset}" if self.offset else ""
        return f"{list(self.shape)}:({strides}){start}"
