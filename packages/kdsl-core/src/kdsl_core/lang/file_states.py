"""What variables and files are now, to be compared with what they were."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from kdsl_core.digests import hash256

# Two writes this close may leave one and the same time, on the coarsest of file systems.
_SETTLED_NS = 3_000_000_000
_MISSING = "missing"


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
