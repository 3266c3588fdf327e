"""What a conflict of two accesses is called, and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass

from kdsl_core.sim.access import Access
from kdsl_core.sim.batch import Batch
from kdsl_core.sim.entries import INFLIGHT, Conflict, entry_thread

_FIX_RACE = {
    "lanes": "put kd.sync_warp() between the two accesses",
    "warps": "put kd.sync_threads(), or a named barrier of both warps, between the two accesses",
    "cluster": "put kd.cluster_sync() between the two accesses, or wait for an mbarrier at which "
    "the other block arrives",
    "blocks": "blocks of one launch are not ordered: give each its own elements, use atomics, or "
    "split the kernel in two launches",
}
_FIX_TRANSFER = (
    "wait for the mbarrier's phase that the transfer completes, bar.wait(parity), or for a barrier "
    "of a thread that did"
)
_FIX_STORE = "kd.tma_store_wait(0, read=False) in the thread that stores, then a barrier"
_FIX_READ = (
    "wait for the readers first: kd.wgmma_wait(0) or kd.tma_store_wait(0) there, then let them "
    "arrive at the mbarrier, or the barrier, that this thread waits for"
)
_FIX_PROXY = "kd.fence_proxy_async() in the writing threads after their stores, before the barrier"


@dataclass(frozen=True)
class Words:
    """The rest of "thread … of block …", what the other party did, and the fix."""

    text: str
    did: str
    fix: str


def words(
    batch: Batch, access: Access, conflict: Conflict, first: int, where: str, verb: str, space: str
) -> Words:
    """About the conflict's entry number `first`, at the place `where`."""
    if conflict.other == "multiplies":
        text = f"{verb} {where}, which a wgmma of the block may still be reading"
        return Words(text, "the wgmma was started", _FIX_READ)
    at = int(conflict.at[first])
    who, kind = _other(batch, conflict, first, int(access.row[at]), int(access.lane[at]))
    if conflict.code == "proxy":
        text = (
            f"lets an asynchronous unit read {where}, which {who} wrote by an ordinary store that "
            "no proxy fence made visible to it"
        )
        return Words(text, f"written by {who}", _FIX_PROXY)
    if conflict.other == "transfers":
        return _transfer(conflict, first, where, verb, space)
    if conflict.other == "reads":
        text = f"{verb} {where}, which an asynchronous read of {who} may not have finished"
        return Words(text, "the read was started", _FIX_READ)
    if conflict.other == "copies":
        text = f"{verb} {where}, into which {who} still copies asynchronously"
        fix = "kd.cp_async_wait(n) in the copying thread, then kd.sync_threads()"
        return Words(text, "the copy was started", fix)
    did = {"wrote": "written", "read": "read"}[conflict.other]
    text = f"{verb} {where}, which {who} {conflict.other}, and nothing orders the two"
    return Words(text, f"{did} by {who}", _FIX_RACE[kind])


def _transfer(conflict: Conflict, first: int, where: str, verb: str, space: str) -> Words:
    if space == "global":
        text = f"{verb} {where}, which an asynchronous store may not have finished writing"
        return Words(text, "the store was started", _FIX_STORE)
    state = "is still filling"
    if int(conflict.entry[first]) < INFLIGHT:
        state = "filled, without having waited for it"
    text = f"{verb} {where}, which an asynchronous transfer {state}"
    return Words(text, "the transfer was started", _FIX_TRANSFER)


def _other(batch: Batch, conflict: Conflict, first: int, row: int, mine: int) -> tuple[str, str]:
    """The other thread, and how it is related: "lanes", "warps", "cluster" or "blocks"."""
    agent, lane = entry_thread(int(conflict.entry[first]))
    cluster = int(batch.first_block[row])
    other = cluster if conflict.cluster is None else int(conflict.cluster[first])
    if agent >= batch.clocks.warps:
        return "an asynchronous transfer", "warps"
    rank, warp = divmod(agent, batch.warps_per_block)
    who = f"thread {_tuple(batch.thread_coordinate(warp, lane))}"
    place = batch.coordinate_in_cluster(other, rank)
    if other != cluster:
        return f"{who} of block {_tuple(place)}", "blocks"
    if place != batch.block_coordinate(row):
        return f"{who} of block {_tuple(place)} of the same cluster", "cluster"
    if warp == int(batch.local[row]) and lane == mine:
        return "the thread itself", "lanes"
    if warp == int(batch.local[row]):
        return f"{who} of the same warp", "lanes"
    return f"{who} of the same block", "warps"


def _tuple(values: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, values))})"
