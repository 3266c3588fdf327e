"""Which configuration a kernel gets: tables of what was fastest, read where they lie.

A table is a JSON file for one kernel on one device; each entry is a problem with the configuration
that won there. Tables come with a package and from the user's directory, whose entries win.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from kdsl_core.errors import CacheError, KdslError
from kdsl_core.records import dataclass
from kdsl_runtime.cache.location import AnyPath
from kdsl_runtime.problem import Problem

Config: TypeAlias = Mapping[str, Any]
"""A configuration: option → value, of what JSON can hold; its lists are tuples here."""

PREDICTED = "predicted"
_OWN = ("us", "backend", "config")  # fields of an entry that are not the problem's
_NEAR = 1.0
# What reading or checking an entry raises that is none.
_WRONG = (OSError, KeyError, TypeError, ValueError, AttributeError, KdslError)
_NAMED_BY = ("KDSL_TABLES", "XDG_DATA_HOME", "HOME")  # variables of the user's directories


@dataclass(frozen=True)
class Entry:
    """The configuration that was fastest for a problem.

    Units: `us` microseconds by `backend`, which is "cuda" (measured) or "predicted".
    """

    problem: Problem
    config: Config
    us: float
    backend: str = "cuda"

    def record(self) -> dict[str, Any]:
        """The entry as JSON has it."""
        backend = {"backend": self.backend} if self.backend != "cuda" else {}
        return {**self.problem.values, "us": self.us, **backend, "config": dict(self.config)}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Entry:
        """The entry of a record. Raises: what Python does of a record that lacks something."""
        problem = Problem({name: v for name, v in record.items() if name not in _OWN})
        config = {name: frozen(value) for name, value in dict(record["config"]).items()}
        return cls(problem, config, float(record["us"]), str(record.get("backend", "cuda")))

    def yields_to(self, other: Entry) -> bool:
        """Whether `other` may stand in its place: no prediction replaces a measurement."""
        return self.backend == PREDICTED or other.backend != PREDICTED


def frozen(value: Any) -> Any:
    """A value of JSON with tuples for its lists."""
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


Check: TypeAlias = Callable[[Entry], object]
"""Raises what it likes of Python's errors, or a KdslError, for an entry that its kernel refuses."""


State: TypeAlias = tuple[int, int, int]


def read_table(path: AnyPath, check: Check | None = None) -> Mapping[Problem, Entry]:
    """The entries of a file by problem; none if it does not exist. Read anew when it has changed.

    Raises: CacheError K761 naming the file and the entry that cannot be used.
    """
    state = _state(path)
    return {} if state is None else _read(os.fspath(path), state, check)


def _state(path: AnyPath) -> State | None:
    """What changes when a file is written; None if it does not exist."""
    try:
        state = os.stat(path)
    except FileNotFoundError:
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size


@lru_cache(maxsize=64)
def _read(path: str, state: State, check: Check | None) -> Mapping[Problem, Entry]:
    """The entries of a file that was in this state."""
    place, found = "the file", {}
    try:
        with open(path, "rb") as file:
            records = json.load(file)["entries"]
        for number, record in enumerate(records):
            place = f"entry {number} ({record!r:.90})"
            entry = Entry.read(record)
            if check is not None:
                check(entry)
            found[entry.problem] = entry
    except _WRONG as error:
        raise _no_entry(path, place, error) from error
    return found


def _no_entry(path: str, place: str, error: Exception) -> CacheError:
    return CacheError(
        f"{path}: {place} is no entry of a dispatch table: {type(error).__name__}: {error}",
        code="K761",
        fix="remove the entry, or the file, and let `kdsl tune` write it anew",
    )


def write_table(path: AnyPath, entries: Iterable[Entry], **facts: str) -> None:
    """Write a file whole: facts first, then a line for each entry. It appears at once or not."""
    head = "".join(f"{json.dumps(name)}: {json.dumps(text)},\n" for name, text in facts.items())
    body = ",\n".join(json.dumps(entry.record()) for entry in entries)
    folder, name = os.path.split(path)
    os.makedirs(folder or os.curdir, exist_ok=True)
    draft = os.path.join(folder, f".{name}.{os.urandom(8).hex()}.tmp")
    with open(draft, "w", encoding="utf-8") as file:
        file.write(f'{{\n{head}"entries": [\n{body}\n]\n}}\n')
    os.replace(draft, path)


def put(path: AnyPath, device: str, entry: Entry) -> bool:
    """Add an entry to a file, or put it in another's place; gives whether it is there now.

    Processes that write the same file take turns. A prediction never replaces a measurement.
    """
    import datetime  # neither is needed where tables are only read

    from kdsl_runtime.cache.file_lock import lock_file

    os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
    with lock_file(os.path.splitext(path)[0] + ".lock"):
        entries = dict(read_table(path))
        known = entries.get(entry.problem)
        if known is not None and not known.yields_to(entry):
            return False
        entries[entry.problem] = entry
        facts = {"device": device, "date": datetime.date.today().isoformat(), "made": "kdsl tune"}
        write_table(path, entries.values(), **facts)
    return True


def file_name(kernel: str, device: str) -> str:
    """The name of a kernel's table for a device, in every directory of tables."""
    name = f"{kernel}-{device}.json"
    return "".join(["_" if c.isspace() or c in "/\\" else c for c in name])


def user_directories(environ: Mapping[str, str] | None = None) -> list[str]:
    """Directories of the user's tables, those that win first; results of tuning go to the first.

    $KDSL_TABLES (several as in $PATH; empty for none), or $XDG_DATA_HOME/kdsl/tables, or
    ~/.local/share/kdsl/tables.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("KDSL_TABLES")
    if named is not None:
        return [folder for folder in named.split(os.pathsep) if folder]
    if environ.get("XDG_DATA_HOME"):
        return [os.path.join(environ["XDG_DATA_HOME"], "kdsl", "tables")]
    if environ.get("HOME"):
        return [os.path.join(environ["HOME"], ".local", "share", "kdsl", "tables")]
    return []


@dataclass(frozen=True)
class Choice:
    """A configuration and where it comes from: `how` is "exact", "nearest" or "model".

    `entry` and `path` are the table's, None for the model's choice; `distance` is the problem's
    from the entry's, as `Problem.distance` has it.
    """

    config: Config
    how: str
    why: str
    entry: Entry | None = None
    path: str | None = None
    distance: float = 0.0

    def __str__(self) -> str:
        return f"{dict(self.config)}: {self.how}, {self.why}"


@dataclass(frozen=True)
class Dispatch:
    """The tables of one kernel: a package's, in `packaged`, under the user's.

    An entry serves problems whose sizes are within a factor of 2^`within` of its own and whose
    traits are equal; with 0 only its own. `check` refuses an entry as it is taken.
    """

    kernel: str
    packaged: AnyPath | None = None
    within: float = _NEAR
    check: Check | None = None

    def paths(self, device: str) -> list[str]:
        """The files that are looked into, the one that wins first; they need not exist."""
        named = tuple((name, os.environ[name]) for name in _NAMED_BY if name in os.environ)
        packaged = None if self.packaged is None else os.fspath(self.packaged)
        return list(_files(self.kernel, packaged, device, named))

    def entries(self, device: str) -> Mapping[Problem, tuple[Entry, str]]:
        """What all files hold together, unchecked. No prediction hides a measurement below it.

        Raises: CacheError K761 for a file that is no table.
        """
        return _together(tuple((path, _state(path)) for path in self.paths(device)))

    def find(
        self, device: str, problem: Problem, usable: Callable[[Config], str | None] | None = None
    ) -> Choice | None:
        """The entry for the problem, or else the nearest one that serves it.

        `usable` gives the reason why a configuration cannot serve the problem, or None.
        Raises: CacheError K761 for a table that cannot be read, or an entry that `check` refuses.
        """
        entries = self.entries(device)
        if problem in entries:
            entry, path = entries[problem]
            if self._serves(entry, path, usable):
                return Choice(entry.config, "exact", _said(entry, path), entry, path)
        if not self.within:
            return None
        near = sorted(
            (distance, str(entry.problem), entry, path)
            for entry, path in entries.values()
            if 0 < (distance := problem.distance(entry.problem)) <= self.within
        )
        for distance, text, entry, path in near:
            if self._serves(entry, path, usable):
                why = f"{_said(entry, path)} for {text}, sizes within a factor of {2**distance:.3g}"
                return Choice(entry.config, "nearest", why, entry, path, distance)
        return None

    def _serves(
        self, entry: Entry, path: str, usable: Callable[[Config], str | None] | None
    ) -> bool:
        """Whether an entry can be taken. Most of a table never is, so one is checked only here."""
        if self.check is not None:
            try:
                self.check(entry)
            except _WRONG as error:
                raise _no_entry(path, f"the one for {entry.problem}", error) from error
        return usable is None or usable(entry.config) is None

    def choose(
        self,
        device: str,
        problem: Problem,
        model: Callable[[], Config],
        usable: Callable[[Config], str | None] | None = None,
    ) -> Choice:
        """What `find` finds, or else the model's choice; `str` of it says which and why."""
        found = self.find(device, problem, usable)
        if found is not None:
            return found
        near = f" or within a factor of {2**self.within:.3g}" if self.within else ""
        return Choice(model(), "model", f"no table of {device} has an entry for {problem}{near}")

    def explain(
        self,
        device: str,
        problem: Problem,
        model: Callable[[], Config],
        usable: Callable[[Config], str | None] | None = None,
    ) -> str:
        """The choice, and every file that was looked into."""
        lines = [f"{self.kernel} on {device}, {problem}"]
        lines.append(f"  {self.choose(device, problem, model, usable)}")
        for path in self.paths(device):
            count = len(read_table(path, self.check))
            there = os.path.exists(path)
            lines.append(f"  {path}: " + (f"{count} entries" if there else "not there"))
        return "\n".join(lines)


@lru_cache(maxsize=64)
def _files(
    kernel: str, packaged: str | None, device: str, environ: tuple[tuple[str, str], ...]
) -> tuple[str, ...]:
    """The files of a kernel's tables for a device, the one that wins first."""
    folders = [*user_directories(dict(environ)), *([packaged] if packaged else [])]
    return tuple(os.path.join(folder, file_name(kernel, device)) for folder in folders)


@lru_cache(maxsize=64)
def _together(
    layers: tuple[tuple[str, State | None], ...],
) -> Mapping[Problem, tuple[Entry, str]]:
    """The entries of files in these states, those of the first file on top."""
    found: dict[Problem, tuple[Entry, str]] = {}
    for path, state in reversed(layers):
        table = {} if state is None else _read(path, state, None)
        for problem, entry in table.items():
            if problem not in found or found[problem][0].yields_to(entry):
                found[problem] = entry, path
    return found


def _said(entry: Entry, path: str) -> str:
    verb = "predicted" if entry.backend == PREDICTED else "measured"
    return f"{entry.us:g} µs {verb}, {path}"
