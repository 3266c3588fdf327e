"""Turns conflicts and bad addresses into hazards that name threads, tensors and lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kdsl_core.ir import Kernel
from kdsl_core.ir.flat import Instruction, loc_of
from kdsl_core.ir.protocols import Array
from kdsl_core.loc import Loc
from kdsl_core.sim.access import Access
from kdsl_core.sim.batch import Batch
from kdsl_core.sim.clocks import GROUP_WARPS
from kdsl_core.sim.conflict_words import Pair, words
from kdsl_core.sim.entries import AGENT, AGENT_SHIFT, ATOMIC, INFLIGHT, Conflict, entry_pc
from kdsl_core.sim.hazards import Findings, Hazard
from kdsl_core.sim.mbarriers import Mbarriers
from kdsl_core.sim.memory import GlobalStore
from kdsl_core.sim.parties import Party, party, party_of
from kdsl_core.sim.places import Place, Places
from kdsl_core.sim.shadow import SharedShadow


class Reporter:
    """Writes hazards about the current batch into the findings.

    `mbarriers` and `shadow` are those of the batch: they know to which mbarrier a transfer goes.
    """

    def __init__(
        self,
        kernel: Kernel,
        instructions: list[Instruction],
        store: GlobalStore,
        findings: Findings,
    ) -> None:
        self._kernel = kernel
        self.instructions = instructions
        self.places = Places(kernel, store)
        self.findings = findings
        self.batch: Batch | None = None
        self.mbarriers: Mbarriers | None = None
        self.shadow: SharedShadow | None = None

    def loc(self, pc: int) -> Loc | None:
        """The author's line of an instruction."""
        return loc_of(self.instructions[pc])

    def place(self, space: str, address: int) -> str:
        """An address as people know it: tensor and element, or allocation and byte."""
        return self.places.at(address, space).text

    def barrier_place(self, address: int) -> str:
        """An mbarrier as people know it: the shared allocation's name and an index."""
        return self.places.mbarrier(address).text

    # -- hazards of one thread -----------------------------------------------------------------
    def at_thread(
        self,
        code: str,
        pc: int,
        row: int,
        lane: int,
        text: str,
        *,
        address: int | None = None,
        place: Place | None = None,
        **more: Any,
    ) -> None:
        """A hazard of one thread; `text` continues "thread … of block …".

        `more` are fields of `Hazard`.
        """
        if self.batch is None or not self.findings.wants(code):
            return
        loc = self.loc(pc)
        who = party_of(self.batch, row, lane, loc)
        if place is None and address is not None:
            place = self.places.at(address)
        self.findings.add(Hazard(code, f"{who} {text}", loc, who=who, place=place, **more))

    def bad_address(
        self, code: str, access: Access, space: str, bad: Array, *, read_only: bool = False
    ) -> None:
        """Addresses that no memory has ("oob") or that break alignment ("misaligned")."""
        count = int(np.count_nonzero(bad))
        if not self.findings.new(code, self.loc(access.pc), times=count):
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
        place = self.places.at(address, space)
        self.at_thread(
            code,
            access.pc,
            int(access.row[at]),
            int(access.lane[at]),
            f"accesses {size} bytes at {place}, {text}",
            place=place,
            fix=fix,
            count=count,
        )

    def over_barrier(self, access: Access, bad: Array, verb: str) -> None:
        """Ordinary accesses to the bytes of live mbarriers."""
        at = int(np.nonzero(bad)[0][0])
        place = self.places.at(int(access.address[at]), "shared")
        self.at_thread(
            "barrier",
            access.pc,
            int(access.row[at]),
            int(access.lane[at]),
            f"{verb} {place}, where an mbarrier lives",
            place=place,
            fix="keep mbarriers and data apart, or end the mbarrier's life first",
        )

    # -- hazards of two parties ------------------------------------------------------------------
    def conflict(self, access: Access, conflict: Conflict, space: str, verb: str) -> None:
        """One hazard for each line of the other party."""
        lines = entry_pc(conflict.entry)
        for pc in np.unique(lines).tolist():
            mine = lines == pc
            other_loc = self.loc(pc) if conflict.code != "uninit" else None
            count = int(np.unique(conflict.at[mine]).size)
            if self.findings.new(conflict.code, self.loc(access.pc), other_loc, times=count):
                number = int(np.argmax(np.where(mine, self._distance(access, conflict), -1)))
                self._report(access, conflict, number, space, verb, count)

    def _distance(self, access: Access, conflict: Conflict) -> Array:
        """How far the parties are apart: lanes 0, warps 1, blocks of the grid 2.

        What orders the farthest orders all.
        """
        assert self.batch is not None
        row = access.row[conflict.at]
        agent = conflict.entry >> AGENT_SHIFT & AGENT
        far = np.not_equal(agent, self.batch.clocks.local[row]).astype(np.int64)
        if conflict.cluster is not None:
            far += 2 * np.not_equal(conflict.cluster, self.batch.first_block[row])
        return np.asarray(far)

    def _report(
        self, access: Access, conflict: Conflict, number: int, space: str, verb: str, count: int
    ) -> None:
        at = int(conflict.at[number])
        row, lane = int(access.row[at]), int(access.lane[at])
        byte = conflict.byte(number, access.size)
        place = self.places.at(int(access.address[at]) + byte, space)
        if conflict.code == "uninit":
            self.at_thread(
                "uninit", access.pc, row, lane, f"{verb} {place}, which no thread has written",
                place=place, count=count,
                fix="write the bytes first; a barrier does not fill them",
            )  # fmt: skip
            return
        other_loc = self.loc(int(entry_pc(conflict.entry)[number]))
        pair = self._pair(access, conflict, number, place, other_loc)
        said = words(replace(pair, space=space, verb=verb))
        self.at_thread(
            conflict.code, access.pc, row, lane, said.text, place=place, fix=said.fix, count=count,
            other_loc=other_loc, other_did=said.did, other=pair.other,
            notes=self._passing(conflict),
        )  # fmt: skip

    def _passing(self, conflict: Conflict) -> tuple[str, ...]:
        """The line of the arrival that does not wait for the other party's load, if it is one."""
        loc = None if conflict.passed_by is None else self.loc(conflict.passed_by)
        if loc is None:
            return ()
        return (f"the arrival that does not wait for it: {loc.short()}\n{loc.excerpt()}",)

    def _pair(
        self, access: Access, conflict: Conflict, number: int, place: Place, other_loc: Loc | None
    ) -> Pair:
        assert self.batch is not None
        batch, entry = self.batch, int(conflict.entry[number])
        at = int(conflict.at[number])
        row, lane = int(access.row[at]), int(access.lane[at])
        first = int(batch.first_block[row])
        other_first = first if conflict.cluster is None else int(conflict.cluster[number])
        agent, other_lane = entry >> AGENT_SHIFT & AGENT, entry & 31
        who = party_of(batch, row, lane, self.loc(access.pc))
        other = group = None
        if agent < batch.clocks.warps:
            other = party(batch, other_first, agent, other_lane, other_loc)
        elif conflict.other == "multiplies":
            group = self._tensor_core(row, agent, other_loc)
        return Pair(
            conflict.code, place.space, place.text, "", conflict.other, entry, who, other,
            group=_group_name(who, group),
            own_group=group is not None
            and (group.block, group.warp_group) == (who.block, who.warp_group),
            barrier=self._completes_at(row, entry) if conflict.other == "transfers" else "",
            atomic=bool(entry & ATOMIC),
            same_line=other_loc is self.loc(access.pc),
            same_cluster=other_first == first,
            uses_mbarriers=self.mbarriers is not None and bool(self.mbarriers.offset.size),
        )  # fmt: skip

    def _tensor_core(self, row: int, agent: int, loc: Loc | None) -> Party:
        """The first thread of the warp group that a column of the clocks stands for."""
        assert self.batch is not None
        batch = self.batch
        per_block = -(-batch.warps_per_block // GROUP_WARPS)
        rank, group = divmod(agent - batch.clocks.warps, per_block)
        warp = rank * batch.warps_per_block + group * GROUP_WARPS
        return party(batch, int(batch.first_block[row]), warp, 0, loc)

    def _completes_at(self, row: int, entry: int) -> str:
        """The name of the mbarrier that the transfer of an entry completes at, if it is known."""
        if self.batch is None or self.mbarriers is None or self.shadow is None:
            return ""
        if entry >= INFLIGHT:
            number = self.shadow.completes_at(entry)
        else:
            cluster = self.batch.clocks.cluster
            agent = entry >> AGENT_SHIFT & AGENT
            number = self.mbarriers.of_agent(int(cluster[row]), agent)
        return "" if number < 0 else self.barrier_place(self.mbarriers.address(number))


def _group_name(who: Party, first: Party | None) -> str:
    if first is None:
        return ""
    role = f" ({first.role})" if first.role else ""
    home = "" if first.block == who.block else f" of {first.home}"
    return f"warp group {first.warp_group}{role}{home}"
