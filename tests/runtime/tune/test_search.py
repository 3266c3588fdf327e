"""The search: rungs, resuming, budgets, and candidates that break."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kdsl_core.errors import ArgumentError
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune import (
    Budget,
    Inline,
    Journal,
    LocalProcesses,
    Predicted,
    WorkerLost,
    find_best,
)

TIMES = {(32, 1): 5.0, (32, 2): 4.0, (32, 4): 3.0, (64, 1): 2.0, (64, 2): 1.0}
TIME_LIMIT_S = 3.0


def search(space, backend, problem, executor=None, **options):
    """The outcome for one problem."""
    (outcome,) = find_best(space, [problem], backend, executor=executor or Inline(), **options)
    return outcome


def test_best_are_compared_by_turns(spaces, problem, stated):
    """All alone and quickly, then the three fastest together; what is wrong cannot win."""
    backend = stated(TIMES)
    outcome = search(spaces("SPACE"), backend, problem)
    assert outcome.winner.config == {"threads": 64, "step": 2}
    assert [turns for _, turns in backend.calls] == [4] * 6 + [16]
    assert backend.calls[-1][0] == [(64, 2), (64, 1), (32, 4)]
    status = {tuple(r.config.values()): (r.trial.status, r.rung) for r in outcome.records}
    assert status[64, 4] == ("wrong", 0) and status[2048, 1] == ("refused", 0)
    assert status[64, 2] == ("right", 1) and status[32, 1] == ("right", 0)
    assert outcome.records[0] == outcome.winner and outcome.left == 0
    reasons = outcome.reasons
    assert reasons["cannot be: 4096 elements are no multiple of 8192"] == 1
    assert reasons["wrong: error 1.00, allowed 0"] == 1


def test_no_winner(spaces, problem, stated):
    """When all are wrong."""
    assert search(spaces("SPACE"), stated({}), problem).winner is None


def test_resumed_run_measures_only_what_is_new(spaces, problem, stated, tmp_path):
    """The journal's records stand as long as the code is the same."""
    path, space = tmp_path / "journal.jsonl", spaces("SPACE")
    with Journal(path) as journal:
        first = search(space, stated(TIMES), problem, journal=journal, budget=Budget(points=4))
    lines = path.read_text().count("\n")
    with Journal(path) as journal:
        again = stated(TIMES)
        assert search(space, again, problem, journal=journal, budget=Budget(points=4)) == first
        assert again.calls == []
    assert path.read_text().count("\n") == lines
    with Journal(path) as journal:
        more = stated(TIMES)
        outcome = search(space, more, problem, journal=journal)
    assert [keys for keys, _ in more.calls] == [[(64, 2)], [(64, 4)], [(64, 2), (64, 1), (32, 4)]]
    assert outcome.winner.config == {"threads": 64, "step": 2}


def test_changed_code_is_measured_again(spaces, problem, stated):
    """A record of other code is none."""
    journal, space = Journal(), spaces("SPACE")
    search(space, stated(TIMES), problem, journal=journal)
    for record in list(journal):
        journal.add(replace(record, code=f"old {record.code}"))
    again = stated(TIMES)
    search(space, again, problem, journal=journal)
    assert len(again.calls) == 7


def test_measurements_follow_predictions_and_stay(spaces, problem, stated):
    """What was only predicted is measured; what was measured is not predicted."""
    journal, space = Journal(), spaces("SPACE")
    guess = stated({key: 9 - us for key, us in TIMES.items()}, rungs=(1,), name="predicted")
    assert search(space, guess, problem, journal=journal).winner.config["step"] == 1
    measuring = stated(TIMES)
    measured = search(space, measuring, problem, journal=journal)
    assert measured.winner.config == {"threads": 64, "step": 2}
    assert len(measuring.calls) == 7
    guess.calls.clear()
    assert search(space, guess, problem, journal=journal).winner == measured.winner
    assert guess.calls == []


def test_points_are_the_models_first(spaces, problem, stated):
    """Of a budget of points the model spends the best ones."""
    space = replace(spaces("SPACE"), model=lambda problem, config: -config["threads"])
    outcome = search(space, stated(TIMES), problem, budget=Budget(points=3))
    tried = {tuple(r.config.values()) for r in outcome.records}
    assert tried == {(2048, 1), (2048, 2), (64, 1)}


def test_time_is_over(spaces, problem, stated):
    """What was not looked at is counted, and nothing is."""
    outcome = search(spaces("SPACE"), stated(TIMES), problem, budget=Budget(seconds=0.0))
    assert (outcome.records, outcome.left, outcome.winner) == ((), 8, None)


def test_problems_of_a_class_share_records(spaces, stated):
    """The second problem of a class is known from the first."""
    space = replace(spaces("SPACE"), shape_class=lambda problem: Problem.of(n=4096, dtype="f32"))
    problems = [Problem.of(n=n, dtype="f32") for n in (4096, 12288)]
    told = []
    backend = stated(TIMES)
    outcomes = list(find_best(space, problems, backend, executor=Inline(), tell=told.append))
    assert outcomes[0].winner == outcomes[1].winner is not None
    assert {record.problem for o in outcomes for record in o.records} == {problems[0]}
    last = [p for p in told if p.problem == problems[1]][-1]
    assert last.done <= last.total


class Breaking(Inline):
    """An executor that loses every measurement with one configuration in it."""

    def __init__(self, bad, after: int) -> None:
        self.bad, self.after = bad, after

    def submit(self, function, /, *arguments):
        """Run, or lose."""
        future = super().submit(function, *arguments)
        measured = function.__name__ == "_measure"
        if measured and arguments[-1].turns >= self.after and self.bad in arguments[-2]:
            lost = type(future)()
            lost.set_exception(WorkerLost("the process ended by SIGSEGV"))
            return lost
        return future


def test_broken_in_a_group_costs_only_itself(spaces, problem, stated):
    """The group is taken apart: the others are timed, and one of them wins."""
    backend = stated(TIMES)
    fastest = {"threads": 64, "step": 2}
    outcome = search(spaces("SPACE"), backend, problem, executor=Breaking(fastest, after=16))
    assert outcome.winner.config == {"threads": 64, "step": 1}
    (broken,) = [r for r in outcome.records if r.config == fastest]
    assert broken.trial.status == "broken" and "SIGSEGV" in broken.trial.reason


def test_no_problem_is_passed_over(spaces, stated):
    """One that nothing serves is an error."""
    with pytest.raises(ArgumentError, match="K762"):
        search(spaces("SPACE"), stated(TIMES), Problem.of(n=31, dtype="f32"))


def test_processes_survive_their_candidates(spaces, problem):
    """One that dies, one that hangs and one that is wrong; the right ones are all judged."""
    executor = LocalProcesses.of_cores(2, TIME_LIMIT_S)
    try:
        outcome = search(spaces("MISHAPS"), Predicted("NVIDIA H200"), problem, executor)
    finally:
        executor.close()
    trials = {(r.config["mishap"], r.config["step"]): r.trial for r in outcome.records}
    assert {key: trial.status for key, trial in trials.items()} == {
        ("", 1): "right", ("", 4): "right", ("wrong", 1): "wrong",
        ("dies", 1): "broken", ("hangs", 1): "broken",
    }  # fmt: skip
    assert "SIGABRT" in trials["dies", 1].reason
    assert "no answer within" in trials["hangs", 1].reason
    assert outcome.winner.config == {"threads": 32, "step": 1, "mishap": ""}
