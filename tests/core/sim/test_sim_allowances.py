"""Comments allow hazards at their own line, with a reason, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core import sim
from kdsl_core.errors import StagingError
from kdsl_core.sim import allowances


def floats(n: int) -> np.ndarray[Any, Any]:
    """Zeros."""
    return np.zeros(n, np.float32)


def run(kernel: Any, block: int = 64, **options: Any) -> kd.Simulated:
    """A run of one block that collects hazards."""
    options.setdefault("on_hazard", "collect")
    return kd.simulate(kernel, grid=1, block=block, args=(floats(64),), **options)


@kd.kernel
def counts(x: kd.Tensor["f32", "n"]):
    """Threads overwrite each other's number, which the author knows."""
    i = kd.thread_idx()[0]
    x[0] = i.to(kd.f32)  # kdsl: allow race: any thread's number will do


@kd.kernel
def either_party(x: kd.Tensor["f32", "n"]):
    """The comment stands at the line of the party that came first."""
    i = kd.thread_idx()[0]
    t = kd.smem(kd.f32, 64, name="t")
    t[i] = x[i]  # kdsl: allow uninit, race: readers take old or new
    x[i] = t[63 - i]


@kd.kernel
def over_lines(x: kd.Tensor["f32", "n"]):
    """An expression of several lines: the comment may stand at any of them."""
    i = kd.thread_idx()[0]
    t = kd.smem(kd.f32, 64, name="t")
    t[i] = x[i]
    x[i] = t[
        63 - i  # kdsl: allow race: for the test
    ]


@kd.kernel
def another_hazard(x: kd.Tensor["f32", "n"]):
    """The comment allows what does not happen here."""
    i = kd.thread_idx()[0]
    x[0] = i.to(kd.f32)  # kdsl: allow uninit: not the hazard of this line


@kd.kernel
def in_a_string(x: kd.Tensor["f32", "n"]):
    """Text is no comment."""
    i = kd.thread_idx()[0]
    x[0] = i.to(kd.f32) if "# kdsl: allow race: no" else 0.0


@kd.kernel
def no_reason(x: kd.Tensor["f32", "n"]):
    """The comment does not say why."""
    x[0] = kd.thread_idx()[0].to(kd.f32)  # kdsl: allow race


@kd.kernel
def no_hazard_named(x: kd.Tensor["f32", "n"]):
    """The comment names no hazard."""
    x[0] = kd.thread_idx()[0].to(kd.f32)  # kdsl: allow rase: a slip of the pen


@kd.kernel
def deadlocks(x: kd.Tensor["f32", "n"]):
    """Half of the warps wait for ever."""
    if kd.warp_idx() == 0:
        kd.named_barrier(1, 64).sync()  # kdsl: allow deadlock: it is only a test


@kd.kernel
def races_and_allows_deadlock(x: kd.Tensor["f32", "n"]):
    """What cannot be allowed is said where the line is looked at."""
    x[0] = kd.thread_idx()[0].to(kd.f32)  # kdsl: allow race, deadlock: both


@kd.func
def helper(x: Any, i: Any) -> None:
    """Allows its own race, also where others call it."""
    x[0] = i.to(kd.f32)  # kdsl: allow race: in the helper


@kd.kernel
def calls_it(x: kd.Tensor["f32", "n"]):
    """The comment is at the line of the helper."""
    helper(x, kd.thread_idx()[0])


@kd.kernel
def allows_the_call(x: kd.Tensor["f32", "n"]):
    """A call is no party: a comment there allows nothing of what is inside."""
    write(x, kd.thread_idx()[0])  # kdsl: allow race: of all that the helper does


@kd.func
def write(x: Any, i: Any) -> None:
    """Races."""
    x[0] = i.to(kd.f32)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (counts, "any thread's number will do"),
        (either_party, "readers take old or new"),
        (over_lines, "for the test"),
        (calls_it, "in the helper"),
    ],
)
def test_allowed(kernel: Any, reason: str) -> None:
    """It is listed apart with its reason, is no hazard, and is not raised."""
    result = run(kernel, on_hazard="raise")
    assert result.hazards == () and result.warnings == ()
    assert {(hazard.code, hazard.reason) for hazard in result.allowed} == {("race", reason)}
    assert f"allowed ({reason}): race at test_sim_allowances.py:" in str(result)
    assert result.to_dict()["allowed"][0]["allowed"] == reason


@pytest.mark.parametrize("kernel", [another_hazard, in_a_string, allows_the_call])
def test_not_allowed(kernel: Any) -> None:
    """Another hazard's comment, a string and the line of a call allow nothing."""
    result = run(kernel)
    assert [hazard.code for hazard in result.hazards] == ["race"] and not result.allowed
    assert len(result.warnings) == (kernel is not in_a_string)


@pytest.mark.parametrize(
    ("kernel", "code", "words"),
    [
        (no_reason, "K530", "does not say why"),
        (races_and_allows_deadlock, "K531", "the run cannot go on"),
        (no_hazard_named, "K532", "names rase, which is no hazard"),
    ],
)
def test_wrong_comments(kernel: Any, code: str, words: str) -> None:
    """A comment without a reason, or of what is no hazard or cannot be allowed, is an error."""
    with pytest.raises(StagingError) as caught:
        run(kernel)
    assert caught.value.code == code and words in caught.value.message
    assert "test_sim_allowances.py:" in caught.value.message and "# kdsl: allow" in str(
        caught.value
    )


def test_a_deadlock_is_never_allowed() -> None:
    """The comment at its line is not even looked at, and is of no use."""
    result = run(deadlocks)
    assert [hazard.code for hazard in result.hazards] == ["deadlock"]
    (warning,) = result.warnings
    assert "nothing was found that the comment allows: deadlock: it is only a test" in warning


def test_unused_comments_of_the_kernel_only() -> None:
    """What allowed nothing in this run is a warning; comments of other kernels are not."""
    result = run(counts, block=1)
    (warning,) = result.warnings
    assert warning.endswith("nothing was found that the comment allows: race: any thread's number"
                            " will do")  # fmt: skip
    assert f"warning: {warning}" in str(result)


def test_no_source_is_read_without_a_hazard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean run pays nothing for comments."""

    def refuse(file: str) -> list[str]:
        raise AssertionError(f"{file} was read")

    monkeypatch.setattr(allowances, "source_lines", refuse)
    assert run(counts, block=1).hazards == ()
    with pytest.raises(AssertionError, match="was read"):
        run(counts)


def test_counted_apart() -> None:
    """Allowed hazards count like others, and do not hide those of other lines."""

    @kd.kernel
    def both(x: kd.Tensor["f32", "n"]):
        i = kd.thread_idx()[0]
        x[0] = i.to(kd.f32)  # kdsl: allow race: first
        x[1] = i.to(kd.f32)

    result = run(both)
    assert isinstance(result, sim.Result)
    assert [h.code for h in result.hazards] == [h.code for h in result.allowed] == ["race"]
    assert result.allowed[0].lines != result.hazards[0].lines
    assert str(result).splitlines()[0].endswith("1 hazard, 1 allowed")
