"""Reads and writes of global memory, with every check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access
from kdsl_core.sim.batch import Batch
from kdsl_core.sim.entries import Conflict, entry_thread
from kdsl_core.sim.global_shadow import GlobalShadow, Releases
from kdsl_core.sim.memory import Allocation, Buffer, GlobalStore, gather, scatter, update_in_turn
from kdsl_core.sim.reporting import Reporter

_FIX_AHEAD = "call kd.wait_for_dependencies() before it, in this thread or ahead of a barrier"


class GlobalAccess:
    """Global memory of a launch.

    `written` are the allocations that the kernel may write, `shared` those that the launch ahead
    of this one may still use.
    """

    def __init__(
        self,
        store: GlobalStore,
        reporter: Reporter,
        written: list[Allocation],
        shared: Sequence[Allocation] = (),
    ) -> None:
        self._store = self.allocations = store
        self._reporter = reporter
        self._ahead = np.array([*(a in shared for a in store.allocations), False])
        self.releases = Releases()
        self.batch: Batch | None = None
        self._hints: dict[int, Allocation] = {}
        self._shadows: dict[int, GlobalShadow] = {}
        if reporter.findings.wants("race") or reporter.findings.wants("unwritten"):
            for allocation in written:
                shadow = GlobalShadow(allocation.data.size, self.releases)
                self._shadows[id(allocation)] = shadow

    def begin(self, batch: Batch) -> None:
        """Run for another batch of blocks from now on."""
        self.batch = batch
        for shadow in self._shadows.values():
            shadow.begin(batch.clocks)

    def finish_stores(self, finished: Array) -> None:
        """Asynchronous stores of groups below `finished` (rows, 32) are done."""
        for shadow in self._shadows.values():
            shadow.finish_stores(finished)

    def load(self, access: Access, *, asynchronous: bool = False) -> Array:
        """Bytes (L, size); zeros where no tensor is."""
        verb = "fetches" if asynchronous else "reads"
        self._check_launch_ahead(access, verb)
        whole = self._whole(access)
        if whole is not None:
            self._check(whole, access, verb)
            return gather(whole.data, access.address - whole.origin, access.size)
        found = np.zeros((access.address.size, access.size), np.uint8)
        for allocation, chosen in self._split(access):
            part = access.take(chosen)
            self._check(allocation, part, verb)
            found[chosen] = gather(allocation.data, part.address - allocation.origin, access.size)
        return found

    def store(self, access: Access, data: Array, group: Array | None = None) -> None:
        """Write bytes (L, size); dropped where no tensor is.

        A `group` (L,) of bulk copies makes it a store that goes on until the group is done.
        """
        self._check_launch_ahead(access, "writes")
        whole = self._whole(access)
        if whole is not None:
            self._write(whole, access, data, group)
            return
        for allocation, chosen in self._split(access):
            part = None if group is None else group[chosen]
            self._write(allocation, access.take(chosen), data[chosen], part)

    def atomic(
        self,
        access: Access,
        dtype: np.dtype[Any],
        update: Callable[[Array, Array], Array],
        group: Array | None = None,
    ) -> Array:
        """Read-modify-write one thread after the other; the old values (L,)."""
        self._check_launch_ahead(access, "updates")
        old = np.zeros(access.address.size, dtype)
        if self.batch is not None and group is None:
            rows = np.unique(access.row)
            self.batch.clocks.atomic(rows)
            self.releases.atomic(self.batch.first_block[rows])
        for allocation, chosen in self._split(access):
            if not allocation.writeable:
                self._reporter.bad_address("oob", access, "global", chosen, read_only=True)
                continue
            groups = None if group is None else group[chosen]
            self._check(allocation, access.take(chosen), "updates", groups, atomic=True)
            allocation.written = True
            words = allocation.data.view(dtype)
            which = np.nonzero(chosen)[0]
            place = (access.address[which] - allocation.origin) // dtype.itemsize
            part = partial(_update_part, update, which)
            old[which] = update_in_turn(words, place, part)
        return old

    def _write(
        self, allocation: Allocation, access: Access, data: Array, group: Array | None
    ) -> None:
        offset = access.address - allocation.origin
        if not allocation.writeable:
            everywhere = np.ones(offset.shape, bool)
            self._reporter.bad_address("oob", access, "global", everywhere, read_only=True)
            return
        scatter(allocation.data, offset, data)
        allocation.written = True
        within = self._check(allocation, access, "writes", group)
        if within is not None:
            stays = (gather(allocation.data, offset, access.size) == data).all(axis=1)
            real = self._of_other_value(access, within, stays)
            if real.at.size:
                self._reporter.conflict(access, real, "global", "writes")

    def _check(
        self,
        allocation: Allocation,
        access: Access,
        verb: str,
        group: Array | None = None,
        *,
        atomic: bool = False,
    ) -> Conflict | None:
        shadow = self._shadows.get(id(allocation))
        if shadow is None or self.batch is None:
            return None
        batch, within = self.batch, None
        cluster = batch.first_block[access.row]
        offset = access.address - allocation.origin
        if verb in ("reads", "fetches"):
            found = shadow.read(
                batch.clocks, access, offset, cluster, asynchronous=verb == "fetches"
            )
        else:
            found, within = shadow.write(
                batch.clocks, access, offset, cluster, atomic=atomic, group=group
            )
        for conflict in found:
            self._reporter.conflict(access, conflict, "global", verb)
        return within

    def _check_launch_ahead(self, access: Access, verb: str) -> None:
        """Report what reaches memory that the launch ahead may still use, before it has ended."""
        if not self._ahead.any() or self.batch is None:
            return
        early = ~self.batch.clocks.after_launch_ahead(access.row)
        if not early.any():
            return
        early &= self._ahead[self._store.locate(access.address, access.size)]
        if early.any():
            at = int(early.argmax())
            address = int(access.address[at])
            place = self._reporter.place("global", address)
            self._reporter.at_thread(
                "race", access.pc, int(access.row[at]), int(access.lane[at]),
                f"{verb} {place}, which the launch ahead of this one may still use",
                address=address, fix=_FIX_AHEAD,
            )  # fmt: skip

    def unwritten(self, buffer: Buffer) -> Array:
        """Coordinates (n, modes) of a buffer's elements that the launch has not written whole."""
        found = self._shadow_of(buffer)
        if found is None:
            return np.zeros((0, buffer.array.ndim), np.int64)
        shadow, place = found
        written = shadow.written_bytes()
        whole = written[place[..., None] + np.arange(buffer.array.itemsize)].all(axis=-1)
        return np.argwhere(~whole)

    def last_writes(
        self, buffer: Buffer, coordinate: tuple[int, ...] | None = None
    ) -> tuple[Array, Array, Array] | None:
        """Of each element, or of one: the entry of its last write, the writer's cluster, −1 where
        nobody wrote, and its byte in the allocation; None when nothing was remembered.
        """
        found = self._shadow_of(buffer, coordinate)
        if found is None:
            return None
        shadow, place = found
        return *shadow.last_writes(place), place

    def _shadow_of(
        self, buffer: Buffer, coordinate: tuple[int, ...] | None = None
    ) -> tuple[GlobalShadow, Array] | None:
        """The shadow of a buffer that the kernel may write, and where in it elements are."""
        allocation = self._store.find(*buffer.span)
        shadow = self._shadows.get(id(allocation))
        if allocation is None or shadow is None or not buffer.array.size:
            return None
        place = np.array(buffer.address - allocation.origin)
        if coordinate is not None:
            return shadow, place + np.dot(coordinate, buffer.array.strides)
        for size, step in zip(buffer.array.shape, buffer.array.strides, strict=True):
            place = place[..., None] + np.arange(size) * step
        return shadow, place

    def _of_other_value(self, access: Access, within: Conflict, stays: Array) -> Conflict:
        """Leave out lanes of one warp that wrote the same value at once: no order can differ."""
        assert self.batch is not None and within.cluster is not None
        row = access.row[within.at]
        warps = np.array([entry_thread(entry)[0] for entry in within.entry.tolist()])
        foreign = within.cluster != self.batch.first_block[row]
        real = foreign | (warps != self.batch.clocks.local[row]) | ~stays[within.at]
        return within.take(real)

    def expect(self, access: Access) -> None:
        """Report addresses that no tensor has, without reading there."""
        lost = self._store.locate(access.address, access.size) < 0
        if lost.any():
            self._reporter.bad_address("oob", access, "global", lost)

    # -- which allocation ------------------------------------------------------------------
    def _whole(self, access: Access) -> Allocation | None:
        """The allocation that holds all of a well-formed access; None when it must be split."""
        size, address = access.size, access.address
        low, high = int(address.min()), int(address.max()) + size
        hint = self._hints.get(access.pc)
        if hint is None or low < hint.low or high > hint.high:
            hint = self._store.find(low, high)
            if hint is None:
                return None
            self._hints[access.pc] = hint
        return hint if size & (size - 1) == 0 and not (address & (size - 1)).any() else None

    def _split(self, access: Access) -> Iterator[tuple[Allocation, Array]]:
        """Each allocation with the threads, bool (L,), that may access it; reports the others."""
        unit = access.size & -access.size
        crooked = (access.address & (unit - 1)) != 0
        if crooked.any():
            self._reporter.bad_address("misaligned", access, "global", crooked)
        number = self._store.locate(access.address, access.size)
        lost = number < 0
        if lost.any():
            self._reporter.bad_address("oob", access, "global", lost)
        number = np.where(crooked, -1, number)
        for found in np.unique(number).tolist():
            if found >= 0:
                yield self._store.allocations[found], number == found


def _update_part(
    update: Callable[[Array, Array], Array], which: Array, at: Array, now: Array
) -> Array:
    return update(which[at], now)
