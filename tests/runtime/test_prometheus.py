"""The counters as Prometheus reads them."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import kdsl_runtime as kr
from kdsl_core.errors import ArgumentError
from kdsl_runtime import launch, metrics
from kdsl_runtime.cache import Cache, Entry


@pytest.fixture(autouse=True)
def _from_zero(monkeypatch):
    metrics.reset()
    monkeypatch.setattr(launch, "_loaded", {})


def values() -> dict[tuple[str, ...], float]:
    """Each sample by its name and labels, as a scraper parses it."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(kr.prometheus.text())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_every_counter_is_there():
    """Whatever `kr.metrics` counts has a metric, and each metric a meaning."""
    for number, name in enumerate(metrics.snapshot(), 1):
        metrics.add(name, number)
    shown = values()
    counted = metrics.snapshot()
    assert sorted(shown.values()) == sorted(counted.values())
    assert shown["kdsl_builds_total",] == counted["builds"]
    assert shown["kdsl_cache_hits_total", "sealed"] == counted["sealed_hits"]
    assert shown["kdsl_frozen_builds_total",] == counted["late_builds"]
    assert all("# HELP " + name in kr.prometheus.text() for (name, *_) in shown)


def test_hits_by_layer(tmp_path):
    """What a cache does shows at once."""
    for _ in range(2):
        cache = Cache.at(tmp_path)
        for _ in range(2):
            cache.get_or_build("ab" * 32, lambda: Entry({}, b"1"))
    shown = values()
    assert shown["kdsl_cache_misses_total",] == 1
    assert shown["kdsl_cache_hits_total", "memory"] == 2
    assert shown["kdsl_cache_hits_total", "disk"] == 1


def test_launches_by_kernel(monkeypatch):
    """Kernels of one name are counted together, whatever their variant or device."""
    loaded = [
        SimpleNamespace(module=SimpleNamespace(entry=name), launches=count)
        for name, count in (("gemm", 3), ("gemm", 4), ("add", 5))
    ]
    monkeypatch.setattr(launch, "_loaded", dict(enumerate(loaded)))
    shown = values()
    assert shown["kdsl_launches_total", "gemm"] == 7 and shown["kdsl_launches_total", "add"] == 5


def test_registries():
    """A registry collects what is counted after, and refuses to have it twice."""
    registry = CollectorRegistry()
    kr.prometheus.register(registry)
    metrics.add("builds", 2)
    assert registry.get_sample_value("kdsl_builds_total") == 2
    with pytest.raises(ValueError, match="Duplicated"):
        kr.prometheus.register(registry)


def test_text_files(tmp_path):
    """A node's textfile collector finds the same text."""
    kr.prometheus.write(tmp_path / "kdsl.prom")
    lines = (tmp_path / "kdsl.prom").read_text().splitlines()
    assert "kdsl_cache_misses_total 0.0" in lines
    assert [path.name for path in tmp_path.iterdir()] == ["kdsl.prom"]


def test_without_the_package(monkeypatch):
    """The extra is named."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for ask in (kr.prometheus.text, kr.prometheus.register):
        with pytest.raises(ArgumentError) as caught:
            ask()
        assert caught.value.code == "K755" and "[metrics]" in caught.value.fix
