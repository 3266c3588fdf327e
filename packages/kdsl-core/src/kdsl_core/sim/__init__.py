"""The simulated GPU: runs a kernel's IR with the right numbers and finds its hazards."""

from kdsl_core.sim.hazards import ALL_CHECKS, Hazard
from kdsl_core.sim.memory import Buffer, GlobalMemory
from kdsl_core.sim.metrics import METRICS, Metric
from kdsl_core.sim.profile import LineCounts, Profile
from kdsl_core.sim.run import Result, run

__all__ = [
    "ALL_CHECKS",
    "METRICS",
    "Buffer",
    "GlobalMemory",
    "Hazard",
    "LineCounts",
    "Metric",
    "Profile",
    "Result",
    "run",
]
