"""What a kernel costs, as numbers by name: what was built, and what a run in the simulator counts.

    registers, spill_bytes, stack_bytes, shared_bytes    as the assembler reports them
    blocks_per_sm                                        that fit on the target's largest chip
    ptx_instructions, ptx_KIND, sass_instructions        in the text and in the machine code
    run_instructions, run_sectors, run_wavefronts, …     counters of a run, of METRICS in the core

More is worse for all but the blocks.
"""

from __future__ import annotations

from kdsl_core.inspect.devices import DEVICES
from kdsl_core.ptx import PtxModule
from kdsl_core.sim.profile import Profile
from kdsl_runtime.assemble import ResourceReport
from kdsl_runtime.instruction_counts import ptx_counts
from kdsl_runtime.pins.cubin import instruction_count

# Counters of a run: what the memories move, what synchronises, what the tensor cores do.
_COUNTED = (
    "instructions", "requests", "sectors", "ideal_sectors", "bytes", "wavefronts",
    "ideal_wavefronts", "divergent_branches", "barrier_waits", "mbarrier_waits", "wgmma_waits",
    "mma", "wgmma", "tma_boxes", "tma_bytes",
)  # fmt: skip


def built_figures(module: PtxModule, cubin: bytes, report: ResourceReport) -> dict[str, float]:
    """Those of a kernel that was built."""
    shared = report.shared + module.shared_bytes
    found: dict[str, float] = {
        "registers": report.registers,
        "spill_bytes": report.spill_stores + report.spill_loads,
        "stack_bytes": report.stack,
        "shared_bytes": shared,
    }
    blocks = blocks_per_sm(module, report.registers, shared)
    if blocks is not None:
        found["blocks_per_sm"] = blocks
    found |= {f"ptx_{name}": n for name, n in sorted(ptx_counts(module.text).items())}
    if machine := instruction_count(cubin):
        found["sass_instructions"] = machine
    return found


def blocks_per_sm(module: PtxModule, registers: int, shared: int) -> int | None:
    """Blocks that a multiprocessor holds; None for a target of which kdsl has no device's data."""
    device = next((d for d in DEVICES if d.target == module.target), None)
    return device.occupancy(registers, module.threads, shared)[0] if device else None


def run_figures(profile: Profile) -> dict[str, float]:
    """Those of a run in the simulator."""
    return {f"run_{name}": profile.totals[name] for name in _COUNTED}
