"""Warm-up: what a manifest names is built, and loaded, before the first request needs it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from kdsl_core.errors import BuildError
from kdsl_runtime import driver
from kdsl_runtime.builds import build
from kdsl_runtime.launch import load
from kdsl_runtime.manifest import Manifest, Variant
from kdsl_runtime.outcomes import Outcome, attempted, work_on


def build_variant(variant: Variant) -> None:
    """Put a variant's machine code into the cache; needs no GPU.

    Raises: KdslError, and whatever the author's module raises.
    """
    origin = variant.function(), variant.specialisation()
    build(variant.module(), origin=origin)


def build_manifest(manifest: Manifest, jobs: int = 1) -> Iterator[Outcome]:
    """Build every variant, in `jobs` processes, and say of each what became of it as they end."""
    return work_on(manifest.variants, build_variant, jobs)


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
    lowered = kernel.lowered(needed, variant.target)
    lowered.loaded[device] = load(lowered.module, device, origin=(kernel, needed))


def _failed(failures: Sequence[Outcome], tried: int) -> BuildError:
    return BuildError(
        f"{len(failures)} of {tried} kernels of the manifest could not be made ready",
        code="K737",
        notes=[f"{outcome.variant}: {outcome.problem}" for outcome in failures],
        fix="mend them, or take them out of the manifest",
    )
