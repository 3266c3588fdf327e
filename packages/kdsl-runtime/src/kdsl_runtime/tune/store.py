"""The tuner's memory: a line of JSON for each candidate, on the disk before the next one runs."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from kdsl_core.errors import CacheError
from kdsl_runtime.dispatch import PREDICTED, Config, Entry, frozen
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune.measure import RIGHT, Trial
from kdsl_runtime.tune.space import config_text

Key: TypeAlias = tuple[str, str, Problem, str, str]


@dataclass(frozen=True)
class Record:
    """What is known of one configuration of a kernel for a class of problems.

    `toolchain` and `code` say which machine code was judged: the assembler's id, and a hash of all
    that was launched. `rung` counts how far successive halving took the candidate. `bound` is what
    `trial.error` was allowed to be.
    """

    kernel: str
    problem: Problem
    config: Config
    device: str
    toolchain: str
    backend: str
    code: str
    rung: int
    bound: float
    trial: Trial

    @property
    def key(self) -> Key:
        """What there is one record of."""
        return self.kernel, config_text(self.config), self.problem, self.device, self.toolchain

    @property
    def is_right(self) -> bool:
        """Whether it may win."""
        return self.trial.status == RIGHT

    @property
    def order(self) -> tuple[bool, int, float, str]:
        """What sorts records, the best one first.

        Measurements go before predictions, careful ones before quick ones, equal ones by text.
        """
        measured_first, careful_first = self.backend == PREDICTED, -self.rung
        return measured_first, careful_first, self.trial.us, config_text(self.config)

    def replaces(self, other: Record) -> bool:
        """Whether it may stand in the place of a record of the same key.

        What is predicted replaces nothing that was measured of the same code.
        """
        measured = other.backend != PREDICTED
        return not (self.backend == PREDICTED and measured and self.code == other.code)

    def entry(self) -> Entry:
        """The record as an entry of a dispatch table."""
        return Entry(self.problem, self.config, round(self.trial.us, 3), self.backend)

    def line(self) -> str:
        """One line of JSON."""
        fields = {name: value for name, value in vars(self).items() if name != "trial"}
        return json.dumps({**fields, "problem": self.problem.values, **asdict(self.trial)})

    @classmethod
    def read(cls, text: str) -> Record:
        """The record of a line. Raises: what Python does of one that lacks something."""
        fields = json.loads(text)
        own = {name: fields.pop(name) for name in cls.__dataclass_fields__ if name != "trial"}
        own["problem"] = Problem(own["problem"])
        own["config"] = {name: frozen(value) for name, value in own["config"].items()}
        return cls(**own, trial=Trial(**fields))


class Journal:
    """Records in a file that only grows; those of a run that was killed are there in the next one.

    A last line that was cut short is dropped. Without a path nothing is kept on disk.
    Raises: CacheError K765 for any other line that is no record, K766 while another process has it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._records: dict[Key, Record] = {}
        self._file = None if path is None else _locked(path)
        if self._file is not None:
            self._read(self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: Key) -> Record | None:
        """The record of a key."""
        return self._records.get(key)

    def add(self, record: Record) -> None:
        """Write a record; it is on the disk when this returns.

        The file keeps every record; `get` gives the last that may replace those before it.
        """
        if self._file is not None:
            self._file.write(f"{record.line()}\n".encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        self._keep(record)

    def close(self) -> None:
        """Let other processes have the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _keep(self, record: Record) -> None:
        known = self._records.get(record.key)
        if known is None or record.replaces(known):
            self._records[record.key] = record

    def _read(self, file: Any) -> None:
        data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            file.truncate(len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._keep(Record.read(line))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise CacheError(
                    f"{self.path}:{number} is no record of the tuner: "
                    f"{type(error).__name__}: {error}",
                    code="K765",
                    fix="remove the line, or name another file with --journal",
                ) from error


def _locked(path: Path) -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise CacheError(
            f"the journal {path} is in use by another process: {error}",
            code="K766",
            fix="wait for that run, or name another file with --journal",
        ) from error
    file.seek(0)
    return file
