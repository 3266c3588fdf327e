"""What variables and files are now, kdsl's own among them, to be compared with what they were."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from functools import cache

from kdsl_core.digests import hash256
from kdsl_core.lang.host import runtime
from kdsl_core.lang.origins import LOADED_NS

# Two writes this close may leave one and the same time, on the coarsest of file systems.
_SETTLED_NS = 3_000_000_000
_MISSING = "missing"
_PACKAGE = os.path.dirname(os.path.dirname(__file__))


def state_of_files(files: Mapping[str, os.stat_result]) -> str | None:
    """Sizes, times and numbers of named files; None while a write to one may not show.

    A write sets the time of change (`ctime`), which no program can set back.
    """
    newest = max((max(s.st_mtime_ns, s.st_ctime_ns) for s in files.values()), default=0)
    if newest > time.time_ns() - _SETTLED_NS:
        return None
    return "\n".join(
        f"{name} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns} {s.st_dev} {s.st_ino}"
        for name, s in sorted(files.items())
    )


def state_of(name: str) -> str:
    """A digest of the variable "env:NAME" or of the file "file:PATH" as it is now."""
    kind, _, rest = name.partition(":")
    if kind == "env":
        value = os.environ.get(rest)
        return _MISSING if value is None else hash256(os.fsencode(value)).hexdigest()
    try:
        with open(rest, "rb") as file:
            return hash256(file.read()).hexdigest()
    except OSError:
        return _MISSING


def still(states: Mapping[str, str]) -> bool:
    """Whether every variable and file is what it was."""
    return all(state_of(name) == state for name, state in states.items())


@cache
def library_digest() -> str | None:
    """A digest of kdsl_core's files; None when they are not those that this process runs."""
    files = _files()
    if any(state.st_mtime_ns > LOADED_NS for state in files.values()):
        return None
    subject, state = f"kdsl in {_PACKAGE}", state_of_files(files)
    digest: str = runtime("building a kernel").noted(subject, state, lambda: _digest(files))
    return digest


def _files() -> dict[str, os.stat_result]:
    """kdsl_core's Python files by their names in it, with what the file system says of them."""
    found: dict[str, os.stat_result] = {}
    folders = [""]
    for folder in folders:  # which grows meanwhile
        with os.scandir(f"{_PACKAGE}/{folder}") as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    found[folder + entry.name] = entry.stat()
                elif entry.name != "__pycache__" and entry.is_dir():
                    folders.append(f"{folder}{entry.name}/")
    return found


def _digest(names: Iterable[str]) -> str:
    digest = hash256()
    for name in sorted(names):
        with open(f"{_PACKAGE}/{name}", "rb", buffering=0) as file:
            data = file.readall()
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()
