"""What a conflict of two accesses is called, and which word of kdsl would order the two."""

from __future__ import annotations

from kdsl_core.records import dataclass
from kdsl_core.sim.entries import INFLIGHT
from kdsl_core.sim.parties import Party

REFILLS = "starts a copy into"
_UNITS = {"fetches": "starts a copy from"}  # verbs of those who check, where people say another
_DID = {"wrote": "written", "read": "read"}


@dataclass(frozen=True)
class Pair:
    """Two accesses of one byte: `who` completed the hazard, `other` came before.

    `verb` and `did` say what they do to the place called `where`: `did` is that of `Conflict`.
    `other` is None where a transfer or the tensor core acted; `group` is the warp group that the
    latter did it for, `own_group` that it is the one of `who`, and `barrier` the mbarrier that the
    transfer completes at. `atomic` says that the other one's access was atomic, `same_line` that
    both are one instruction, `uses_mbarriers` that the kernel has mbarriers at all.
    """

    code: str
    space: str
    where: str
    verb: str
    did: str
    entry: int
    who: Party
    other: Party | None
    group: str = ""
    own_group: bool = False
    barrier: str = ""
    atomic: bool = False
    same_line: bool = False
    same_cluster: bool = True
    uses_mbarriers: bool = False

    @property
    def does(self) -> str:
        """What the first party does, as a sentence says it."""
        return f"{_UNITS.get(self.verb, self.verb)} {self.where}"

    @property
    def related(self) -> str:
        """How far apart the parties are: "self", "warp", "block", "cluster" or "grid"."""
        who, other = self.who, self.other
        if other is None:
            return "block"
        if who.block != other.block:
            return "cluster" if self.same_cluster else "grid"
        if who.warp != other.warp:
            return "block"
        return "self" if who.lane == other.lane else "warp"

    @property
    def them(self) -> str:
        """The other party, seen from the first."""
        if self.other is None:
            return "an asynchronous transfer"
        home = {
            "self": "", "warp": " of the same block", "block": " of the same block",
            "cluster": f" of {self.other.home}", "grid": f" of {self.other.home}",
        }[self.related]  # fmt: skip
        return "the thread itself" if not home else f"{self.other.name}{home}"


@dataclass(frozen=True)
class Words:
    """The rest of "thread … of block …", what the other party did, and the fix."""

    text: str
    did: str
    fix: str


def words(pair: Pair) -> Words:
    """A sentence about two accesses, and what would order them."""
    if pair.code == "proxy":
        return _unfenced(pair)
    special = {
        "transfers": _stored if pair.space == "global" else _transferred,
        "copies": _copied,
        "reads": _being_sent,
        "multiplies": _being_multiplied,
        "loads": _being_loaded,
    }.get(pair.did)
    if special is not None:
        return special(pair)
    text = f"{pair.does}, which {pair.them} {pair.did}, and nothing orders the two"
    return Words(text, f"{_DID[pair.did]} by {pair.them}", _order(pair))


def _order(pair: Pair) -> str:
    """What would order two ordinary accesses, one of them a write."""
    if pair.related == "grid":
        return (
            "blocks of one launch are not ordered: give each its own elements, use atomics such as "
            "kd.atomic_add, or split the kernel in two launches"
        )
    if pair.same_line and pair.did == "wrote":
        return "give each thread an element of its own, or use an atomic such as kd.atomic_add"
    start = "make both accesses atomic, or put" if pair.atomic else "put"
    if pair.related in ("self", "warp"):
        return f"{start} kd.sync_warp() between the two accesses"
    if pair.related == "cluster":
        return (
            f"{start} kd.cluster_sync() between the two accesses, or let the one block arrive at "
            "an mbarrier of the other, bar.arrive(rank=…), which waits for it"
        )
    assert pair.other is not None
    first, second = sorted((pair.who.warp, pair.other.warp))
    more = f"a kd.named_barrier of warps {first} and {second}"
    if pair.uses_mbarriers:
        more += ", or an mbarrier at which the one arrives and for which the other waits"
    return (
        f"{start} kd.sync_threads() between the two accesses; where not all threads of the block "
        f"get there, {more}"
    )


def _meeting(pair: Pair) -> str:
    """A barrier between a thread that waited and another one; "" for one thread."""
    return {
        "self": "",
        "warp": ", then kd.sync_warp()",
        "cluster": ", then kd.cluster_sync()",
    }.get(pair.related, ", then kd.sync_threads() or another barrier of the two")


def _waiting(pair: Pair, wait: str) -> str:
    """A wait of the other party before what the first one does."""
    if pair.related == "self":
        return f"{wait} before this line"
    assert pair.other is not None
    return f"{wait} in {pair.other.name}{_meeting(pair)}, before this line"


def _unfenced(pair: Pair) -> Words:
    text = (
        f"{pair.does}, which {pair.them} wrote by an ordinary store that no proxy fence made "
        "visible to the asynchronous unit"
    )
    space = "" if pair.space == "shared" else f'"{pair.space}"'
    wait = f"kd.fence_proxy_async({space})"
    return Words(text, f"written by {pair.them}", _waiting(pair, wait))


def _copied(pair: Pair) -> Words:
    text = f"{pair.does}, into which {pair.them} still copies asynchronously"
    wait = "kd.cp_async_wait(n)"
    return Words(text, f"the copy was started by {pair.them}", _waiting(pair, wait))


def _transferred(pair: Pair) -> Words:
    state = "is still filling"
    if pair.entry < INFLIGHT:
        state = "filled, without having waited for it"
    name = pair.barrier or "the mbarrier"
    at = f" (to {pair.barrier})" if pair.barrier else ""
    text = f"{pair.does}, which an asynchronous transfer{at} {state}"
    fix = (
        f"wait for {name}, at which the transfer completes, by bar.wait(parity) in this thread, or "
        "for a barrier behind a thread that did"
    )
    if pair.verb == REFILLS:
        fix = (
            "before it is filled again, wait until its readers are done: for an mbarrier (the "
            f'stage\'s "empty" one) at which they arrive after they have waited for {name}'
        )
    by = "" if pair.other is None else f" by {pair.them}"
    return Words(text, f"the transfer was started{by}", fix)


def _stored(pair: Pair) -> Words:
    text = f"{pair.does}, which an asynchronous store of {pair.them} may not have finished writing"
    wait = "kd.tma_store_wait(0, read=False)"
    return Words(text, f"the store was started by {pair.them}", _waiting(pair, wait))


def _being_sent(pair: Pair) -> Words:
    text = f"{pair.does}, which an asynchronous read of {pair.them} may not have finished"
    wait = "kd.tma_store_wait(0)"
    return Words(text, f"the read was started by {pair.them}", _waiting(pair, wait))


def _being_loaded(pair: Pair) -> Words:
    goes_on = "this line" if pair.related in ("self", "warp") else "the arrival behind it"
    text = (
        f"{pair.does}, which a load by {pair.them} may still be reading: {goes_on} does not wait "
        "for its data"
    )
    fix = (
        f"kd.fence_proxy_async() between the load and {goes_on}, in each thread that loads, then "
        "kd.sync_warp() where one lane goes on for its warp; a store or a branch that needs the "
        "value will do as well, but not arithmetic, shuffles or mma.sync: the assembler moves them"
    )
    return Words(text, f"the load was started by {pair.them}", fix)


def _being_multiplied(pair: Pair) -> Words:
    text = f"{pair.does}, which a wgmma of {pair.group} may still be reading"
    fix = "kd.wgmma_wait(0) before this line"
    if not pair.own_group:
        fix = (
            f"kd.wgmma_wait(0) in {pair.group}, then let it arrive at the mbarrier (the stage's "
            '"empty" one), or the barrier, for which this thread waits before this line'
        )
    return Words(text, f"the wgmma was started by {pair.group}", fix)
