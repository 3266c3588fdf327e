"""The same work on many variants, in several processes, whatever goes wrong with one of them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from kdsl_core.errors import KdslError
from kdsl_runtime.manifest import Variant

Work = Callable[[Variant], Any]


@dataclass(frozen=True)
class Outcome:
    """What became of one variant: the work's result, or in `problem` its error's paragraph."""

    variant: Variant
    problem: str = ""
    result: Any = None


def work_on(variants: Sequence[Variant], work: Work, jobs: int = 1) -> Iterator[Outcome]:
    """The outcome of `work` for each variant, in the order in which they end.

    With `jobs` above 1 that many processes of this Python share it; they find modules where this
    one does, and `work` and its results must be such that pickle can send them.
    """
    if jobs <= 1 or len(variants) <= 1:
        for variant in variants:
            yield attempted(variant, work)
        return
    # A forked process would inherit the locks of this one's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(variants)), mp_context=context) as pool:
        tasks = {pool.submit(attempted, variant, work): variant for variant in variants}
        for task in as_completed(tasks):
            try:
                yield task.result()
            except BrokenProcessPool as problem:
                yield Outcome(tasks[task], f"the process that had it died: {problem}")


def attempted(variant: Variant, work: Work) -> Outcome:
    """The outcome of `work(variant)`, whatever it raises: a module's author may raise anything."""
    with ThreadPoolExecutor(1) as thread:
        task = thread.submit(work, variant)
        problem = task.exception()
    if problem is None:
        return Outcome(variant, result=task.result())
    kind = "" if isinstance(problem, KdslError) else f"{type(problem).__name__}: "
    return Outcome(variant, f"{kind}{problem}")
