"""What the file system says of files: equal as long as nobody wrote to them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

# Two writes this close may leave one and the same time, on the coarsest of file systems.
_SETTLED_NS = 3_000_000_000


def state_of_files(files: Mapping[str, os.stat_result]) -> str | None:
    """Sizes, times and numbers of named files; None while one is so young that it may change unseen.

    A write sets the time of change (`ctime`), which no program can set back.
    """
    newest = max((max(s.st_mtime_ns, s.st_ctime_ns) for s in files.values()), default=0)
    if newest > time.time_ns() - _SETTLED_NS:
        return None
    return "\n".join(
        f"{name} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns} {s.st_dev} {s.st_ino}"
        for name, s in sorted(files.items())
    )
