"""Commands that run one after another, each in a process of its own that ends in time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MOST_NAMED = 20  # failed tests of one step
LAST_LINES = 12
LONGEST_LOG = 1 << 20
LARGEST_FILE = 15 << 20
MOST_BYTES = 60 << 20


@dataclass(frozen=True)
class Step:
    """A command, the seconds that it may take, and those that it surely gets.

    Units: seconds. `junit` is the file in which pytest writes its results.
    """

    name: str
    command: Sequence[str]
    limit: float
    least: float = 0.0
    junit: Path | None = None


@dataclass
class Ended:
    """How a step ended: "ok", "exit N", "out of time", "no time left", or why it did not start."""

    name: str
    command: str
    outcome: str
    seconds: float
    tests: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    end: str = ""

    def line(self) -> str:
        """One line of the table."""
        what = ", ".join(f"{count} {word}" for word, count in self.tests.items() if count)
        said = what or self.end.rpartition("\n")[2][-60:]
        return f"{self.name[:32]:<32} {self.outcome[:14]:<14} {self.seconds:>6.1f} s  {said}"

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def run_steps(
    steps: Sequence[Step], logs: Path, deadline: float, environment: dict[str, str]
) -> Iterator[Ended]:
    """How each step ended, after it has; none keeps the next from running.

    A step may use the time until `deadline` (of `time.monotonic`), but for the `least` seconds of
    the steps behind it. What it prints goes to `logs`.
    """
    for number, step in enumerate(steps):
        reserved = sum(later.least for later in steps[number + 1 :])
        limit = min(step.limit, deadline - time.monotonic() - reserved)
        yield run_step(step, limit, logs / f"{safe(step.name)}.log", environment)


def run_step(step: Step, limit: float, log: Path, environment: dict[str, str]) -> Ended:
    """Run one step for at most `limit` seconds."""
    command, started = " ".join(step.command), time.monotonic()
    if limit < min(1.0, step.limit):
        return Ended(step.name, command, "no time left", 0.0)
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                step.command, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        except OSError as problem:
            return Ended(step.name, command, f"{problem.strerror}", 0.0, end=str(problem))
        try:
            code = process.wait(limit)
            outcome = f"exit {code}" if code else "ok"
        except subprocess.TimeoutExpired:
            outcome = "out of time"
        finally:
            end_group(process)
    shorten(log)
    ended = Ended(step.name, command, outcome, time.monotonic() - started, end=tail(log))
    if step.junit and step.junit.exists():
        ended.tests, ended.failed = results_of(step.junit)
    return ended


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started and left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def results_of(junit: Path) -> tuple[dict[str, int], list[str]]:
    """Counts by outcome and the names of failed tests; nothing from a file that broke off."""
    try:
        root = ElementTree.parse(junit).getroot()
    except ElementTree.ParseError:
        return {}, []
    cases = list(root.iter("testcase"))
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    counts = {"passed": len(cases) - len(failed), "failed": len(failed)}
    return counts, failed[:MOST_NAMED]


def shorten(log: Path) -> None:
    """Keep the end of a log that is too long."""
    with log.open("r+b") as held:
        size = held.seek(0, os.SEEK_END)
        if size > LONGEST_LOG:
            held.seek(size - LONGEST_LOG)
            end = held.read()
            held.seek(0)
            held.write(end)
            held.truncate()


def tail(log: Path) -> str:
    """The last lines of a log."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return "\n".join(lines[-LAST_LINES:])


def safe(name: str) -> str:
    """A name as files may have it."""
    return re.sub(r"[^\w.-]+", "_", name)[:80]


# -- packing ---------------------------------------------------------------------------------------
def pack(folder: Path, out: Path, stem: str, most: int) -> list[str]:
    """At most so many archives `stem`-1.zip … of a folder's files; gives the files left out.

    Large files come first, into the first archive with room. Sizes are those before compression,
    for recordings are compressed already.
    """
    bins: list[list[Path]] = []
    sizes: list[int] = []
    left_out: list[str] = []
    files = sorted((p for p in folder.rglob("*") if p.is_file()), key=lambda p: -p.stat().st_size)
    for path in files:
        size = path.stat().st_size + 512  # the archive's own entry
        place = next((i for i, held in enumerate(sizes) if held + size <= LARGEST_FILE), len(bins))
        new = place == len(bins)
        if size > LARGEST_FILE or sum(sizes) + size > MOST_BYTES or place >= most:
            left_out.append(path.relative_to(folder).as_posix())
            continue
        if new:
            bins.append([])
            sizes.append(0)
        bins[place].append(path)
        sizes[place] += size
    for number, held in enumerate(bins, 1):
        write_archive(out / f"{stem}-{number}.zip", folder, held)
    return left_out


def write_archive(archive: Path, folder: Path, files: Sequence[Path]) -> None:
    """An archive of some files of a folder, complete or not there."""
    partial = archive.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
        for path in files:
            target.write(path, path.relative_to(folder).as_posix())
    partial.replace(archive)
