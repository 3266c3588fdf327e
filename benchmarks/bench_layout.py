"""Layout algebra: microseconds of tracing time that every kernel pays many times.

Layouts are cached by value, so each call here uses strides that were not seen before.
"""

from __future__ import annotations

import itertools

from kdsl_core.layout import (
    Layout,
    coalesce,
    complement,
    composition,
    logical_divide,
    logical_product,
    recast_layout,
    right_inverse,
    sym,
    zipped_divide,
)


class Algebra:
    """One operation on a (128, 64) tile whose strides are new at each call."""

    def setup(self) -> None:
        """A source of tiles that no cache holds yet."""
        self.steps = itertools.count(1)
        self.fragment = Layout(((4, 8), (2, 2)), ((256, 1), (128, 8)))
        self.rows = sym("m"), sym("n", divisible_by=64)

    def tile(self) -> Layout:
        """A (128, 64) layout with a stride that has not been used."""
        return Layout((128, 64), (next(self.steps), 1 << 20))

    def time_construct(self) -> None:
        """The layout itself, which the others include."""
        self.tile()

    def time_composition(self) -> None:
        """With a thread-value layout of a tensor-core fragment."""
        composition(self.tile(), self.fragment)

    def time_coalesce(self) -> None:
        """Nothing to merge."""
        coalesce(self.tile())

    def time_complement(self) -> None:
        """Of a strided column."""
        complement(Layout(8, 4 * next(self.steps)))

    def time_logical_divide(self) -> None:
        """By a tile in each mode."""
        logical_divide(self.tile(), (16, 8))

    def time_divide_by_a_layout(self) -> None:
        """One strided tile of the whole: a complement and a composition."""
        logical_divide(self.tile(), Layout((16, 8), (1, 128)))

    def time_zipped_divide(self) -> None:
        """The form that `local_tile` uses."""
        zipped_divide(self.tile(), (16, 8))

    def time_logical_product(self) -> None:
        """A block of registers repeated over a tile."""
        logical_product(Layout((2, 2)), Layout((4, 8), (1, 4 * next(self.steps))))

    def time_symbolic_divide(self) -> None:
        """A matrix whose size is known at the launch, by a tile in each mode."""
        zipped_divide(Layout(self.rows, (self.rows[1], 1)), (16, 64))

    def time_recast(self) -> None:
        """16-byte vectors of 16-bit elements."""
        recast_layout(Layout((64, 128), (1, 64 * next(self.steps))), 16, 128)

    def time_right_inverse(self) -> None:
        """What vectorisation asks of every copy."""
        right_inverse(self.tile())


for _benchmark in vars(Algebra).values():
    if getattr(_benchmark, "__name__", "").startswith("time_"):
        _benchmark.version = "1"
del _benchmark
