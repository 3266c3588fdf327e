"""What must be finished when threads and blocks end."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.machine_matrix import MatrixPart
from kdsl_core.sim.machine_memory import MemoryPart
from kdsl_core.sim.machine_transfers import TransferPart
from kdsl_core.sim.places import Place

_FIX_READS = "kd.tma_store_wait(0) in the thread that stores, before it ends"
_FIX_WGMMA = "kd.wgmma_wait(0) before the kernel ends"
_FIX_LOADS = "wait for every transfer, bar.wait(parity), or do not start the last ones"


class EndingPart(MatrixPart, TransferPart, MemoryPart):
    """Checks for asynchronous work that threads and blocks leave behind."""

    def end(self) -> None:
        """The group's lanes are about to end."""
        index, lanes = self.group.index, self.group.lanes()
        working = self.flights.unfinished(index)
        if self._check_flights and working.any():
            text = "ends before it has waited for its wgmma"
            self._left(int(working.argmax()), 0, text, _FIX_WGMMA, self.flights.last_pc)
        shadow = self._shared.shadow
        reads = shadow.unfinished_bulk_reads() if shadow else []
        for access in reads:
            place = np.searchsorted(index, access.row)
            place[place == index.size] = 0
            mine = (index[place] == access.row) & lanes[place, access.lane]
            if mine.any():
                at = int(mine.argmax())
                text = "ends although a bulk copy may still read shared memory for it"
                source = self.reporter.places.at(int(access.address[at]), "shared")
                self._left(
                    int(place[at]), int(access.lane[at]), text, _FIX_READS, access.pc, source
                )

    def ended(self) -> None:
        """The group's lanes have ended."""
        batch = self.batch
        blocks = np.unique(batch.block_of[self.group.index])
        self._check_registers_changed(blocks[~batch.living_blocks()[blocks]])
        if not self._shared.has_barriers and batch.blocks_per_cluster == 1:
            return
        self._shared.end(blocks)
        if self.mbarriers.offset.size:
            gone = blocks[~batch.living_blocks()[blocks]]
            for number in self.mbarriers.left(gone).tolist():
                self._left_transfer(number)

    def _check_registers_changed(self, gone: Array) -> None:
        rows = self.register_pool.uneven(gone)
        if rows.size:
            text = "changed its registers although other warps of its warp group did not"
            fix = "let all four warps of the warp group call kd.set_max_registers"
            self.reporter.at_thread(
                "barrier", self.register_pool.pc, int(rows[0]), 0, text, fix=fix
            )

    def _left_transfer(self, number: int) -> None:
        barriers = self.mbarriers
        row = int(barriers.maker[number])
        at = int(np.searchsorted(self.group.index, row))
        at = at if at < self.group.size else 0
        place = self.reporter.places.mbarrier(barriers.address(number))
        text = (
            f"ends, and with it its block, although nobody has waited for all transfers at {place}"
        )
        if barriers.bytes[number]:
            text += f" ({abs(int(barriers.bytes[number]))} bytes do not match what it expects)"
        self._left(at, 0, text, _FIX_LOADS, int(barriers.pc[number]), place)

    def _left(
        self, at: int, lane: int, text: str, fix: str, pc: int, place: Place | None = None
    ) -> None:
        """Report at the instruction that started what was left behind."""
        row = int(self.group.index[at])
        self.reporter.at_thread("inflight", pc, row, lane, text, place=place, fix=fix)
