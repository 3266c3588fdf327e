"""The counters of this process for Prometheus, behind the extra `kdsl-runtime[metrics]`.

kr.prometheus.register()
prometheus_client.start_http_server(9400)
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kdsl_core.errors import ArgumentError
from kdsl_runtime import metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

# name: (what it means, the counters of `kr.metrics.snapshot()` by label value)
_LABELLED = {
    "kdsl_cache_hits": ("Entries found, by layer.", "layer",
        {kind: f"{kind}_hits" for kind in ("memory", "disk", "sealed", "remote")}),
    "kdsl_tune_candidates": ("Configurations that the tuner judged, by what became of them.",
        "status", {status: f"candidates_{status}" for status in metrics.STATUSES}),
}  # fmt: skip
_PLAIN = {
    "kdsl_build_failures": ("Kernels that the assembler refused.", "build_failures"),
    "kdsl_cache_misses": ("Entries that no layer had.", "misses"),
    "kdsl_cache_evictions": ("Entries removed for room.", "evictions"),
    "kdsl_cache_quarantined": ("Entries whose checksum was wrong.", "bad_entries"),
    "kdsl_kernels_loaded": ("Kernels loaded on a device.", "kernels_loaded"),
    "kdsl_frozen_builds": ("Builds that a frozen process needed.", "late_builds"),
    "kdsl_pin_mismatches": ("Kernels that differ from their pin.", "pin_mismatches"),
}


class Collector:
    """Reads the counters when Prometheus asks; nothing is added to builds and launches.

    Metrics: `kdsl_builds` and `kdsl_build_seconds` by the assembler, `kdsl_launches` by kernel,
    and those of the tables above; all since the start of the process.
    """

    def describe(self) -> Iterator[Metric]:
        """The same: a registry learns the names from it, and refuses to have them twice."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Every metric, with its value now."""
        core, values = _client().core, metrics.snapshot()
        yield core.CounterMetricFamily("kdsl_builds", "Kernels assembled.", values["builds"])
        seconds, what = values["build_seconds"], "Wall time of the assembler."
        yield core.CounterMetricFamily("kdsl_build_seconds", what, seconds)
        for name, (what, counter) in _PLAIN.items():
            yield core.CounterMetricFamily(name, what, values[counter])
        for name, (what, label, counters) in _LABELLED.items():
            named = ((value, values[counter]) for value, counter in counters.items())
            yield _by_label(core, name, what, label, named)
        launches = _launches().items()
        yield _by_label(core, "kdsl_launches", "Launches on a GPU.", "kernel", launches)


def register(registry: CollectorRegistry | None = None) -> Collector:
    """Have a registry, by default the process's own, collect the counters; once for each registry.

    Raises: ArgumentError K755 without the package prometheus_client; ValueError, of that package,
    when the registry has them already.
    """
    collector = Collector()
    client = _client()
    (client.REGISTRY if registry is None else registry).register(collector)
    return collector


def text() -> str:
    """The counters in Prometheus's text format.

    Raises: ArgumentError K755.
    """
    found: bytes = _client().generate_latest(_alone())
    return found.decode()


def write(path: str | os.PathLike[str]) -> None:
    """The same as a file that is renamed into its place, for the textfile collector of a node.

    Raises: ArgumentError K755, OSError.
    """
    _client().write_to_textfile(os.fspath(path), _alone())


def _alone() -> CollectorRegistry:
    registry: CollectorRegistry = _client().CollectorRegistry()
    register(registry)
    return registry


def _launches() -> Counter[str]:
    from kdsl_runtime import launch

    counted: Counter[str] = Counter()
    for kernel in launch.loaded_kernels():
        counted[kernel.module.entry] += kernel.launches
    return counted


def _by_label(
    core: Any, name: str, what: str, label: str, values: Iterable[tuple[str, float]]
) -> Metric:
    family: Metric = core.CounterMetricFamily(name, what, labels=[label])
    for value, count in values:
        family.add_metric([value], count)  # type: ignore[attr-defined] # of counters alone
    return family


def _client() -> ModuleType:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError as problem:
        raise ArgumentError(
            f"metrics for Prometheus need the package prometheus_client: {problem}",
            code="K755",
            fix="pip install 'kdsl-runtime[metrics]', or read kr.metrics.snapshot()",
        ) from problem
    return prometheus_client
