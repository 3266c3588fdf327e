"""Who wrote each element of the outputs last: thread, line, and the register it came from."""

from __future__ import annotations

import re

import numpy as np

from kdsl_core.ir import Kernel, Op, Operand, Reg, Value
from kdsl_core.ir.flat import Instruction, loc_of
from kdsl_core.ir.protocols import Array
from kdsl_core.loc import Loc
from kdsl_core.records import dataclass
from kdsl_core.sim.batch import Batch
from kdsl_core.sim.entries import AGENT, AGENT_SHIFT, entry_pc, entry_thread
from kdsl_core.sim.global_access import GlobalAccess
from kdsl_core.sim.memory import Buffer
from kdsl_core.sim.parties import Party, party

_ELEMENTS = re.compile(r"(\w+)\[(\d+)(?::(\d+))?\]")  # what registers of a tensor are called


@dataclass(frozen=True)
class Writer:
    """The last write of an element.

    `register` is the element of a register tensor whose value it was, such as "acc[7]"; "" where
    it came from none, as in a transfer from shared memory.
    """

    who: Party
    loc: Loc | None
    register: str


@dataclass(frozen=True, eq=False)
class Writers:
    """The last writes of a launch. `batch` tells where a block's threads are."""

    kernel: Kernel
    instructions: list[Instruction]
    memory: GlobalAccess
    buffers: dict[str, Buffer]
    batch: Batch

    def blocks(self, name: str) -> Array:
        """Of each element of a tensor the linear number of the block that wrote it, −1 for none."""
        found = self.memory.last_writes(self.buffers[name])
        if found is None:
            return np.full(self.buffers[name].array.shape, -1)
        entry, cluster, _ = found
        warps = np.where(
            cluster < 0, -1, cluster.astype(np.int64) << 10 | entry >> AGENT_SHIFT & AGENT
        )
        kinds, which = np.unique(warps, return_inverse=True)
        return np.array([*map(self._block, kinds.tolist())])[which.reshape(warps.shape)]

    def _block(self, warp: int) -> int:
        """The linear number of the block of a warp, from its cluster's first block and agent."""
        if warp < 0:
            return -1
        rank = (warp & AGENT) // self.batch.warps_per_block
        x, y, z = self.batch.coordinate_in_cluster(warp >> 10, rank)
        width, height, _ = self.batch.grid
        return x + width * (y + height * z)

    def of(self, name: str, coordinate: tuple[int, ...]) -> Writer | None:
        """Who wrote an element; None where nobody did."""
        found = self.memory.last_writes(self.buffers[name], coordinate)
        if found is None or found[1] < 0:
            return None
        entry, cluster, place = map(int, found)
        instruction = self.instructions[int(entry_pc(np.array(entry)))]
        warp, lane = entry_thread(entry)
        loc = loc_of(instruction)
        return Writer(
            party(self.batch, cluster, warp, lane, loc),
            loc,
            self._register(instruction, place),
        )

    def _register(self, instruction: Instruction, byte: int) -> str:
        """The element of registers that a store took the one from that it wrote at a byte."""
        if not isinstance(instruction, Op):
            return ""
        made = {value: op for op in self.kernel.body.walk() for value in op.writes()}
        seen: set[Reg] = set()

        def follow(operand: Operand, byte: int) -> str:
            named = _ELEMENTS.fullmatch(getattr(operand, "hint", ""))
            if named:
                name, first, last = named.groups()
                count = int(last) - int(first) if last else 1
                return f"{name}[{int(first) + byte * count // operand.dtype.bytes}]"
            if not isinstance(operand, Value) or operand in seen or operand not in made:
                return ""
            seen.add(operand)
            ways = made[operand].origins(byte)
            return next(filter(None, (follow(*way) for way in ways)), "")

        ways = instruction.origins(byte)
        return next(filter(None, (follow(*way) for way in ways)), "")
