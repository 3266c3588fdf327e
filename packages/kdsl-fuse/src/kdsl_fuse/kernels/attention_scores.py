"""What attention does with scores between its two products: bias, mask, softmax, in registers."""

from __future__ import annotations

import math
from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.attention_work import Tile
from kdsl_fuse.kernels.online_softmax import Softmax, hide, of_pair

LOG2_E = math.log2(math.e)


class Scores:
    """Accumulators of queries × keys on their way to weights, for each of two rows of a thread.

    `fragment` holds them in the order of `FragmentEpilogue`, rows of 16 for each warp of `thread`.
    `config` names `dim`, `columns` and `mask` of a tile.
    """

    def __init__(self, config: Any, fragment: Any, thread: Any, scale: Any, bias: Any) -> None:
        self.config, self.fragment, self.thread, self.scale = config, fragment, thread, scale
        self.bias = bias[0].with_layout(kd.select(bias[0].layout, (2, 3, 1, 0))) if bias else None
        factor = LOG2_E if bias else scale * LOG2_E
        self.softmax = Softmax(factor, guarded=bool(bias) or config.mask is not None)

    def add_bias(self, origin: tuple[Any, Any], tile: Tile) -> None:
        """scores = scores · scale + bias, where there is one, from query and key `origin` on.

        The bias of some columns is fetched ahead of the others.
        """
        if self.bias is None:
            return
        bias = self.bias[None, None, tile.head, tile.batch]
        epilogue = kd.collective.FragmentEpilogue(self._biased, (bias,), bias.shape, self.thread)
        width, ahead = self.config.columns, 16 if self.config.dim > 128 else 32
        chunks = [range(x, min(x + ahead, width)) for x in range(0, width, ahead)]
        parts = epilogue.fetch(origin, 0, chunks[0])
        for columns, following in zip(chunks, [*chunks[1:], None], strict=True):
            upcoming = epilogue.fetch(origin, 0, following) if following else []
            (found,) = epilogue.results(self.fragment, parts, columns)
            for i, score in enumerate(found):
                self.fragment[columns[0] // 2 + i] = score
            parts = upcoming

    def _biased(self, score: Any, bias: Any) -> Any:
        if bias.dtype is kd.boolean:
            return kd.where(bias, score * self.scale, -math.inf)
        return kd.fma(score, self.scale, bias.to(kd.f32))

    def hide_unseen(self, origin: tuple[Any, Any], tile: Tile) -> None:
        """Hide the scores of keys that do not exist or that the mask hides."""
        row, first = origin
        own = row + 16 * (self.thread // 32) + self.thread % 32 // 4
        for pair in range(2):
            last: Any = tile.keys - 1
            if self.config.mask is not None:
                last = kd.minimum(last, own + 8 * pair + tile.shift)
            hide(self.fragment, pair, last - first - 2 * (self.thread % 4))


def scale_rows(sums: Any, factors: list[Any]) -> None:
    """Multiply the accumulators of each of a thread's rows by its factor."""
    for pair, factor in enumerate(factors):
        for i in of_pair(sums, pair):
            sums[i] = sums[i] * factor
