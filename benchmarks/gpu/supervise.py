"""Runs cases in a process of their own, so that one which hangs or breaks costs only itself.

The worker writes a journal, one JSON object a line: `{"device": …, "copy": …}` once, and for each
case `{"case": name, "trying": candidate}` and at its end `{"case": name, "result": …}`.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shapes import Case

POLL_SECONDS = 0.1
MOST_EXCLUDED = 6


@dataclass
class Job:
    """A case, the candidates that may not run again, and why."""

    case: Case
    excluded: dict[str, str] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """For the worker."""
        return {"case": asdict(self.case), "excluded": list(self.excluded)}

    def failed(self, text: str) -> dict[str, Any]:
        """The result of a case that could not be measured."""
        return {
            "name": self.case.name,
            **asdict(self.case),
            "error": text,
            "failures": self.excluded,
        }


@dataclass
class Supervisor:
    """Starts workers until every case has a result or the time is over.

    `command` gets the paths of the jobs and the journal appended; `silence` is how many seconds a
    worker may write nothing; `deadline` is on the clock of `time.monotonic`.
    """

    command: list[str]
    folder: Path
    silence: float
    deadline: float
    tell: Callable[[dict[str, Any]], None]

    def __post_init__(self) -> None:
        self.results: dict[str, dict[str, Any]] = {}
        self.facts: dict[str, Any] = {}

    def run(self, cases: list[Case]) -> list[dict[str, Any]]:
        """Results in the order of the cases; those without time left have none."""
        jobs = [Job(case) for case in cases]
        while jobs and time.monotonic() < self.deadline:
            trying, end = self._work(jobs)
            jobs = [job for job in jobs if job.case.name not in self.results]
            if jobs and time.monotonic() < self.deadline:
                self._blame(jobs[0], trying, end)
                jobs = [job for job in jobs if job.case.name not in self.results]
        return [self.results[case.name] for case in cases if case.name in self.results]

    def _blame(self, job: Job, trying: tuple[str, str] | None, end: str) -> None:
        """Exclude what ran last, or give the case up."""
        candidate = trying[1] if trying and trying[0] == job.case.name else None
        if candidate is None or candidate in job.excluded or len(job.excluded) >= MOST_EXCLUDED:
            self._finish(job, job.failed(end))
        else:
            job.excluded[candidate] = end

    def _finish(self, job: Job, result: dict[str, Any]) -> None:
        result["failures"] = {**job.excluded, **result.get("failures", {})}
        self.results[job.case.name] = result
        self.tell(result)

    def _work(self, jobs: list[Job]) -> tuple[tuple[str, str] | None, str]:
        """Run one worker to its end; (case and candidate it tried last, how it ended)."""
        todo, journal, log = (self.folder / name for name in ("jobs.json", "journal", "log"))
        todo.write_text(json.dumps([job.record() for job in jobs]))
        journal.write_text("")
        by_name = {job.case.name: job for job in jobs}
        trying, seen, heard = None, 0, time.monotonic()
        with log.open("wb") as errors:
            worker = subprocess.Popen(
                [*self.command, str(todo), str(journal)], stdout=errors, stderr=errors
            )
            while True:
                running = worker.poll() is None
                lines = journal.read_text().splitlines(keepends=True)
                for line in (text for text in lines[seen:] if text.endswith("\n")):
                    seen, heard = seen + 1, time.monotonic()
                    entry = json.loads(line)
                    if "result" in entry:
                        self._finish(by_name[entry["case"]], entry["result"])
                        trying = None
                    elif "trying" in entry:
                        trying = entry["case"], entry["trying"]
                    else:
                        self.facts.update(entry)
                if not running:
                    return trying, f"exit {worker.returncode}: {_tail(log)}"
                if time.monotonic() > min(heard + self.silence, self.deadline):
                    worker.kill()
                    worker.wait()
                    return trying, f"no sign of life for {self.silence:g} s"
                time.sleep(POLL_SECONDS)


def _tail(log: Path, characters: int = 800) -> str:
    return log.read_text(errors="replace")[-characters:].strip()
