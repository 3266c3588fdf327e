"""Results of a kernel beside recorded ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kdsl_core.errors import ArgumentError
from kdsl_core.lang.kernel import KernelFunction
from kdsl_core.testing.compare import Tolerance
from kdsl_runtime.compare.diagnosis import Case, Diagnosis, bits_of, diagnosed, same_bits
from kdsl_runtime.compare.finding import Comparison, Element, Finding, Kind
from kdsl_runtime.compare.product import product_of
from kdsl_runtime.compare.recording import Array, Recording
from kdsl_runtime.compare.runs import Runs
from kdsl_runtime.compare.tiles import Tiles

_OF_ORDER = {"race", "inflight", "uninit", "proxy", "exited"}  # hazards that are races


def compare(
    kernel: KernelFunction, recording: Recording, runs: Runs, tolerance: Tolerance | None = None
) -> Comparison:
    """Each output of the first run against the first recorded one, and all runs among themselves.

    Without a tolerance bits are compared, where any NaN is like any other.

    Raises: ArgumentError K771 for results of another shape or type than the recorded ones.
    """
    comparer = _Comparer(kernel, recording, runs, tolerance)
    findings = [comparer.finding(name) for name in recording.outputs]
    return Comparison(kernel.__name__, findings, runs.hazards)


@dataclass(frozen=True)
class _Comparer:
    kernel: KernelFunction
    recording: Recording
    runs: Runs
    tolerance: Tolerance | None

    def finding(self, name: str) -> Finding:
        """What is to be said of one output."""
        want, ours = self.recording.outputs[name][0], self.runs.of(name)
        allowed = "bit by bit" if self.tolerance is None else f"within {self.tolerance}"
        nothing = Finding(name, str(want.dtype), "no run", want.size, want.size, allowed, Kind.RACE)
        if not ours:
            return replace(nothing, reasons=("the simulator could not finish the kernel",))
        for run in ours:
            self._check(name, ours[run], want)
        differ = {run: self._differ(got, want) for run, got in ours.items()}
        run = next((run for run, wrong in differ.items() if wrong.any()), next(iter(ours)))
        got, wrong = ours[run], differ[run]
        found = replace(nothing, run=run, count=int(wrong.sum()), kind=Kind.EQUAL)
        unsteady = self._unsteady(name, ours)
        if not wrong.any():
            return replace(found, kind=unsteady.kind, reasons=unsteady.reasons)
        tiles = self._tiles(name, want)
        before = self.recording.arguments[name]
        product = product_of(self.kernel.signature, self.recording.arguments, name)
        said = diagnosed(Case(got, want, before, wrong, tiles, product))
        if unsteady.kind is not Kind.EQUAL:
            said = unsteady
        at = tuple(np.argwhere(wrong)[0].tolist())
        writer = self.runs.writers.of(name, at) if self.runs.writers else None
        first = Element(at, _shown(got, at), _shown(want, at), tiles.of(at), writer, said.k)
        return replace(found, first=first, kind=said.kind, reasons=said.reasons)

    def _unsteady(self, name: str, ours: Mapping[str, Array]) -> Diagnosis:
        """What hazards and results that depend on the run say; EQUAL where there are none."""
        recorded = {f"recording {i + 1}": x for i, x in enumerate(self.recording.outputs[name])}
        differ = [*_apart("this kernel's", name, ours), *_apart("the recorded", name, recorded)]
        codes = {hazard.code for hazard in self.runs.hazards}
        places = {
            f"the simulator found a hazard{f' at {x.loc.short()}' if x.loc else ''}: {x.code}": x
            for x in self.runs.hazards
        }
        if "oob" in codes:
            kind = Kind.PREDICATE
        elif differ or codes & _OF_ORDER:
            kind = Kind.RACE
        else:
            kind = Kind.UNKNOWN if codes else Kind.EQUAL
        return Diagnosis(kind, (*differ, *places))

    def _tiles(self, name: str, like: Array) -> Tiles:
        writers = self.runs.writers
        if writers is None:
            return Tiles(np.full(like.shape, 0), (1, 1, 1))
        return Tiles(writers.blocks(name), writers.batch.grid)

    def _differ(self, got: Array, want: Array) -> Array:
        """Where two results differ by more than is allowed, bool."""
        if self.tolerance is None:
            return ~same_bits(got, want)
        with np.errstate(all="ignore"):
            x, y = got.astype(np.float64), want.astype(np.float64)
            limit = self.tolerance.relative * np.abs(y) + self.tolerance.absolute
            near = (np.abs(x - y) <= limit) & np.isfinite(y)
            return np.asarray(~(near | (x == y) | (np.isnan(x) & np.isnan(y))))

    def _check(self, name: str, got: Array, want: Array) -> None:
        if got.shape != want.shape or got.dtype != want.dtype:
            raise ArgumentError(
                f"{name} is {got.dtype} {got.shape}, but {want.dtype} {want.shape} was recorded",
                code="K771",
                fix="record the output in the type and shape that the kernel writes",
            )


def _apart(who: str, name: str, runs: Mapping[str, Array]) -> Iterator[str]:
    """Sentences about runs that differ from the first."""
    (first, one), *others = runs.items()
    for run, other in others:
        differ = ~same_bits(one, other)
        if differ.any():
            at = ", ".join(map(str, np.argwhere(differ)[0].tolist()))
            count = f"{int(differ.sum()):,} elements"
            yield f"{who} runs differ: {count} of {first} and {run}, {name}[{at}] first"


def _shown(array: Array, at: tuple[int, ...]) -> str:
    """An element and its bits."""
    bits = int(bits_of(array)[at])
    return f"{array[at]} (0x{bits:0{2 * array.dtype.itemsize}x})"
