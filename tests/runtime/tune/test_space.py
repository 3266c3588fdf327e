"""Spaces: which configurations there are, why others are out, how another process finds them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.errors import ArgumentError
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune import load_space, random_data
from kdsl_runtime.tune.candidate import build_candidate, workload

SMALL = Problem.of(n=128, dtype="f32")


def test_constraints_keep_their_reasons(spaces):
    """128 elements take no block of 2048, nor 64 threads with 4 elements each."""
    accepted, rejected = spaces("SPACE").examine(SMALL)
    assert [tuple(c.values()) for c in accepted] == [(32, 1), (32, 2), (32, 4), (64, 1), (64, 2)]
    reasons = {tuple(r.config.values()): r.reason for r in rejected}
    assert reasons[64, 4] == "128 elements are no multiple of 256"
    assert len(accepted) + len(rejected) == 9


def test_a_constraint_may_raise(spaces):
    """What the kernel's own checks say is a reason, too."""

    def checked(problem, config):
        if config["step"] > 1:
            kd.spec("f32", 4, strides=(1, 1))

    space = replace(spaces("SPACE"), constraints=(checked,))
    accepted, rejected = space.examine(SMALL)
    assert {c["step"] for c in accepted} == {1}
    assert all(r.reason.startswith("ArgumentError[K601]: expected one stride") for r in rejected)


def test_model_orders(spaces):
    """The smallest prediction comes first."""
    space = replace(spaces("SPACE"), model=lambda problem, config: -config["step"])
    assert [c["step"] for c in space.points(SMALL)] == [4, 2, 2, 1, 1]


def test_values_may_depend_on_the_problem(spaces):
    """An option's values are a function, or the whole list of configurations is."""
    options = {"threads": lambda problem: (problem.size("n") // 4,), "step": (1,)}
    assert replace(spaces("SPACE"), options=options).points(SMALL) == [{"threads": 32, "step": 1}]
    listed = replace(spaces("SPACE"), options=lambda problem: [{"threads": 64, "step": 2}])
    assert listed.points(SMALL) == [{"threads": 64, "step": 2}]


def test_other_options_are_refused(spaces):
    """An entry of an older space cannot serve."""
    assert "not threads, step" in spaces("SPACE").refusal(SMALL, {"threads": 32})
    assert spaces("SPACE").refusal(SMALL, {"threads": 32, "step": 1}) is None


def test_nothing_left(spaces):
    """A problem that no configuration serves is an error with the reasons."""
    with pytest.raises(ArgumentError, match="31 elements are no multiple of 32") as caught:
        spaces("SPACE").points(Problem.of(n=31, dtype="f32"))
    assert caught.value.code == "K762"


def test_another_process_finds_it(spaces):
    """A space travels as its place, or by its functions."""
    space = spaces("SPACE")
    assert pickle.loads(pickle.dumps(space)) is space
    moved = pickle.loads(pickle.dumps(replace(space, name="moved", origin=None)))
    assert (moved.name, moved.calls) == ("moved", space.calls)


def test_kernels_by_name():
    """Packages name their spaces as entry points."""
    assert load_space("gemm_sm90").origin == "kdsl_fuse.kernels.gemm_sm90_space:SPACE"


def test_a_changed_space_does_not_travel(spaces):
    """Another process would find the old one."""
    with pytest.raises(ArgumentError, match="changed after it was loaded") as caught:
        pickle.dumps(replace(spaces("SPACE"), bound=1.0))
    assert caught.value.code == "K769"


@pytest.mark.parametrize(
    "words", ["no_such_kernel", "no_such_module:SPACE", "/no/such/file.py:SPACE", "os:NO", "os:sep"]
)
def test_what_names_no_space(words):
    """Each way of being wrong has its reason."""
    with pytest.raises(ArgumentError) as caught:
        load_space(words)
    assert caught.value.code == "K763"


def test_data_is_the_same_every_time(spaces):
    """Also in another process: it comes from a fixed seed. Results are nobody's zeros."""
    first, again = (workload(spaces("SPACE"), SMALL) for _ in range(2))
    assert first is again
    specs = {"i": kd.spec("i8", 64), "u": kd.spec("u8", 64), "b": kd.spec("boolean", 64)}
    data = random_data(SMALL, specs, np.random.default_rng(0))
    assert data["i"].min() < 0 <= data["u"].min() and set(data["b"]) == {False, True}
    assert {name: a.dtype for name, a in data.items()} == {
        name: s.dtype.numpy for name, s in specs.items()
    }


@pytest.mark.parametrize(
    ("got", "error"), [([2.0, 4.0], 0.0), ([2.0, 5.0], 0.25), ([np.nan, 4.0], np.inf)]
)
def test_error_is_against_the_largest(spaces, got, error):
    """NaN is infinitely wrong."""
    work = replace(workload(spaces("SPACE"), SMALL), expected={"y": np.array([2.0, 4.0])})
    assert work.error({"y": np.array(got)}) == error


def test_building_needs_no_gpu(spaces):
    """Equal code has an equal hash; what cannot be built says why."""
    space, target = spaces("SPACE"), "sm_90a"
    one, same, other = (
        build_candidate(space, SMALL, {"threads": t, "step": s}, target)
        for t, s in ((32, 1), (32, 1), (32, 2))
    )
    assert one.code == same.code != other.code and not one.reason
    large = build_candidate(space, SMALL, {"threads": 2048, "step": 1}, target)
    assert large.reason.startswith("ArgumentError[K621]") and not large.code


def test_ptx_is_enough_without_an_assembler(spaces, monkeypatch):
    """Where there is none, code is the PTX."""
    from kdsl_core.errors import BuildError
    from kdsl_runtime.tune import candidate

    def nothing() -> None:
        raise BuildError("no PTX assembler", code="K701")

    config = {"threads": 32, "step": 1}
    assembled = build_candidate(spaces("SPACE"), SMALL, config, "sm_90a")
    monkeypatch.setattr(candidate, "default_toolchain", nothing)
    assert candidate.toolchain_id() == "none"
    found = build_candidate(spaces("SPACE"), SMALL, config, "sm_90a")
    assert found.code not in ("", assembled.code)
