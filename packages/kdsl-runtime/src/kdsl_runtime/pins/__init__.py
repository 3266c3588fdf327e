"""Pins: what the kernels of a program were when they were found good, and what changed since."""

from __future__ import annotations

from kdsl_runtime.pins.changes import Change, changes
from kdsl_runtime.pins.checking import Report, compare, rebuilt, report_of
from kdsl_runtime.pins.limits import Measured, Severity
from kdsl_runtime.pins.lockfile import Lock
from kdsl_runtime.pins.pinning import KdslPinWarning, Pin, pin

__all__ = [
    "Change",
    "KdslPinWarning",
    "Lock",
    "Measured",
    "Pin",
    "Report",
    "Severity",
    "changes",
    "compare",
    "pin",
    "rebuilt",
    "report_of",
]
