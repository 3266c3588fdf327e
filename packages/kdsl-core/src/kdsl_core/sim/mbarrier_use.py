"""How threads and transfers use mbarriers, with every check."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access
from kdsl_core.sim.batch import Batch
from kdsl_core.sim.groups import LANES
from kdsl_core.sim.mbarriers import MOST_ARRIVALS, MOST_BYTES, Mbarriers
from kdsl_core.sim.reporting import Reporter
from kdsl_core.sim.shared_access import SharedAccess

_FIX_INIT = (
    "let one thread call bar.init() and kd.fence_mbarrier_init(), then kd.sync_threads() (or "
    "kd.cluster_sync()) before anybody uses it"
)
_FIX_PHASE = (
    "wait for the phase before, or for an arrival of somebody who has waited for it, such as the "
    "release of the stage"
)
_FIX_COUNT = "create the mbarrier with as many arrivals as come in one phase, or let fewer arrive"
_FIX_BYTES = "expect the bytes of exactly the transfers that complete at this mbarrier in one phase"


class MbarrierUse:
    """Operations on mbarriers in the name of the threads of an access, whose addresses they are."""

    def __init__(
        self, batch: Batch, shared: SharedAccess, barriers: Mbarriers, reporter: Reporter
    ) -> None:
        self._batch = batch
        self._shared = shared
        self._barriers = barriers
        self._reporter = reporter

    # -- life ----------------------------------------------------------------------------------
    def init(self, access: Access, count: Array) -> None:
        """Make mbarriers that complete a phase after `count` (L,) arrivals."""
        strange = (count < 1) | (count > MOST_ARRIVALS)
        if strange.any():
            given = int(count[strange][0])
            text = f"gives an mbarrier {given} arrivals; 1 to {MOST_ARRIVALS} are possible"
            self._hazard(access, strange, text, "give it the number of arrivals of one phase")
        offset, good = self._shared.offsets(access)
        good = ~strange if good is None else good & ~strange
        access, offset, count = access.take(good), offset[good], count[good]
        if not offset.size:
            return
        again = self._barriers.at(offset) >= 0
        if again.any():
            text = f"initialises {self._place(access, again)}, which is in use already"
            self._hazard(access, again, text, "call its invalidate first, or initialise it once")
            self._shared.barriers[offset[again] // 8] = False
        self._shared.store(access, np.zeros((offset.size, 8), np.uint8))
        first = np.unique(offset, return_index=True)[1]
        self._barriers.init(offset[first], count[first], access.row[first], access.lane[first])
        self._shared.barriers[offset // 8] = True
        self._shared.has_barriers = True

    def invalidate(self, access: Access) -> None:
        """End the life of mbarriers."""
        number = self.find(access)
        number = number[number >= 0]
        self._barriers.invalidate(number)
        self._shared.barriers[self._barriers.offset[number] // 8] = False

    def find(self, access: Access, *, asynchronous: bool = False) -> Array:
        """The numbers (L,) of the mbarriers, −1 for what is none; reports those not ready."""
        if not asynchronous:
            self._shared.touch(access)
        offset, good = self._shared.offsets(access)
        number = self._barriers.at(np.where(True if good is None else good, offset, 0))
        missing = number < 0
        if missing.any() or good is not None:
            text = f"uses {self._place(access, missing)}, which nobody has initialised"
            self._hazard(access, missing, text, _FIX_INIT)
            number = number if good is None else np.where(good, number, -1)
            if (number < 0).all():
                return number
        self._check_ready(access, number, asynchronous)
        return number

    def _check_ready(self, access: Access, number: Array, asynchronous: bool) -> None:
        barriers, clocks = self._barriers, self._batch.clocks
        if not clocks.kept:
            return
        there = number >= 0
        maker = barriers.maker[number]
        seen = clocks.known[access.row, clocks.local[maker]] >= barriers.made[number]
        own = (maker == access.row) & (barriers.lane[number] == access.lane)
        early = there & ~seen & ~own
        if early.any():
            text = f"uses {self._place(access, early)}, whose initialisation nothing orders before"
            self._hazard(access, early, text, _FIX_INIT, number)
        far = self._batch.block_of[maker] != self._batch.block_of[access.row]
        hidden = there & (barriers.fenced[number] == 0) & (far | asynchronous)
        if hidden.any():
            text = (
                f"uses {self._place(access, hidden)} from another block or by a transfer, although "
                "no fence made its initialisation visible to these"
            )
            self._hazard(access, hidden, text, _FIX_INIT, number)

    def _check_phase(self, access: Access, number: Array) -> None:
        """Who arrives must know that transfers of the phase before have completed it."""
        there = number >= 0
        if not self._batch.clocks.kept or not there.any():
            return
        early = there & ~self._barriers.knows_phase(number, access.row)
        if early.any():
            text = (
                f"arrives at {self._place(access, early)} without knowing that the transfers of "
                "the phase before have come: another run counts it there"
            )
            self._hazard(access, early, text, _FIX_PHASE, number)

    # -- phases ----------------------------------------------------------------------------------
    def arrive(
        self, access: Access, count: Array, size: Array | None, *, relaxed: bool = False
    ) -> Array:
        """Arrive, after expecting more bytes; gives the mbarriers whose phases complete."""
        number = self.find(access)
        self._check_phase(access, number)
        self._expect(access, number, size)
        return self._arrive(access, number, count, relaxed=relaxed)

    def expect(self, access: Access, size: Array) -> Array:
        """Expect more bytes of the current phase."""
        number = self.find(access)
        self._expect(access, number, size)
        return self._complete(number)

    def copies_arrive(self, access: Access, counted: bool) -> Array:
        """Copies of threads arrive; those that are not counted make the phase's count larger."""
        number = self.find(access)
        there = number >= 0
        self._barriers.transfer(number[there], access.pc)
        if not counted:
            np.add.at(self._barriers.pending, number[there], 1)
        return self._arrive(access, number, np.ones(number.size, np.int64), silent=True)

    def complete_bytes(self, access: Access, size: Array) -> Array:
        """Bytes of transfers have come."""
        number = self.find(access, asynchronous=True)
        there = number >= 0
        self._barriers.transfer(number[there], access.pc)
        self._barriers.note_blocks(number[there], access.row[there])
        self._barriers.expect(number[there], -size[there])
        return self._complete(number)

    def test(
        self, access: Access, parity: Array, scope: str = "cluster", *, waits: bool = False
    ) -> Array:
        """Whether phases have completed (L,); acquires where they have, and may wait elsewhere."""
        number = self.find(access)
        lost = number < 0
        passed = self._barriers.passed(number, parity & 1) if self._barriers.offset.size else lost
        passed = passed | lost
        strange = parity > 1
        if strange.any():
            text = f"waits for parity {int(parity[strange][0])}; a phase has parity 0 or 1"
            self._hazard(access, strange, text, "flip the parity, phase ^ 1, when the ring wraps")
        done = passed & ~lost
        if done.any():
            self._barriers.acquire(number[done], access.row[done])
            if scope == "cta":
                self._check_scope(access, number, done)
        if waits and not passed.all():
            self._barriers.wait(number[~passed], access.row[~passed])
        return np.asarray(passed)

    # -- parts -----------------------------------------------------------------------------------
    def _check_scope(self, access: Access, number: Array, done: Array) -> None:
        foreign = done & (self._barriers.foreign[number] != 0)
        if foreign.any():
            text = (
                f"waits at {self._place(access, foreign)} at the scope of its block, although "
                "threads or copies of another block arrive there: what they did is not ordered"
            )
            self._hazard(access, foreign, text, 'wait at the scope "cluster"', number)

    def _expect(self, access: Access, number: Array, size: Array | None) -> None:
        if size is None:
            return
        there = number >= 0
        self._barriers.expect(number[there], size[there])
        over = (
            there & (self._barriers.bytes[number] > MOST_BYTES) if there.any() else ~there & there
        )
        if over.any():
            text = (
                f"makes {self._place(access, over)} expect more than the {MOST_BYTES} bytes that a "
                "phase can count"
            )
            self._hazard(access, over, text, "split the transfers over several mbarriers", number)

    def _arrive(
        self,
        access: Access,
        number: Array,
        count: Array,
        *,
        silent: bool = False,
        relaxed: bool = False,
    ) -> Array:
        there = number >= 0
        barriers, clocks = self._barriers, self._batch.clocks
        if not there.any():
            return number[there]
        asked = np.bincount(number[there], count[there], barriers.offset.size).astype(np.int64)
        over = there & (asked > barriers.pending)[number]
        if over.any():
            at = int(over.argmax())
            text = (
                f"arrives at {self._place(access, over)} beyond its count: {asked[number[at]]} "
                f"arrivals here, {barriers.pending[number[at]]} pending of "
                f"{barriers.count[number[at]]} in phase {barriers.phase[number[at]]}"
            )
            self._hazard(access, over, text, _FIX_COUNT, number)
            there &= ~over
        if there.any():
            distinct = np.unique(number[there])
            barriers.arrive(distinct, asked[distinct])
            if clocks.kept and not silent:
                pairs = np.unique(np.stack([access.row[there], number[there]], axis=1), axis=0)
                barriers.note_blocks(pairs[:, 1], pairs[:, 0])
                rows, which = np.unique(pairs[:, 0], return_inverse=True)
                lanes = np.zeros((rows.size, LANES), bool)
                lanes[np.searchsorted(rows, access.row[there]), access.lane[there]] = True
                clocks.lanes.release(rows, lanes)
                clocks.loads.pass_by(rows, access.pc)
                barriers.learn(
                    pairs[:, 1], clocks.publish(rows, relaxed=relaxed)[which.reshape(-1)]
                )
        return self._complete(number)

    def _complete(self, number: Array) -> Array:
        there = number[number >= 0]
        done = self._barriers.complete(there)
        moved = done[self._barriers.agent[done] >= 0]
        if moved.size and self._shared.shadow:
            agent = self._barriers.agent[moved]
            self._shared.shadow.finish_phase(moved, agent, self._barriers.epochs(moved))
        return done

    def _place(self, access: Access, which: Array) -> str:
        at = int(np.argmax(which))
        return self._reporter.barrier_place(int(access.address[at]))

    def _hazard(
        self, access: Access, which: Array, text: str, fix: str, number: Array | None = None
    ) -> None:
        if not which.any():
            return
        at = int(which.argmax())
        self._reporter.at_thread(
            "barrier", access.pc, int(access.row[at]), int(access.lane[at]), text,
            place=self._reporter.places.mbarrier(int(access.address[at])), fix=fix,
        )  # fmt: skip
