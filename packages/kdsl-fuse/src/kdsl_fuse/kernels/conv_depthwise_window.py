"""Which rows of the input reach which results, and in which order they are taken."""

from __future__ import annotations

from typing import Any

Row = tuple[int, list[tuple[int, int]]]  # and the (result, tap) pairs that use it


def reached(outputs: int, taps: int, stride: int, dilation: int) -> dict[int, list[Any]]:
    """Inputs, counted from the first one, ↦ the (output, tap) pairs that use them."""
    uses: dict[int, list[Any]] = {}
    for output in range(outputs):
        for tap in range(taps):
            uses.setdefault(output * stride + tap * dilation, []).append((output, tap))
    return dict(sorted(uses.items()))


def steps(config: Any) -> list[list[Row]]:
    """Rows of the input that a warp takes at a time: one, or two that reach different results.

    The first rows reach few results and so do the last ones; together they keep all busy.
    """
    c = config
    left = list(reached(c.rows, c.kernel[0], c.stride[0], c.dilation[0]).items())
    found = []
    while left:
        row = left.pop(0)
        found.append([row])
        others = [other for other in left if not _results(row) & _results(other)]
        if others and c.together > 1:
            partner = max(others, key=lambda other: len(other[1]))
            left.remove(partner)
            found[-1].append(partner)
    return found


def _results(row: Row) -> set[int]:
    return {result for result, _ in row[1]}
