"""The whole campaign: every mutant of every case, two processes, and a table of what became of it.

python3 dev.py mutants [--kernel PATTERN] [--operator PATTERN] [--sample N] [--json FILE] [--clean]
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from mutants.cases import cases
from mutants.clean import CleanRun, clean
from mutants.subject import Mutant
from mutants.trial import OPERATORS, ORDERS, Bench, Outcome, bench

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
RESULTS = ("caught", "refused", "wrong", "equivalent", "missed")
_SHARES = 16  # of a case's mutants, each of which one process takes at a time


@dataclass(frozen=True)
class Equivalent:
    """Mutants that compute what their kernel does, in patterns, and why in one line.

    `kernel` are patterns of cases, `operator` of operators, `site` of `Mutant.site`, and `line` one
    of the author's line.
    """

    kernel: str | list[str]
    operator: str | list[str]
    site: str | list[str]
    proof: str
    line: str = "*"

    def holds(self, case: str, mutant: Mutant | Outcome) -> bool:
        """Whether a mutant of a case is one of them."""
        return (
            _matches(case, self.kernel)
            and _matches(mutant.operator, self.operator)
            and _matches(mutant.site, self.site)
            and _matches(mutant.line, self.line)
        )


def _matches(text: str, patterns: str | list[str]) -> bool:
    """Whether a text has one of some patterns."""
    several = [patterns] if isinstance(patterns, str) else patterns
    return any(fnmatchcase(text, pattern) for pattern in several)


@cache
def equivalents() -> tuple[Equivalent, ...]:
    """The table of mutants that change nothing."""
    rows = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["equivalent"]
    return tuple(Equivalent(**row) for row in rows)


def judged(name: str, numbers: Sequence[int]) -> list[Outcome]:
    """The outcomes of some mutants of a case; those argued to be equivalent are named so."""
    place = bench(name)
    every = list(place.mutants())
    return [_judged(place, number, every[number]) for number in numbers]


def _judged(place: Bench, number: int, mutant: Mutant) -> Outcome:
    """The outcome with "same" told apart: equivalent by an argument, or missed.

    Mutants that the table argues run in one of the orders, each row's by turns in all of them: they
    would take most of the campaign's time, as nothing ends them early.
    """
    argued = any(row.holds(place.name, mutant) for row in equivalents())
    orders = (ORDERS[number % len(ORDERS)],) if argued else ORDERS
    found = place.judge(number, mutant, orders)
    if found.result != "same":
        return found
    return replace(found, result="equivalent" if argued else "missed")


def chosen(kernel: str, operator: str, sample: int | None = None) -> list[tuple[str, list[int]]]:
    """The mutants of the cases and operators of two patterns; `sample` of them, always the same."""
    wanted = [name for name in cases() if fnmatchcase(name, kernel)]
    every = [
        (name, number)
        for name in wanted
        for number, mutant in enumerate(bench(name).mutants())
        if fnmatchcase(mutant.operator, operator)
    ]
    if sample is not None and sample < len(every):
        every = sorted(random.Random(0).sample(every, sample))
    found: dict[str, list[int]] = {}
    for name, number in every:
        found.setdefault(name, []).append(number)
    return list(found.items())


def judged_share(name: str, operator: str, share: int) -> list[Outcome]:
    """The outcomes of one of the shares of a case's mutants of some operators."""
    every = enumerate(bench(name).mutants())
    numbers = [number for number, mutant in every if fnmatchcase(mutant.operator, operator)]
    return judged(name, numbers[share::_SHARES])


def campaign(kernel: str, operator: str, processes: int = 2) -> Iterator[Outcome]:
    """The outcomes of all mutants of the cases and operators of two patterns, as they come."""
    wanted = [name for name in cases() if fnmatchcase(name, kernel)]
    with ProcessPoolExecutor(processes) as pool:
        shares = [
            pool.submit(judged_share, name, operator, share)
            for name in reversed(wanted)  # the last ones take longest
            for share in range(_SHARES)
        ]
        for done in as_completed(shares):
            yield from done.result()


def sampled(work: Iterable[tuple[str, list[int]]]) -> Iterator[Outcome]:
    """The outcomes of some mutants, in this process."""
    for name, numbers in work:
        yield from judged(name, numbers)


def table(outcomes: Sequence[Outcome], by: str) -> str:
    """A Markdown table: a row for each kernel or operator, a column for each result."""
    counts = Counter((getattr(outcome, by), outcome.result) for outcome in outcomes)
    rows = list(dict.fromkeys(getattr(outcome, by) for outcome in outcomes))
    lines = [f"| {by} | mutants | {' | '.join(RESULTS)} |", "|---|" + "---|" * (len(RESULTS) + 1)]
    for row in [*rows, "all"]:
        each = [
            sum(counts[name, result] for name in (rows if row == "all" else [row]))
            for result in RESULTS
        ]
        lines.append(f"| {row} | {sum(each)} | {' | '.join(map(str, each))} |")
    return "\n".join(lines)


def report(outcomes: Sequence[Outcome], seconds: float) -> str:
    """What the campaign found, as text."""
    codes = Counter(o.code for o in outcomes if o.result == "caught")
    parts = [
        table(outcomes, "case"),
        table(outcomes, "operator"),
        "caught by " + ", ".join(f"{code} {n}" for code, n in codes.most_common()),
        f"{len(outcomes)} mutants in {seconds:.0f} s, {sum(o.seconds for o in outcomes):.0f} s of "
        "the processors",
        *(f"missed: {o.case} #{o.number} {o.site}  |  {o.line}"
          for o in outcomes if o.result == "missed"),
    ]  # fmt: skip
    return "\n\n".join(parts)


def unused(outcomes: Sequence[Outcome]) -> list[Equivalent]:
    """Rows of the table that name no mutant of some outcomes."""
    same = [outcome for outcome in outcomes if outcome.result == "equivalent"]
    return [row for row in equivalents() if not any(row.holds(o.case, o) for o in same)]


def report_clean(runs: Sequence[CleanRun], begun: float) -> int:
    """Say what was found in unchanged kernels; 1 when there was anything."""
    complaints = [run for run in runs if run.complaint]
    for run in complaints:
        print(f"#{run.number} {run.name}\n{run.complaint}\n")
    kinds = Counter(re.split(r"[(/]", run.name)[0] for run in runs)
    print(", ".join(f"{kind} {n}" for kind, n in kinds.most_common()))
    seconds = time.perf_counter() - begun
    print(f"{len(runs)} runs of unchanged kernels, {len(complaints)} complaints, {seconds:.0f} s")
    return int(bool(complaints))


def main(words: Sequence[str]) -> int:
    """Run from the command line; 1 when a mutant was missed."""
    parser = argparse.ArgumentParser(prog="dev.py mutants", description=__doc__)
    parser.add_argument("--kernel", default="*", help="pattern of the cases' names")
    parser.add_argument("--operator", default="*", help=f"pattern of {', '.join(OPERATORS)}")
    parser.add_argument("--sample", type=int, help="so many mutants, always the same")
    parser.add_argument("--json", type=Path, help="add every outcome there, one a line")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--clean", type=int, metavar="N", help="run N unchanged kernels instead")
    options = parser.parse_args(words)
    begun = time.perf_counter()
    if options.clean is not None:
        return report_clean(list(clean(options.clean, options.processes)), begun)
    found = (
        campaign(options.kernel, options.operator, options.processes)
        if options.sample is None
        else sampled(chosen(options.kernel, options.operator, options.sample))
    )
    outcomes = []
    for outcome in found:
        outcomes.append(outcome)
        if options.json:
            with options.json.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(outcome), ensure_ascii=False) + "\n")
    order = {name: at for at, name in enumerate(cases())}
    outcomes.sort(key=lambda outcome: (order[outcome.case], outcome.number))
    print(report(outcomes, time.perf_counter() - begun))
    if (options.kernel, options.operator, options.sample) == ("*", "*", None):
        for row in unused(outcomes):
            print(f"argued for nothing: {row.kernel} {row.operator} {row.site}")
    return int(any(outcome.result == "missed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
