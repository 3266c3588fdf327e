"""The pytest plugin in projects of its own, as a user would write them, each in a process."""

from __future__ import annotations

import importlib.metadata

import pytest

pytest_plugins = ["pytester"]

KERNEL = """
import numpy as np
import kdsl_core as kd
import pytest

@kd.kernel
def reverse(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], sync: kd.Static = True):
    tile = kd.smem(kd.f32, 64, name="tile")
    i = kd.thread_idx()[0]
    tile[i] = x[i]
    if sync:
        kd.sync_threads()
    y[i] = tile[63 - i]

X = np.arange(64, dtype=np.float32)
Y = np.zeros_like(X)
"""


def test_entry_point() -> None:
    """pytest finds the plugin by the entry point of the installed package."""
    found = {point.name: point.value for point in importlib.metadata.entry_points(group="pytest11")}
    assert found["kdsl"] == "kdsl_core.testing.plugin"


def test_three_lines_pass(pytester: pytest.Pytester) -> None:
    """A test of three lines; linear and two shuffled orders by default."""
    pytester.makepyfile(
        KERNEL
        + """
def test_reverse(simulate):
    simulate(reverse, 1, 64, X, Y).equals(X[::-1])

def test_orders(simulate):
    assert len(simulate(reverse, 1, 64, X, Y).results) == 3
"""
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_failures_show_the_report(pytester: pytest.Pytester) -> None:
    """The hazard's paragraph, or the first wrong coordinates, below the line of the test."""
    pytester.makepyfile(
        KERNEL
        + """
def test_race(simulate):
    simulate(reverse, 1, 64, X, Y, sync=False).equals(X[::-1])

def test_wrong(simulate):
    simulate(reverse, 1, 64, X, Y).equals(X)
"""
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "> *simulate(reverse, 1, 64, X, Y, sync=False).equals(*",
            "E *order linear:",
            "E *race: thread (0, 0, 0) in warp 0 of block (0, 0, 0) reads tile[[]63[]]*",
            "E *fix: put kd.sync_threads()*",
            "> *simulate(reverse, 1, 64, X, Y).equals(X)",
            "E *64 of 64 elements of y (float32) differ from what is expected",
            "E *y[[]0[]]: got 63.0, expected 0.0, off by 63",
        ]
    )
    assert "kdsl_core/testing" not in result.stdout.str()


def test_seeds_of_settings_and_marker(pytester: pytest.Pytester) -> None:
    """The setting counts for all tests, the marker for one; strict markers know it."""
    pytester.makeini("[pytest]\naddopts = --strict-markers\nkdsl_seeds = 3 4 5")
    pytester.makepyfile(
        KERNEL
        + """
def orders(simulate):
    return list(simulate(reverse, 1, 64, X, Y).results)

def test_setting(simulate):
    assert orders(simulate) == ["linear", *(f"shuffle, seed {n}" for n in (3, 4, 5))]

@pytest.mark.kdsl_seeds(9)
def test_marker(simulate):
    assert orders(simulate) == ["linear", "shuffle, seed 9"]

@pytest.mark.kdsl_seeds()
def test_linear_only(simulate):
    assert orders(simulate) == ["linear"]
"""
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=3)


def test_seeds_that_are_no_numbers(pytester: pytest.Pytester) -> None:
    """K534 names the setting."""
    pytester.makeini("[pytest]\nkdsl_seeds = many")
    pytester.makepyfile("def test_it(simulate):\n    pass")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*K534*kdsl_seeds expects whole numbers, got many*"])
