"""Problems: what they are made of, and how far apart they are."""

from __future__ import annotations

import math

import pytest

from kdsl_core.errors import ArgumentError
from kdsl_runtime.problem import Problem


def test_text_is_read_back():
    """`parse` is the inverse of `str`; sizes are numbers, traits words."""
    problem = Problem.parse("m=512, n=64,dtype=bf16")
    assert problem == Problem.of(m=512, n=64, dtype="bf16")
    assert Problem.parse(str(problem)) == problem
    assert (problem.size("m"), problem["dtype"]) == (512, "bf16")


def test_order_does_not_count():
    """The same values are the same problem, also as a key."""
    assert {Problem.of(m=1, n=2): "found"}[Problem.of(n=2, m=1)] == "found"
    assert Problem.of(m=1) != Problem.of(m=2)
    assert Problem.of(m=1) != "m=1"


@pytest.mark.parametrize(
    "text", ["", "m", "m=", "=1", "m=0", "m=-4", "m=1,m=2", "m=1,", "two words=1"]
)
def test_what_is_no_problem_is_refused(text):
    """Sizes begin at 1, every value has one name."""
    with pytest.raises(ArgumentError) as caught:
        Problem.parse(text)
    assert caught.value.code == "K760"


def test_a_size_that_is_missing_or_a_word_is_named():
    """`size` gives numbers only."""
    for name in ("k", "dtype"):
        with pytest.raises(ArgumentError, match=name) as caught:
            Problem.of(m=1, dtype="f32").size(name)
        assert caught.value.code == "K760"
    with pytest.raises(ArgumentError):
        Problem.of(m=True)


def test_distance_is_the_largest_factor():
    """In powers of two, the same both ways; other traits or names are infinitely far."""
    here = Problem.of(m=1024, n=512, dtype="bf16")
    assert here.distance(here) == 0
    there = Problem.of(m=512, n=2048, dtype="bf16")
    assert here.distance(there) == there.distance(here) == 2
    assert here.distance(Problem.of(m=1024, n=512, dtype="f16")) == math.inf
    assert here.distance(Problem.of(m=1024, n=512)) == math.inf
    assert here.distance(Problem.of(m=1024, n="512", dtype="bf16")) == math.inf
