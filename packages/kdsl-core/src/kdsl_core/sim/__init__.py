"""The simulated GPU: runs a kernel's IR with the right numbers and finds its hazards."""

from kdsl_core.sim.hazards import ALL_CHECKS, Hazard
from kdsl_core.sim.memory import Buffer, GlobalMemory
from kdsl_core.sim.metrics import METRICS, Metric
from kdsl_core.sim.parties import Party
from kdsl_core.sim.places import Place
from kdsl_core.sim.profile import LineCounts, Profile
from kdsl_core.sim.result import Result
from kdsl_core.sim.run import run
from kdsl_core.sim.waits import Awaited, Wait

__all__ = [
    "ALL_CHECKS",
    "METRICS",
    "Awaited",
    "Buffer",
    "GlobalMemory",
    "Hazard",
    "LineCounts",
    "Metric",
    "Party",
    "Place",
    "Profile",
    "Result",
    "Wait",
    "run",
]
