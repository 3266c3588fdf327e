"""How dispatch tables and the tuner name convolutions; tables of kernels for f16 and bf16 alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_runtime import dispatch
from kdsl_runtime.dispatch import Config
from kdsl_runtime.problem import Problem

TABLES = Path(__file__).parent / "tables"
_ALIKE = {"f16": "bf16"}  # types that the hardware multiplies equally fast share entries
_SIZES = ("batch", "height", "width", "channels", "filters")
_SIDES = {"kernel": 1, "stride": 1, "padding": 0, "dilation": 1}  # pairs, and what they usually are

C = TypeVar("C")


def key_of(problem: ConvProblem, dtype: DType, result: DType, reads: bool) -> Problem:
    """What an entry is for, as tables have it; `reads` says whether a tail reads a matrix."""
    sides = {name: "x".join(map(str, getattr(problem, name))) for name in _SIDES}
    types = (_ALIKE.get(t.name, t.name) for t in (dtype, result))
    return Problem(
        {name: getattr(problem, name) for name in (*_SIZES, "groups")}
        | sides
        | dict(zip(("dtype", "result"), types, strict=True))
        | {"tail": "matrix" if reads else "none"}
    )


def conv_of(problem: Problem) -> ConvProblem:
    """The convolution of a problem: sizes left out are 1, pairs are written "3x3"."""
    values = problem.values

    def pair(name: str) -> tuple[int, int]:
        along = str(values.get(name, _SIDES[name])).split("x")
        return int(along[0]), int(along[-1])

    sizes = {name: problem.size(name) for name in _SIZES}
    groups = int(values.get("groups", 1))
    return ConvProblem(**sizes, groups=groups, **{name: pair(name) for name in _SIDES})


@lru_cache(maxsize=1024)
def _key(problem: ConvProblem) -> Problem:
    return key_of(problem, kd.bf16, kd.bf16, reads=False)


@lru_cache(maxsize=1024)
def _configured(
    configured: Callable[..., object], problem: ConvProblem, chosen: tuple[tuple[str, Any], ...]
) -> object:
    return configured(problem, **dict(chosen))


@dataclass(frozen=True)
class ConvTable(Generic[C]):
    """The dispatch tables of a kernel: configurations by the sizes of convolutions without a tail.

    `configured` makes a configuration of a convolution and what was chosen for it, by name; fields
    in `given` are the convolution's own, or its tail's. `overfull` says why a configuration has no
    room on the chip; None if it has.
    """

    kernel: str
    configured: Callable[..., C]
    given: tuple[str, ...]
    overfull: Callable[[C], str | None]

    @cached_property
    def dispatch(self) -> dispatch.Dispatch:
        """The user's tables and this package's: only sizes that were measured have entries."""
        return dispatch.Dispatch(self.kernel, TABLES, within=0.0, check=self.read)

    def key(self, problem: ConvProblem) -> Problem:
        """What an entry is for: the same for f16 and bf16."""
        return _key(problem)

    def options_of(self, config: Any) -> Config:
        """What was chosen, as tables and the tuner have it."""
        names = [field.name for field in fields(config) if field.name not in self.given]
        return {name: getattr(config, name) for name in names}

    def read(self, entry: dispatch.Entry) -> C:
        """The configuration of a table's entry.

        Raises: what Python does of one that lacks something, and of one that does not fit the chip.
        """
        config = self.configured(conv_of(entry.problem), **entry.config)
        reason = self.overfull(config)
        if reason is not None:
            raise ValueError(reason)
        return config

    def find(self, device: str, problem: ConvProblem) -> C | None:
        """The configuration of a convolution, if a table of the user or of the package has one.

        Raises: CacheError (K761) naming the file and the entry that cannot be used.
        """
        found = self.dispatch.find(device, self.key(problem))
        if found is None:
            return None
        return cast(C, _configured(self.configured, problem, tuple(found.config.items())))

    def explain(self, device: str, problem: ConvProblem, first: Callable[[], C]) -> str:
        """Which table has a configuration for a convolution, or else the model's `first` one."""
        return self.dispatch.explain(device, self.key(problem), lambda: self.options_of(first()))
