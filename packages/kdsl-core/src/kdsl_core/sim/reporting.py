"""Turns conflicts and bad addresses into hazards that name threads, tensors and lines."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir import Kernel
from kdsl_core.ir.flat import Instruction
from kdsl_core.ir.protocols import Array
from kdsl_core.loc import Loc
from kdsl_core.sim.access import Access
from kdsl_core.sim.batch import RANK_SHIFT, SHARED_BASE, Batch
from kdsl_core.sim.conflict_words import words
from kdsl_core.sim.entries import Conflict, entry_pc
from kdsl_core.sim.hazards import Findings, Hazard
from kdsl_core.sim.memory import GlobalStore


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
        elif space != "global":
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

    def over_barrier(self, access: Access, bad: Array, verb: str) -> None:
        """Ordinary accesses to the bytes of live mbarriers."""
        at = int(np.nonzero(bad)[0][0])
        address = int(access.address[at])
        self.at_thread(
            "barrier",
            access.pc,
            int(access.row[at]),
            int(access.lane[at]),
            f"{verb} {self.place('shared', address)}, where an mbarrier lives",
            address=address,
            fix="keep mbarriers and data apart, or end the mbarrier's life first",
        )

    def conflict(self, access: Access, conflict: Conflict, space: str, verb: str) -> None:
        """One hazard for each line of the other party."""
        lines = entry_pc(conflict.entry)
        for pc in np.unique(lines).tolist():
            first = int(np.nonzero(lines == pc)[0][0])
            other_loc = self.loc(pc) if conflict.code != "uninit" else None
            if self.findings.new(conflict.code, self.loc(access.pc), other_loc):
                self._report(access, conflict, first, space, verb)

    def _report(
        self, access: Access, conflict: Conflict, first: int, space: str, verb: str
    ) -> None:
        at = int(conflict.at[first])
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
        assert self.batch is not None
        said = words(self.batch, access, conflict, first, where, verb, space)
        self.at_thread(
            conflict.code, access.pc, row, lane, said.text,
            other_loc=self.loc(int(entry_pc(conflict.entry)[first])), other_did=said.did,
            address=address, fix=said.fix,
        )  # fmt: skip

    def barrier_place(self, address: int) -> str:
        """An mbarrier as people know it: the shared allocation's name and an index."""
        offset = (address & (1 << RANK_SHIFT) - 1) - SHARED_BASE
        rank = address >> RANK_SHIFT
        where = f" of block {rank - 1} of the cluster" if rank else ""
        for alloc in self._kernel.shared:
            if alloc.offset <= offset < alloc.offset + alloc.bytes:
                index = f"[{(offset - alloc.offset) // 8}]" if alloc.bytes > 8 else ""
                return f"mbarrier {alloc.name}{index}{where}"
        return f"mbarrier at shared address {address:#x}"

    def place(self, space: str, address: int) -> str:
        """An address as people know it: tensor and element, or allocation and byte."""
        if space != "global":
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
        rank = address >> RANK_SHIFT
        offset = (address & (1 << RANK_SHIFT) - 1) - SHARED_BASE
        where = f" of block {rank - 1} of the cluster" if rank else ""
        for alloc in self._kernel.shared:
            if alloc.offset <= offset < alloc.offset + alloc.bytes:
                return f"byte {offset - alloc.offset} of shared {alloc.name}{where}"
        return f"shared address {address:#x}"


def _tuple(values: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, values))})"


def _shape(shape: tuple[int, ...]) -> str:
    return _tuple(shape).replace(", )", ")") if shape else "()"
