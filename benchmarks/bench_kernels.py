"""Each kernel of `kernels.py` for each of its targets: what it takes, has and moves.

The figures come from `facts.py`, which collects them once; `NotImplementedError` is for those that a
subject does not have.
"""

from __future__ import annotations

import warnings
from typing import Any

import facts
from kernels import ROWS

KERNELS = tuple(f"{row.name} {target}" for row in ROWS for target in row.targets)
KINDS = (
    "tensor", "matrix_copy", "bulk_copy", "async_copy", "shared", "local", "parameter", "global",
    "barrier", "warp", "branch", "convert", "move", "float", "integer",
)  # fmt: skip
ITSELF = tuple(name for name, _ in facts.itself())
PROCESS_FIGURES = (
    "modules", "cold_opens", "cold_programs", "cold_builds", "cold_misses", "warm_opens",
    "warm_programs", "warm_builds", "warm_misses", "cache_files", "calls_unbound", "calls_bound",
    "calls_cover", "launches", "peak_bytes",
)  # fmt: skip
Facts = dict[str, Any]


def setup_cache() -> Facts:
    """All figures of this commit."""
    warnings.simplefilter("ignore")
    return facts.collect(kinds=facts.has_disassembler())


setup_cache.timeout = 1800  # type: ignore[attr-defined] # how asv learns of it


def figure(found: Facts, subject: str, name: str) -> float:
    """One figure."""
    value = found["subjects"].get(subject, {}).get(name)
    if value is None:
        raise NotImplementedError(f"{subject} has no {name}")
    return float(value)


class Kernel:
    """What ptxas reports, and the lengths of both texts."""

    params = KERNELS
    param_names = ("kernel",)

    def track_registers(self, found: Facts, kernel: str) -> float:
        """Registers per thread."""
        return figure(found, kernel, "registers")

    def track_spill_bytes(self, found: Facts, kernel: str) -> float:
        """Bytes spilled, stores and loads."""
        return figure(found, kernel, "spill_bytes")

    def track_shared_bytes(self, found: Facts, kernel: str) -> float:
        """Shared memory of a block, static and dynamic."""
        return figure(found, kernel, "shared_bytes")

    def track_multiprocessor_share(self, found: Facts, kernel: str) -> float:
        """The part of a multiprocessor that a block takes: 1 over the blocks that fit."""
        return 1 / figure(found, kernel, "blocks_per_sm")

    def track_ptx_instructions(self, found: Facts, kernel: str) -> float:
        """Lines of PTX that are instructions."""
        return figure(found, kernel, "ptx_instructions")

    def track_sass_instructions(self, found: Facts, kernel: str) -> float:
        """Machine instructions."""
        return figure(found, kernel, "sass_instructions")


class Kind:
    """Instructions by what they are for."""

    params = (KERNELS, KINDS)
    param_names = ("kernel", "kind")

    def track_ptx(self, found: Facts, kernel: str, kind: str) -> float:
        """In PTX."""
        return figure(found, kernel, f"ptx_{kind}")

    def track_sass(self, found: Facts, kernel: str, kind: str) -> float:
        """In machine code, where nvdisasm is."""
        return figure(found, kernel, f"sass_{kind}")


class Run:
    """What one launch in the simulator counts."""

    params = KERNELS
    param_names = ("kernel",)

    def track_instructions(self, found: Facts, kernel: str) -> float:
        """Instructions of all warps."""
        return figure(found, kernel, "run_instructions")

    def track_wavefronts_over_ideal(self, found: Facts, kernel: str) -> float:
        """Passes through shared memory over those without bank conflicts."""
        ideal = figure(found, kernel, "run_ideal_wavefronts")
        return figure(found, kernel, "run_wavefronts") / ideal if ideal else 1.0

    def track_sectors_over_ideal(self, found: Facts, kernel: str) -> float:
        """Sectors that are moved over the least for the bytes asked for."""
        ideal = figure(found, kernel, "run_ideal_sectors")
        return figure(found, kernel, "run_sectors") / ideal if ideal else 1.0

    def track_roofline_us(self, found: Facts, kernel: str) -> float:
        """The least time on the target's largest chip."""
        return figure(found, kernel, "roofline_us")


class Itself:
    """What kdsl does beside kernels: imports, cache, launches, matching."""

    params = (ITSELF, PROCESS_FIGURES)
    param_names = ("subject", "figure")

    def track_count(self, found: Facts, subject: str, name: str) -> float:
        """Modules, files, programs, function calls, launches, bytes."""
        return figure(found, subject, name)


UNITS = {
    "track_registers": "registers", "track_spill_bytes": "bytes", "track_shared_bytes": "bytes",
    "track_multiprocessor_share": "multiprocessors", "track_roofline_us": "µs",
    "track_wavefronts_over_ideal": "times", "track_sectors_over_ideal": "times",
    "track_count": "units",
}  # fmt: skip
for _class in (Kernel, Kind, Run, Itself):
    for _name, _benchmark in vars(_class).items():
        if _name.startswith("track_"):
            _benchmark.version = "1"
            _benchmark.unit = UNITS.get(_name, "instructions")
del _class, _name, _benchmark
