"""The search: build in parallel, look quickly at all candidates, then carefully at the best."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from kdsl_runtime import metrics
from kdsl_runtime.dispatch import Config
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune.candidate import Built, build_candidate, toolchain_id
from kdsl_runtime.tune.executors import Executor
from kdsl_runtime.tune.measure import BROKEN, REFUSED, Backend, Effort, Place, Trial
from kdsl_runtime.tune.space import Rejection, Space, config_text
from kdsl_runtime.tune.store import Journal, Record
from kdsl_runtime.tune.worker import WorkerLost

QUICK_SHARE = 0.7  # of a problem's time, for the look at all candidates
KEPT = 4  # one of so many goes on to the next rung
FEWEST = 3  # that go on, as long as there are so many


@dataclass(frozen=True)
class Budget:
    """When a search ends: after so many seconds, or so many candidates of each problem."""

    seconds: float = math.inf
    points: int | None = None


@dataclass(frozen=True)
class Progress:
    """`record` has come in: number `done` of the `total` that the problem takes at most."""

    problem: Problem
    done: int
    total: int
    record: Record


@dataclass(frozen=True)
class Outcome:
    """What a search found for one problem.

    `records` are those of the candidates, the best first and those that cannot win last; `rejected`
    could not be, by the space's constraints; `left` were not looked at before the time was over.
    """

    problem: Problem
    records: tuple[Record, ...]
    rejected: tuple[Rejection, ...]
    left: int

    @property
    def winner(self) -> Record | None:
        """The fastest candidate that was right; None if none was."""
        return next((record for record in self.records if record.is_right), None)

    @property
    def reasons(self) -> Mapping[str, int]:
        """Why configurations are out, and how many for each reason."""
        unbuilt = [f"cannot be: {rejection.reason}" for rejection in self.rejected]
        tried = [f"{r.trial.status}: {r.trial.reason}" for r in self.records if not r.is_right]
        return Counter([*unbuilt, *tried])


Tell = Callable[[Progress], object]


def find_best(
    space: Space,
    problems: Iterable[Problem],
    backend: Backend,
    *,
    executor: Executor,
    builders: Executor | None = None,
    journal: Journal | None = None,
    budget: Budget | None = None,
    tell: Tell = lambda progress: None,
) -> Iterator[Outcome]:
    """The outcome of each problem, as soon as it is known.

    Candidates run where `executor` has its workers, and are built where `builders` have theirs (by
    default the same). What the `journal` knows of the same code is not measured again. Each problem
    gets an equal share of the time that is left.
    Raises: ArgumentError K762 for a problem that no configuration serves; without a device to
    measure on DriverError, or WorkerLost where the executor's processes have none.
    """
    budget, builders = budget or Budget(), builders or executor
    journal = Journal() if journal is None else journal  # an empty one is false
    end = time.monotonic() + budget.seconds
    place = executor.submit(_place_of, backend).result()
    toolchain = builders.submit(toolchain_id).result()
    setting = Setting(space, backend, place, toolchain, executor, builders, journal, tell)
    todo = list(problems)
    for number, problem in enumerate(todo):
        now = time.monotonic()
        share = max(end - now, 0.0) / (len(todo) - number)
        yield Search(setting, problem, budget.points, now, share).run()


def _place_of(backend: Backend) -> Place:
    return backend.place()


def _measure(
    backend: Backend, space: Space, problem: Problem, configs: Sequence[Config], effort: Effort
) -> list[Trial]:
    return backend.measure(space, problem, configs, effort)


@dataclass(frozen=True)
class Setting:
    """What all problems of a search share."""

    space: Space
    backend: Backend
    place: Place
    toolchain: str
    executor: Executor
    builders: Executor
    journal: Journal
    tell: Tell


@dataclass
class Candidate:
    """A configuration on its way: its code is known when it is built."""

    config: Config
    code: str = ""


@dataclass
class Search:
    """The search for one problem, which may take `seconds` from `start` on."""

    setting: Setting
    problem: Problem
    points: int | None
    start: float
    seconds: float
    done: int = 0
    total: int = 0
    records: dict[str, Record] = field(default_factory=dict)

    def run(self) -> Outcome:
        """Rung after rung, until the time is over or the best are known."""
        accepted, rejected = self.setting.space.examine(self.problem)
        chosen = accepted[: self.points]
        self.total = len(chosen)
        self._look_at_all([Candidate(config) for config in chosen])
        for rung in range(1, len(self.setting.backend.rungs)):
            best = self._best(rung - 1)
            kept = best[: max(FEWEST, len(best) // KEPT)]
            if len(kept) > 1 and self._left_s() > 0:
                self._compare(kept, rung)
        ordered = sorted(self.records.values(), key=lambda r: (not r.is_right, *r.order))
        left = len(chosen) - len(self.records)
        return Outcome(self.problem, tuple(ordered), tuple(rejected), left)

    def _left_s(self, share: float = 1.0) -> float:
        """Seconds until a share of the time is over."""
        return self.start + share * self.seconds - time.monotonic()

    def _quick_left_s(self) -> float:
        """Seconds that are left for the look at all candidates."""
        return self._left_s(QUICK_SHARE if len(self.setting.backend.rungs) > 1 else 1.0)

    def _best(self, rung: int) -> list[Record]:
        """The right candidates that this back end has timed on this rung or above, fastest first.

        What an earlier run took further competes with what is new.
        """
        ours = self.setting.backend.name
        timed = [r for r in self.records.values() if r.is_right and r.backend == ours]
        return sorted((r for r in timed if r.rung >= rung), key=lambda record: record.trial.us)

    def _effort(self, rung: int) -> Effort:
        """What one measurement of a rung may take: an even share of the time for the later ones."""
        rungs = self.setting.backend.rungs
        later = len(rungs) - rung
        return Effort(rungs[rung], self._left_s() / later if rung else math.inf)

    # -- the first rung: each candidate alone ---------------------------------------------------
    def _look_at_all(self, candidates: Sequence[Candidate]) -> None:
        waiting = iter(candidates)
        builds: dict[Future[Built], Candidate] = {}
        trials: dict[Future[list[Trial]], Candidate] = {}
        more = True
        while more or builds or trials:
            while more and len(builds) < 2 * self.setting.builders.workers:
                candidate = next(waiting, None)
                more = candidate is not None and self._quick_left_s() > 0
                if candidate is not None and more:
                    builds[self._build(candidate)] = candidate
            running: list[Future[Any]] = [*builds, *trials]
            limit = self._quick_left_s()
            timeout = None if math.isinf(limit) else max(limit, 0.0)
            ended, _ = wait(running, timeout, return_when=FIRST_COMPLETED)
            if running and not ended:
                for future in running:
                    future.cancel()
                return
            for future in (f for f in running if f in ended):  # a set has no order
                if future in builds:
                    self._after_build(builds.pop(future), future, trials)
                else:
                    self._keep(trials.pop(future), 0, self._trials_of(future)[0])

    def _build(self, candidate: Candidate) -> Future[Built]:
        s = self.setting
        return s.builders.submit(
            build_candidate, s.space, self.problem, candidate.config, s.place.target
        )

    def _after_build(
        self,
        candidate: Candidate,
        future: Future[Built],
        trials: dict[Future[list[Trial]], Candidate],
    ) -> None:
        """Measure what was built, unless it cannot be or is known already."""
        try:
            built = future.result()
        except WorkerLost as lost:
            built = Built(reason=str(lost))
        candidate.code = built.code
        if built.reason:
            self._keep(candidate, 0, Trial(REFUSED, reason=built.reason))
            return
        known = self._known(candidate)
        if known is None:
            trials[self._submit([candidate.config], 0)] = candidate
        else:
            self._count(known)

    def _known(self, candidate: Candidate) -> Record | None:
        """What the journal has of the same code, unless that is only predicted."""
        ours = self._record(candidate, 0, Trial(BROKEN))
        known = self.setting.journal.get(ours.key)
        if known is None or known.code != ours.code:
            return None
        return known if known.backend == ours.backend or not ours.replaces(known) else None

    # -- later rungs: the best by turns ---------------------------------------------------------
    def _compare(self, records: Sequence[Record], rung: int) -> None:
        """Time candidates by turns; if one breaks, find out which, and go on with the others."""
        if all(record.rung >= rung for record in records):
            return
        self.total += len(records)
        group = [Candidate(record.config, record.code) for record in records]
        configs = [candidate.config for candidate in group]
        found = self._trials_of(self._submit(configs, rung))
        if any(trial.status == BROKEN for trial in found):
            found = [self._trials_of(self._submit([config], rung))[0] for config in configs]
        for candidate, trial in zip(group, found, strict=True):
            self._keep(candidate, rung, trial)

    def _submit(self, configs: Sequence[Config], rung: int) -> Future[list[Trial]]:
        s, effort = self.setting, self._effort(rung)
        return s.executor.submit(_measure, s.backend, s.space, self.problem, configs, effort)

    def _trials_of(self, future: Future[list[Trial]]) -> list[Trial]:
        """The trials that a worker gives; one that was lost breaks the candidate that it had."""
        try:
            return future.result()
        except WorkerLost as lost:
            return [Trial(BROKEN, reason=str(lost))]

    # -- records --------------------------------------------------------------------------------
    def _record(self, candidate: Candidate, rung: int, trial: Trial) -> Record:
        s = self.setting
        return Record(
            kernel=s.space.name,
            problem=s.space.shape_class(self.problem),
            config=candidate.config,
            device=s.place.device,
            toolchain=s.toolchain,
            backend=s.backend.name,
            code=candidate.code,
            rung=rung,
            bound=s.space.bound,
            trial=trial,
        )

    def _keep(self, candidate: Candidate, rung: int, trial: Trial) -> None:
        record = self._record(candidate, rung, trial)
        if self.setting.journal.get(record.key) != record:
            self.setting.journal.add(record)
            metrics.add(f"candidates_{trial.status}")
        self._count(record)

    def _count(self, record: Record) -> None:
        self.records[config_text(record.config)] = record
        self.done += 1
        self.setting.tell(Progress(self.problem, self.done, self.total, record))
