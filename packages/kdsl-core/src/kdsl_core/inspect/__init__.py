"""Looking at kernels and their parts: pictures, memory traffic, bank conflicts, reports by line."""

from __future__ import annotations

from kdsl_core.inspect.accesses import Access
from kdsl_core.inspect.banks import BankConflicts, Collision, bank_conflicts
from kdsl_core.inspect.devices import DEVICES, Device, device_of
from kdsl_core.inspect.pictures import show, svg
from kdsl_core.inspect.report import Report, report
from kdsl_core.inspect.roofline import Roof, Roofline, roofline
from kdsl_core.inspect.sectors import Coalescing, coalescing
from kdsl_core.inspect.swizzles import Suggestion, suggest_swizzle

__all__ = [
    "DEVICES",
    "Access",
    "BankConflicts",
    "Coalescing",
    "Collision",
    "Device",
    "Report",
    "Roof",
    "Roofline",
    "Suggestion",
    "bank_conflicts",
    "coalescing",
    "device_of",
    "report",
    "roofline",
    "show",
    "suggest_swizzle",
    "svg",
]
