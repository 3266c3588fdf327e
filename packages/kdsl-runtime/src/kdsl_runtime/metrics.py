"""What the runtime did in this process, as plain counters."""

from __future__ import annotations

import os
import threading

# What may become of a configuration that is tuned.
STATUSES = ("right", "wrong", "refused", "broken")
_NAMES = (
    "builds",
    "build_failures",
    "build_seconds",
    "memory_hits",
    "disk_hits",
    "sealed_hits",
    "remote_hits",
    "misses",
    "bad_entries",
    "evictions",
    "kernels_loaded",
    "late_builds",
    "pin_mismatches",
    *(f"candidates_{status}" for status in STATUSES),
)
_lock = threading.Lock()
_values: dict[str, float] = dict.fromkeys(_NAMES, 0)


def add(name: str, amount: float = 1) -> None:
    """Raise the counter `name`; an unknown name is a KeyError.

    Threads: safe.
    """
    with _lock:
        _values[name] += amount


def snapshot() -> dict[str, float]:
    """A copy of every counter.

    Units: `build_seconds` in seconds of wall time, all others in events.
    """
    with _lock:
        return dict(_values)


def reset() -> None:
    """Set every counter to zero."""
    with _lock:
        _values.update(dict.fromkeys(_NAMES, 0))


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
