"""The space of row-wise kernels: what it lists is built, launched and right without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kdsl_core.errors import ArgumentError
from kdsl_fuse.kernels.rows_space import OPERATORS, SPACE, config_of, first
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune import Effort, Predicted, load_space
from kdsl_runtime.tune.candidate import build_candidate


@pytest.mark.parametrize("columns", [128, 1000, 8192, 131072])
def test_listed_configurations(columns: int) -> None:
    """The chosen one is among them, each holds its rows, and there are some to choose from."""
    problem = Problem.of(op="softmax", m=1 << 12, n=columns, dtype="bf16")
    found = [config_of(problem, point) for point in SPACE.points(problem)]
    chosen = first(problem).config
    assert chosen in [replace(c, partial=chosen.partial) for c in found]
    assert all(c.columns * max(c.staged + c.kept, 1) >= columns for c in found)
    assert any(not c.staged for c in found)
    assert any(c.staged and not c.ring for c in found) == (columns > 8192)
    assert any(c.ring for c in found) == (columns > 73728)
    assert len(found) >= 8


@pytest.mark.parametrize("op", OPERATORS)
def test_candidates_build_and_are_right(op: str) -> None:
    """Assembled for sm_90a, and right in the simulator, with and without a cluster."""
    problem = Problem.of(op=op, m=3, n=1000, dtype="f16")
    for cluster, lanes, staged in ((1, 32, False), (2, 32, False), (1, 64, True), (2, 32, True)):
        config = {"lanes": lanes, "vectors": 4 // cluster, "cluster": cluster, "groups": 1,
                  "together": 1, "load": "cs", "store": "",
                  "staged": staged, "ring": False}  # fmt: skip
        built = build_candidate(SPACE, problem, config, "sm_90a")
        assert built.code
        assert not built.reason
        (trial,) = Predicted("NVIDIA H200").measure(SPACE, problem, [config], Effort(1))
        assert trial.status == "right"


def test_unknown_operators_are_refused() -> None:
    """With the names that there are."""
    with pytest.raises((ArgumentError, KeyError)):
        SPACE.points(Problem.of(op="median", m=3, n=1000, dtype="f16"))


def test_it_is_found_by_name() -> None:
    """`kdsl tune rows` finds it."""
    assert load_space("rows").name == "rows"
