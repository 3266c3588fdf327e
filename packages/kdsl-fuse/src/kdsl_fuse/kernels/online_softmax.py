"""Softmax of rows that come piece by piece, in the accumulators of `wgmma` or `mma.sync`."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import kdsl_core as kd


class Softmax:
    """The largest score and the sum of weights so far, of the two rows that a thread shares.

    Weights are 2 ** (factor · (score − largest)): exponentials, with `factor` log2(e) times what
    scores are scaled by. `guarded` rows may have seen no key yet.
    """

    def __init__(self, factor: Any, guarded: bool) -> None:
        self.factor, self.guarded = factor, guarded
        self.largest, self.total = kd.rmem(kd.f32, 2), kd.rmem(kd.f32, 2)

    def begin(self) -> None:
        """Forget all scores."""
        self.largest.fill(-math.inf)
        self.total.fill(0.0)

    def update(self, scores: Any) -> list[Any]:
        """Turn scores into weights in place; gives the factors that older weights must take."""
        return [self._update_row(scores, pair) for pair in range(2)]

    def _update_row(self, scores: Any, pair: int) -> Any:
        places, old = of_pair(scores, pair), self.largest[pair]
        found = folded([scores[i] for i in places], kd.maximum)
        largest = kd.maximum(old, over_quad(found, kd.maximum))
        base = largest * self.factor
        if self.guarded:
            base = kd.where(largest == -math.inf, 0.0, base)
        self.largest[pair] = largest
        for i in places:
            scores[i] = kd.exp2(kd.fma(scores[i], self.factor, -base), approx=True, ftz=True)
        correction = kd.exp2(kd.fma(old, self.factor, -base), approx=True, ftz=True)
        sums = folded([scores[i] for i in places], lambda x, y: x + y)
        self.total[pair] = kd.fma(self.total[pair], correction, sums)
        return correction

    def behind(self, thread: Any) -> Any:
        """The thread's number, which the assembler cannot know before all weights are computed.

        Whoever waits for the number waits for them. Without that, ptxas moves exponentials behind
        the end of the product that they are to run beside (docs/facts.md).
        """
        never = (self.total[0] < 0.0) | (self.total[1] < 0.0)
        return kd.where(never, -1, thread)

    def reciprocals(self) -> list[Any]:
        """1 / total for each row; 0 where no key was seen."""
        totals = [over_quad(self.total[pair], lambda x, y: x + y) for pair in range(2)]
        return [kd.where(total == 0.0, 0.0, 1.0 / total) for total in totals]


def hide(scores: Any, pair: int, last: Any) -> None:
    """Hide the scores of a row behind column `last`, counted from the thread's first one."""
    for i in of_pair(scores, pair):
        column = 8 * (i // 4) + i % 2
        scores[i] = kd.where(column <= last, scores[i], -math.inf)


def of_pair(fragment: Any, pair: int) -> list[int]:
    """The places in a fragment of accumulators that lie in the first or in the second row."""
    return [i for i in range(kd.size(fragment.layout)) if i // 2 % 2 == pair]


def folded(values: list[Any], combine: Any) -> Any:
    """All values combined, in four chains that run side by side."""
    chains = values[:4]
    for i, value in enumerate(values[4:]):
        chains[i % 4] = combine(chains[i % 4], value)
    return reduce(combine, chains)


def over_quad(value: Any, combine: Any) -> Any:
    """The values of the four neighbouring lanes that share a row, combined."""
    value = combine(value, kd.shfl_xor(value, 1))
    return combine(value, kd.shfl_xor(value, 2))
