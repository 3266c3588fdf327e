"""The machine that operations talk to: one group of warps of a batch at one instruction."""

from __future__ import annotations

from kdsl_core.sim.endings import EndingPart


class SimMachine(EndingPart):
    """Implements `ir.protocols.Machine` for one batch of blocks."""
