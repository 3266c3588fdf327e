"""What stands behind a row-wise program in the same kernel: pointwise functions of its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kdsl_fuse.kernels.row_programs import Scalars


@dataclass(frozen=True)
class FullTail:
    """function(result, value, further extras…) for each element.

    The result is the first that `base` gives, which takes `own` extras itself. Without a base the
    function starts with the value.
    """

    base: Callable[..., Scalars] | None
    own: int
    function: Callable[..., Any]

    def __call__(self, value: Any, extras: Scalars, stats: Scalars) -> Scalars:
        """The outputs for one element."""
        result = () if self.base is None else self.base(value, extras[: self.own], stats)[:1]
        return _all(self.function(*result, value, *extras[self.own :]))


@dataclass(frozen=True)
class RowTail:
    """function(result, further row inputs…) for each row, of a base that takes `own` of these."""

    base: Callable[..., Scalars]
    own: int
    function: Callable[..., Any]

    def __call__(self, stats: Scalars, labels: Scalars, picked: Any) -> Scalars:
        """The row outputs of one row."""
        result = self.base(stats, labels[: self.own], picked)[:1]
        return _all(self.function(*result, *labels[self.own :]))


def _all(found: Any) -> Scalars:
    return found if isinstance(found, tuple) else (found,)
