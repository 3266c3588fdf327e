"""The gate: fails when a commit makes a kernel, or kdsl itself, worse than an earlier one.

    python3 dev.py gate BASE..HEAD [--deterministic] [--rounds N]

Each commit measures itself: its own `facts.py` and `pace.py`, on its own packages, in a folder
beside this checkout. Compared are figures that are the same in every run; the records of GPUs that
both commits have; and, without --deterministic, the CPU time of importing, tracing and emitting,
both commits by turns. Growth that somebody had a reason for is a row of `accepted.toml`.

Exit codes: 0 nothing is worse or there is nothing to compare with, 1 a regression, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import commits
import findings
import pace
from commits import Repository
from findings import Finding

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE / "gpu"))
import records  # noqa: E402 - its folder is on the path since the line before

FACTS_SECONDS = 900
MOST_SHOWN = 12


class NothingToCompare(Exception):
    """The earlier commit cannot be measured; the message says why."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    words = argparse.ArgumentParser(prog="dev.py gate", description=__doc__.splitlines()[0])
    words.add_argument("range", metavar="BASE..HEAD", type=range_of)
    words.add_argument("--deterministic", action="store_true", help="no times of compiling")
    words.add_argument("--rounds", type=int, default=15, help="of each step, in both commits")
    words.add_argument("--root", type=Path, default=HERE.parent, help=argparse.SUPPRESS)
    return words


def range_of(text: str) -> tuple[str, str]:
    """Both ends of "BASE..HEAD"."""
    base, dots, head = text.partition("..")
    if not base or not dots or head.startswith("."):
        raise argparse.ArgumentTypeError(f"expected BASE..HEAD, got {text!r}")
    return base, head or "HEAD"


def main(words: Sequence[str] | None = None) -> int:
    """Compare, print, and say by the exit code whether something is worse."""
    options = parser().parse_args(words)
    here = Repository(options.root)
    try:
        base, head = (here.commit(name) for name in options.range)
        print(f"gate {base[:10]}..{head[:10]}")
        if here.same(base, head):
            print("nothing differs that figures depend on")
            found, notes = [], []
        else:
            found, notes = compare(here, base, head, options)
    except (commits.Unknown, NothingToCompare) as reason:
        print(f"gate: nothing to compare: {reason}")
        return 0
    found += of_gpus(here, base, head)
    return told(found, notes, findings.accepted_in(options.root / "benchmarks/accepted.toml"))


# -- measuring -------------------------------------------------------------------------------------
def compare(
    here: Repository, base: str, head: str, options: argparse.Namespace
) -> tuple[list[Finding], list[str]]:
    """Findings of everything that needs the commits' files, and what is worth a note.

    Raises: NothingToCompare.
    """
    with here.exported(base) as old, here.exported(head) as new:
        before, after = both_facts(old, new)
        print(f"{len(after['subjects'])} subjects, ptxas {after['ptxas']}", flush=True)
        found = list(findings.of_facts(before, after))
        notes = [*findings.news(before, after)]
        notes += [f"better: {text}" for text in findings.better(before, after)]
        if not options.deterministic:
            found += of_paces(old, new, options.rounds)
    return found, notes


def both_facts(old: Path, new: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `facts.py` says of both checkouts, which run side by side.

    Raises: NothingToCompare where the old one says nothing.
    """
    if not (old / "benchmarks/facts.py").exists():
        raise NothingToCompare("the earlier commit has no benchmarks/facts.py yet")
    with tempfile.TemporaryDirectory() as folder:
        runs = [begun(tree, Path(folder) / name) for tree, name in ((old, "old"), (new, "new"))]
        texts = [run.communicate(timeout=FACTS_SECONDS)[0] for run in runs]
        if runs[0].returncode:
            raise NothingToCompare(f"the earlier commit's facts.py failed:\n{texts[0][-1500:]}")
        if runs[1].returncode:
            failed = {"benchmarks/facts.py": texts[1].strip().splitlines()[-1]}
            after = {"ptxas": "?", "subjects": {}, "problems": failed}
        else:
            after = json.loads((Path(folder) / "new/facts.json").read_text())
        return json.loads((Path(folder) / "old/facts.json").read_text()), after


def begun(tree: Path, folder: Path) -> subprocess.Popen[str]:
    """The process that collects a checkout's facts, with a cache of its own."""
    folder.mkdir()
    script, out = str(tree / "benchmarks/facts.py"), str(folder / "facts.json")
    environment = {**commits.environment(tree), "KDSL_CACHE_DIR": str(folder / "cache")}
    return subprocess.Popen(
        [sys.executable, script, "--json", out], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def of_paces(old: Path, new: Path, rounds: int) -> Iterator[Finding]:
    """Steps of compiling that take longer."""
    try:
        samples = pace.timed(old, new, rounds)
    except (RuntimeError, OSError) as problem:
        print(f"gate: no times of compiling: {problem}")
        return
    for step, (before, after) in samples.items():
        if finding := findings.of_times(step, before, after):
            yield finding


def of_gpus(here: Repository, base: str, head: str) -> list[Finding]:
    """Shapes that became slower, by what was measured last at or before either commit."""
    kept = list(records.records(here.root / "results/gpu"))
    found: list[Finding] = []
    for device in dict.fromkeys(record.device for record in kept):
        of_it = [record for record in kept if record.device == device]
        known = [records.known_at(of_it, here.ancestors(commit)) for commit in (base, head)]
        found += findings.of_shapes(device, *map(records.last_of_each, known))
    return found


# -- telling ---------------------------------------------------------------------------------------
def told(found: list[Finding], notes: list[str], accepted: Sequence[findings.Accepted]) -> int:
    """Print what was found; 1 when something counts."""
    counted, excused = findings.sorted_out(found, accepted)
    for finding, row in excused:
        print(f"accepted: {finding.subject}: {finding.figure} → {finding.after}: {row.reason}")
    for note in notes[:MOST_SHOWN]:
        print(note)
    if len(notes) > MOST_SHOWN:
        print(f"… and {len(notes) - MOST_SHOWN} more")
    if not counted:
        print("gate: nothing is worse")
        return 0
    print(f"\n{findings.table(counted)}\n")
    print(f"gate: {len(counted)} regressions; one with a good reason is a row of accepted.toml")
    return 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
