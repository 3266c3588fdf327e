"""Looking at kernels' parts without running them: pictures, memory traffic, bank conflicts."""

from __future__ import annotations

from kdsl_core.inspect.accesses import Access
from kdsl_core.inspect.banks import BankConflicts, Collision, bank_conflicts
from kdsl_core.inspect.pictures import show, svg
from kdsl_core.inspect.sectors import Coalescing, coalescing
from kdsl_core.inspect.swizzles import Suggestion, suggest_swizzle

__all__ = [
    "Access",
    "BankConflicts",
    "Coalescing",
    "Collision",
    "Suggestion",
    "bank_conflicts",
    "coalescing",
    "show",
    "suggest_swizzle",
    "svg",
]
