"""Accumulators of warp groups, and products that are still to be added to them."""

from __future__ import annotations

from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np

from kdsl_core.ir import Array
from kdsl_core.isa.wgmma_shapes import WARP_ROWS

_MOST_BYTES = 64 << 20  # of operands that wait


class _Product(NamedTuple):
    """A [W, 16, K] of each warp, and B, of which each has the one numbered `of_warp` in [n, N, K].

    Operands are copies: what they were when the instruction started.
    """

    a: Array
    b: Array
    of_warp: Array

    @property
    def kind(self) -> tuple[object, ...]:
        """What products that are added together have in common."""
        a, b = self.a, self.b
        return a.dtype, a.shape, b.dtype, b.shape, self.of_warp.tobytes()


class WarpgroupSums:
    """D [W, 16, N] of each warp after some instructions, computed when somebody wants it.

    Then the instructions of a loop are one long sum, whose operands are taken apart at once and
    whose values stay in the cache.
    """

    def __init__(self, start: Array, numerics: Literal["exact", "fast"]) -> None:
        self._values = start
        self._numerics: Literal["exact", "fast"] = numerics
        self._waiting: list[_Product] = []
        self._bytes = 0

    def add(self, a: Array, b: Array, of_warp: Array) -> None:
        """D = A·B + D."""
        self._waiting.append(_Product(a, b, of_warp))
        self._bytes += a.nbytes + b.nbytes
        if self._bytes > _MOST_BYTES:
            self.values()

    def values(self) -> Array:
        """D."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        for _, alike in groupby(waiting, lambda product: product.kind):
            self._values = self._after(list(alike))
        return self._values

    def _after(self, products: list[_Product]) -> Array:
        from kdsl_core.isa.tensor_core import accumulate_products  # not needed where nothing runs

        a, b = (np.stack([product[i] for product in products]) for i in range(2))
        of_warp, steps, warps = products[0].of_warp, len(products), a.shape[1]
        together, rest = divmod(warps, b.shape[1])  # warps of neighbouring rows that share a B
        c = self._values
        if rest or (of_warp != np.arange(warps) // together).any():
            b = b[:, of_warp]
        else:
            a = a.reshape(steps, b.shape[1], together * WARP_ROWS, -1)
            c = c.reshape(b.shape[1], together * WARP_ROWS, -1)
        d = accumulate_products(a, b, c, "wgmma", numerics=self._numerics)
        return d.reshape(self._values.shape)
