"""One case on the GPU: every candidate checked, the promising ones timed by turns."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import peers
import torch
import triton_peers
from cublaslt import CublasError
from operands import Buffers, Checker, buffers_of, spoil
from shapes import Case
from timing import Launch, Side, busy_record, interleaved, prepared, quick

from kdsl_core.errors import KdslError

FAILURES = (  # of a candidate; whatever else happens ends the process, and `supervise` notes it
    KdslError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    ImportError,
)
Note = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How much is tried: `first` right candidates of ours, or all with `tune`; the best `keep` of
    those, 2 of cuBLASLt's and Triton's best are timed for about `seconds`. Of a shape in `plans`
    ("MxNxK") those are candidates, and all are tried."""

    seconds: float = 1.0
    tune: bool = False
    first: int = 1
    keep: int = 3
    candidates: int = 12
    compile_modes: tuple[str, ...] = ()
    plans: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass
class Trial:
    """The candidates of one case: what was found of each, and why some are out."""

    case: Case
    sets: list[Buffers]
    excluded: frozenset[str]
    note: Note
    checker: Checker | None = None

    def __post_init__(self) -> None:
        self.sides: dict[str, dict[str, Any]] = {}
        self.failures: dict[str, str] = {}
        self.launches: dict[str, Launch] = {}

    def check(self, owner: str, name: str, launch: Launch) -> bool:
        """Run a candidate once on the first buffers; keep it if its result is right.

        The first candidate of a case gives the whole result that the others are compared with.
        """
        if name in self.excluded:
            return False
        self.note(name)
        c = self.sets[0].c
        spoil(c)
        try:
            result = launch(0)
            torch.cuda.synchronize()
        except FAILURES as error:
            self.fail(name, error)
            return False
        c = result if isinstance(result, torch.Tensor) else c
        if self.checker is None:
            self.checker = Checker.of(self.case, self.sets[0], c)
        error, deviation = self.checker.error(c), self.checker.deviation(c)
        side = {"owner": owner, "error": error, "deviation": deviation}
        if self.checker.wrong(error, deviation):
            if not self.sides:
                self.checker = None
            self.failures[name] = f"wrong: error {error:.1e}, deviation {deviation:.1e}"
            return False
        self.sides[name], self.launches[name] = side, launch
        return True

    def fail(self, name: str, error: BaseException) -> None:
        """Record why a candidate is out; a GPU that no longer answers ends the process."""
        self.failures[name] = f"{type(error).__name__}: {error}"[:600]
        torch.cuda.synchronize()

    def best(self, owner: str, keep: int) -> list[str]:
        """The names of the fastest candidates of an owner by a quick look."""
        names = [name for name, side in self.sides.items() if side["owner"] == owner]
        if len(names) <= keep:
            return names
        for name in names:
            self.note(name)
            try:
                self.sides[name]["quick"] = quick(self.launches[name], len(self.sets))
            except FAILURES as error:
                self.fail(name, error)
        timed = [name for name in names if "quick" in self.sides[name]]
        return sorted(timed, key=lambda name: self.sides[name]["quick"])[:keep]

    def prepared(self, names: list[str]) -> dict[str, Side]:
        """The graphs of the candidates that can be captured."""
        sides = {}
        for name in names:
            self.note(name)
            try:
                sides[name] = prepared(self.launches[name], len(self.sets))
            except FAILURES as error:
                self.fail(name, error)
        return sides


def measure(case: Case, options: Options, excluded: frozenset[str], note: Note) -> dict[str, Any]:
    """All that is known of a case after measuring it, for the JSON."""
    note("operands")
    trial = Trial(case, buffers_of(case), excluded, note)
    for name, launch in peers.torch_peers(case, trial.sets, options.compile_modes).items():
        trial.check("torch", name, launch)
    try:
        for name, launch in peers.cublaslt_peers(case, trial.sets).items():
            trial.check(" ".join(name.split()[:-1]), name, launch)
    except CublasError as error:
        trial.fail("cuBLASLt", error)
    for name, launch in triton_peers.products(case, trial.sets).items():
        trial.check("Triton", name, launch)
    check_ours(trial, options)
    chosen = [
        *trial.best("torch", 4),
        *trial.best("cuBLASLt", 2),
        *trial.best("cuBLASLt fast", 2),
        *trial.best("Triton", 1),
        *trial.best("kdsl", options.keep),
    ]
    sides = trial.prepared(chosen)
    note(f"{len(sides)} sides by turns")
    for name, times in interleaved(sides, options.seconds).items():
        trial.sides[name].update(times.record())
    return {
        "name": case.name,
        **asdict(case),
        "flops": case.flops,
        "bytes": case.bytes,
        "buffer_sets": len(trial.sets),
        "busy": busy_record(next(iter(sides.values()))) if sides else {},
        "sides": trial.sides,
        "failures": trial.failures,
    }


def check_ours(trial: Trial, options: Options) -> None:
    """Check our candidates: all to tune, else the first few that are right."""
    try:
        import ours

        stated = options.plans.get("x".join(map(str, trial.case.shape)), ())
        found = ours.candidates(trial.case, trial.sets, options.candidates, stated)
    except FAILURES as error:
        trial.fail("kdsl", error)
        return
    wanted = math.inf if options.tune or stated else options.first
    right = 0
    for name, launch in found.items():
        if right < wanted:
            right += trial.check("kdsl", name, launch)


def release() -> None:
    """Give the memory of the last case back."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # else the limit of recompilations turns later cases into eager ones
    gc.collect()
    torch.cuda.empty_cache()
