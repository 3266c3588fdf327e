"""One mutant: made, run, and judged by what the simulator says and by the numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from kdsl_core.errors import HazardError, KdslError
from kdsl_core.ir import Kernel
from kdsl_core.ir.target import target_of
from kdsl_core.lang.arguments import bind
from kdsl_core.lang.launch import cluster_of, extent
from kdsl_core.lang.simulate import simulate_bound
from kdsl_core.lang.traced import Traced
from kdsl_core.passes.check_resources import check_resources
from kdsl_core.passes.check_wgmma import check_wgmma
from kdsl_core.passes.verify import verify
from mutants import amounts, ordering, shapes
from mutants.cases import cases
from mutants.launch import Launch
from mutants.subject import Mutant, Subject

Order = dict[str, Any]  # options of a simulation
OPERATORS = {f.__name__: f for f in (*ordering.OPERATORS, *amounts.OPERATORS, *shapes.OPERATORS)}
ORDERS: tuple[Order, ...] = ({}, *({"order": "shuffle", "seed": seed} for seed in (1, 2)))
"""Orders of blocks, warps and completions that a mutant runs in."""
TARGET = "sm_90a"
RUNAWAY = "K510"
_FEWEST, _PATIENCE = 1000, 16  # instructions; how many times as long a mutant may take


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: "caught", "refused", "wrong" (numbers only), "same", "crashed".

    `code` is that of the hazard or of the error; `line` is the author's. `seconds` are the
    processor's.
    """

    case: str
    operator: str
    number: int
    site: str
    line: str
    result: str
    code: str = ""
    message: str = ""
    seconds: float = 0.0


class Ready:
    """Stands for a kernel function whose trace is given."""

    def __init__(self, traced: Traced) -> None:
        self._traced = traced

    def trace(self, *_: Any) -> Traced:
        """The trace, whatever the arguments."""
        return self._traced


class Bench:
    """A case on the bench: its trace, its mutants, and the right results."""

    def __init__(self, name: str, launch: Launch) -> None:
        self.name = name
        self.launch = launch
        self.grid = extent(self.launch.grid, "grid")
        self.cluster = cluster_of(self.launch.cluster, self.grid)
        bound = bind(self.launch.kernel.signature, self.launch.args(), self.launch.statics)
        block = extent(self.launch.block, "block")
        self.traced: Traced = self.launch.kernel.trace(bound, block, self.cluster)
        check_resources(self.traced.kernel, target_of(TARGET))
        self.subject = Subject(self.traced.kernel)
        self.limit = _FEWEST
        while not (right := self._within_limit()):
            self.limit *= 2
        self.limit *= _PATIENCE
        self.right = right

    def mutants(self) -> Iterator[Mutant]:
        """All mutants of the case's operators, always in the same order."""
        for name, operator in OPERATORS.items():
            if name in (self.launch.operators or OPERATORS):
                yield from operator(self.subject)

    def _within_limit(self) -> list[bytes]:
        """The right results; empty when they take more instructions than the limit."""
        try:
            return self.run(self.traced)
        except HazardError as hazard:
            if hazard.code != RUNAWAY:
                raise
            return []

    def run(self, traced: Traced, **options: Any) -> list[bytes]:
        """The bytes of all arrays after a run.

        Raises: HazardError for the first hazard.
        """
        arrays = self.launch.args()
        bound = bind(self.launch.kernel.signature, arrays, self.launch.statics)
        everything = {
            "max_instructions": self.limit, "profile": False, "checks": self.launch.checks,
            "overlap": tuple(bound.arrays) if self.launch.overlap else (), **options,
        }  # fmt: skip
        simulate_bound(
            Ready(traced),  # type: ignore[arg-type]  # has all of a kernel that is asked for here
            self.grid, extent(self.launch.block, "block"), bound, everything, self.cluster,
        )  # fmt: skip
        return [x.tobytes() for x in arrays if isinstance(x, np.ndarray)]

    def traced_as(self, kernel: Kernel) -> Traced:
        """The trace with another kernel in it."""
        count = len(self.traced.origins) - len(self.traced.maps)
        other = Traced(kernel, self.traced.specialisation, self.traced.origins[:count])
        other.add_maps()
        return other

    def judge(self, number: int, mutant: Mutant, orders: Sequence[Order] = ORDERS) -> Outcome:
        """Make a mutant, run it in some orders, and say what became of it."""
        begun = time.process_time()
        found = Outcome(
            self.name, mutant.operator, number, mutant.site, mutant.line, "same",
        )  # fmt: skip
        try:
            found = self._tried(mutant, found, orders)
        except HazardError as hazard:
            found = replace(found, result="caught", code=hazard.code, message=str(hazard))
        except KdslError as error:
            found = replace(found, result="refused", code=error.code, message=str(error))
        return replace(found, seconds=time.process_time() - begun)

    def _tried(self, mutant: Mutant, found: Outcome, orders: Sequence[Order]) -> Outcome:
        kernel = mutant.apply(self.traced.kernel)
        verify(kernel)
        check_wgmma(kernel)
        traced = self.traced_as(kernel)
        for order in orders:
            if self.run(traced, **order) != self.right:
                return replace(found, result="wrong")
        return found


@cache
def bench(name: str) -> Bench:
    """The bench of a case, made once in each process."""
    return Bench(name, cases()[name])
