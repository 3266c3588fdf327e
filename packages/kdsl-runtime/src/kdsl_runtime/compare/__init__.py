"""A kernel's results beside those that another program recorded: the work of `kdsl compare`."""

from kdsl_runtime.compare.compare import compare
from kdsl_runtime.compare.finding import Comparison, Element, Finding, Kind, Tile
from kdsl_runtime.compare.recording import Recording, read
from kdsl_runtime.compare.runs import Runs, on_gpu, simulated

__all__ = [
    "Comparison",
    "Element",
    "Finding",
    "Kind",
    "Recording",
    "Runs",
    "Tile",
    "compare",
    "on_gpu",
    "read",
    "simulated",
]
