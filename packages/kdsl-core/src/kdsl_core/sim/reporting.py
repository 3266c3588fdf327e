"""Turns conflicts and bad addresses into hazards that name threads, tensors and lines."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir import Kernel
from kdsl_core.ir.flat import Instruction
from kdsl_core.ir.protocols import Array
from kdsl_core.loc import Loc
from kdsl_core.sim.access import Access
from kdsl_core.sim.batch import SHARED_BASE, Batch
from kdsl_core.sim.hazards import Findings, Hazard
from kdsl_core.sim.memory import GlobalStore
from kdsl_core.sim.shadow import Conflict, entry_pc, entry_thread

_FIX_RACE = {
    "lanes": "put kd.sync_warp() between the two accesses",
    "warps": "put kd.sync_threads(), or a named barrier of both warps, between the two accesses",
    "blocks": "blocks of one launch are not ordered: give each its own elements, use atomics, or "
    "split the kernel in two launches",
}


class Reporter:
    """Writes hazards about the current batch into the findings."""

    def __init__(
        self,
        kernel: Kernel,
        instructions: list[Instruction],
        store: GlobalStore,
        findings: Findings,
    ) -> None:
        self._kernel = kernel
        self._instructions = instructions
        self._store = store
        self.findings = findings
        self.batch: Batch | None = None

    def loc(self, pc: int) -> Loc | None:
        """The author's line of an instruction."""
        instruction = self._instructions[pc]
        return getattr(getattr(instruction, "op", instruction), "loc", None)

    def at_thread(self, code: str, pc: int, row: int, lane: int, text: str, **more: object) -> None:
        """A hazard of one thread; `text` continues "thread … of block …"."""
        if self.batch is None or not self.findings.wants(code):
            return
        thread = self.batch.thread_coordinate(row, lane)
        block = self.batch.block_coordinate(row)
        who = f"thread {_tuple(thread)} of block {_tuple(block)}"
        self.findings.add(
            Hazard(code, f"{who} {text}", self.loc(pc), thread=thread, block=block, **more)  # type: ignore[arg-type]  # the keyword fields of Hazard
        )

    def bad_address(
        self, code: str, access: Access, space: str, bad: Array, *, read_only: bool = False
    ) -> None:
        """Addresses that no memory has ("oob") or that break alignment ("misaligned")."""
        if not self.findings.new(code, self.loc(access.pc)):
            return
        at = int(np.nonzero(bad)[0][0])
        address, size = int(access.address[at]), access.size
        text, fix = "outside of every tensor", "guard the access with the tensor's bounds"
        if read_only:
            text, fix = "of a read-only array", "pass an array that may be written"
        elif code == "misaligned":
            text = f"which {size & -size} does not divide"
            fix = "use a narrower access, or align the row starts"
        elif space == "shared":
            text = f"outside of the {self._kernel.shared_bytes} bytes that the block has"
            fix = "allocate more shared memory, or correct the index"
        self.at_thread(
            code,
            access.pc,
            int(access.row[at]),
            int(access.lane[at]),
            f"accesses {size} bytes at {self.place(space, address)}, {text}",
            address=address,
            fix=fix,
        )

    def conflict(self, access: Access, conflict: Conflict, space: str, verb: str) -> None:
        """One hazard for each line of the other party."""
        lines = conflict.entry >> 11 & ((1 << 21) - 1)
        for pc in np.unique(lines).tolist():
            first = int(np.nonzero(lines == pc)[0][0])
            other_loc = self.loc(pc) if conflict.code != "uninit" else None
            if self.findings.new(conflict.code, self.loc(access.pc), other_loc):
                self._report(access, conflict, first, space, verb)

    def _report(
        self, access: Access, conflict: Conflict, first: int, space: str, verb: str
    ) -> None:
        at, entry = int(conflict.at[first]), int(conflict.entry[first])
        row, lane = int(access.row[at]), int(access.lane[at])
        address = int(access.address[at])
        where = self.place(space, address)
        if conflict.code == "uninit":
            text = f"reads {where}, which no thread has written"
            self.at_thread(
                "uninit", access.pc, row, lane, text, address=address,
                fix="write the bytes first; a barrier does not fill them",
            )  # fmt: skip
            return
        who, fix = self._other(conflict, first, row)
        other_loc = self.loc(entry_pc(entry))
        if conflict.code == "inflight":
            text = f"{verb} {where}, into which {who} still copies asynchronously"
            fix = "kd.cp_async_wait(n) in the copying thread, then kd.sync_threads()"
            did = "the copy was started"
        else:
            did = {"wrote": "written", "read": "read", "copies": "written"}[conflict.other]
            text = f"{verb} {where}, which {who} {conflict.other}, and nothing orders the two"
        self.at_thread(
            conflict.code, access.pc, row, lane, text, other_loc=other_loc,
            other_did=did if conflict.code == "inflight" else f"{did} by {who}",
            address=address, fix=fix,
        )  # fmt: skip

    def _other(self, conflict: Conflict, first: int, row: int) -> tuple[str, str]:
        batch = self.batch
        assert batch is not None
        warp, lane = entry_thread(int(conflict.entry[first]))
        mine = int(batch.blocks[batch.block_of[row]])
        block = mine if conflict.block is None else int(conflict.block[first])
        base = row - int(batch.local[row])
        who = f"thread {_tuple(batch.thread_coordinate(base + warp, lane))}"
        if block != mine:
            gx, gy, _ = batch.grid
            place = (block % gx, block // gx % gy, block // (gx * gy))
            return f"{who} of block {_tuple(place)}", _FIX_RACE["blocks"]
        kind = "lanes" if warp == int(batch.local[row]) else "warps"
        return f"{who} of the same {'warp' if kind == 'lanes' else 'block'}", _FIX_RACE[kind]

    def place(self, space: str, address: int) -> str:
        """An address as people know it: tensor and element, or allocation and byte."""
        if space == "shared":
            return self._shared_place(address)
        allocation = self._store.find(address, address + 1)
        if allocation is None:
            near = self._store.nearest(address)
            if near is None:
                return f"global address {address:#x}"
            low, high = near.span
            name = f"{near.name}{_shape(near.array.shape)}"
            apart = f"{address - high} bytes behind {name}"
            if address < low:
                apart = f"{low - address} bytes before {name}"
            return f"global address {address:#x}, {apart}"
        buffer = allocation.buffer_at(address)
        element = buffer.coordinate(address)
        if element is None:
            return f"global address {address:#x} between the elements of {buffer.name}"
        return f"{buffer.name}[{', '.join(map(str, element))}]"

    def _shared_place(self, address: int) -> str:
        offset = address - SHARED_BASE
        for alloc in self._kernel.shared:
            if alloc.offset <= offset < alloc.offset + alloc.bytes:
                return f"byte {offset - alloc.offset} of shared {alloc.name}"
        return f"shared address {address:#x}"


def _tuple(values: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, values))})"


def _shape(shape: tuple[int, ...]) -> str:
    return _tuple(shape).replace(", )", ")") if shape else "()"
