"""Warm-up: what a manifest names is built, and loaded, before the first request needs it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from kdsl_core.errors import BuildError, KdslError
from kdsl_runtime import driver
from kdsl_runtime.builds import build
from kdsl_runtime.cache import Entry
from kdsl_runtime.launch import load
from kdsl_runtime.manifest import Manifest, Variant


@dataclass(frozen=True)
class Outcome:
    """What became of one variant: `problem` is the error's paragraph, empty when there is none."""

    variant: Variant
    problem: str = ""


def build_variant(variant: Variant) -> Entry:
    """The cache entry of a variant; needs no GPU.

    Raises: KdslError, and whatever the author's module raises.
    """
    return build(variant.module())


def build_manifest(manifest: Manifest, jobs: int = 1) -> Iterator[Outcome]:
    """Build every variant, and say of each what became of it, in the order in which they end.

    With `jobs` above 1 that many processes of this Python do it; they find modules where this one
    does. One variant's error does not keep the others from being built.
    """
    if jobs <= 1 or len(manifest) <= 1:
        for variant in manifest:
            yield attempted(variant, build_variant)
        return
    # A forked process would inherit the locks of this one's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(manifest)), mp_context=context) as pool:
        tasks = {pool.submit(attempted, variant, build_variant): variant for variant in manifest}
        for task in as_completed(tasks):
            try:
                yield task.result()
            except BrokenProcessPool as problem:
                yield Outcome(tasks[task], f"the process that built it died: {problem}")


def attempted(variant: Variant, work: Callable[[Variant], Any]) -> Outcome:
    """The outcome of `work(variant)`, whatever it raises: a module's author may raise anything."""
    with ThreadPoolExecutor(1) as thread:
        problem = thread.submit(work, variant).exception()
    if problem is None:
        return Outcome(variant)
    told = (
        str(problem) if isinstance(problem, KdslError) else f"{type(problem).__name__}: {problem}"
    )
    return Outcome(variant, told)


def warm_up(manifest: Manifest | str | os.PathLike[str], device: int = 0) -> int:
    """Trace, build and load all that a manifest names for the device's target; gives the number.

    Launches that follow find everything done. Variants for other targets are left out.

    Raises: BuildError K737, once all were tried, with a note for each that failed; DriverError
    without a device.
    """
    named = manifest if isinstance(manifest, Manifest) else Manifest.load(manifest)
    wanted = named.for_target(driver.device(device).target)
    outcomes = [attempted(variant, lambda v: _load(v, device)) for variant in wanted]
    failures = [outcome for outcome in outcomes if outcome.problem]
    if failures:
        raise _failed(failures, len(outcomes))
    return len(outcomes)


def _load(variant: Variant, device: int) -> None:
    kernel, needed = variant.function(), variant.specialisation()
    traced = kernel.traced(needed)
    traced.loaded[device] = load(variant.module(), device, origin=(kernel, needed))


def _failed(failures: Sequence[Outcome], tried: int) -> BuildError:
    return BuildError(
        f"{len(failures)} of {tried} kernels of the manifest could not be made ready",
        code="K737",
        notes=[f"{outcome.variant}: {outcome.problem}" for outcome in failures],
        fix="mend them, or take them out of the manifest",
    )
