"""Let operations read a variable itself where a snapshot of it would still be equal.

Tracing takes a snapshot whenever a variable's value is used. Where the variable is not written
again before the last use of the snapshot, the variable can be read directly; the snapshot is then
dead.
"""

from __future__ import annotations

from bisect import bisect_right

from kdsl_core.ir import Block, Kernel, Op, Operand, Value, Var
from kdsl_core.isa.control import LoopOp
from kdsl_core.isa.register import MoveOp
from kdsl_core.records import dataclass


def forward_reads(kernel: Kernel) -> None:
    """Replace, in place, reads of snapshots by reads of their variables where both are equal."""
    scan = _Scan()
    scan.block(kernel.body)
    chosen = scan.forwardable()
    if chosen:
        _replace(kernel.body, chosen)


@dataclass(eq=False)
class _Snapshot:
    """A snapshot: its variable, where it was taken, and until when the variable must not change."""

    var: Var
    block: Block
    depth: int
    time: int
    last: int


@dataclass(eq=False)
class _Use:
    """A use of a snapshot inside a nested operation; it counts until that operation's end."""

    snapshot: _Snapshot
    holder: Op


class _Scan:
    """Numbers operations in source order and records snapshots, their uses, and writes."""

    def __init__(self) -> None:
        self.time = 0
        self.path: list[tuple[Block, Op | None]] = []
        self.snapshots: dict[Operand, _Snapshot] = {}
        self.escaped: set[Operand] = set()
        self.nested_uses: list[_Use] = []
        self.ends: dict[Op, int] = {}
        self.writes: dict[Var, list[int]] = {}

    def block(self, block: Block) -> None:
        self.path.append((block, None))
        for op in block.ops:
            self.path[-1] = (block, op)
            self.operation(op)
        self.path.pop()

    def operation(self, op: Op) -> None:
        self.time += 1
        if isinstance(op, LoopOp):
            self.block(op.head)
            self.path.append((op.head, None))
            self.time += 1
            self.uses(op)  # the condition is read at the end of each run of the head
            self.path.pop()
            self.block(op.body)
            self.block(op.step)
        else:
            self.uses(op)
            for region in op.regions():
                self.block(region)
        self.ends[op] = self.time
        for register in op.writes():
            if isinstance(register, Var):
                self.writes.setdefault(register, []).append(self.time)
        if isinstance(op, MoveOp) and isinstance(op.source, Var) and isinstance(op.d, Value):
            block, _ = self.path[-1]
            depth = len(self.path) - 1
            self.snapshots[op.d] = _Snapshot(op.source, block, depth, self.time, self.time)

    def uses(self, op: Op) -> None:
        for operand in op.reads():
            snapshot = self.snapshots.get(operand) if isinstance(operand, Value) else None
            if snapshot is None:
                continue
            inside = snapshot.depth < len(self.path)
            block, holder = self.path[snapshot.depth] if inside else (None, None)
            if block is not snapshot.block:
                self.escaped.add(operand)
            elif snapshot.depth == len(self.path) - 1:
                snapshot.last = self.time
            elif holder is not None:
                self.nested_uses.append(_Use(snapshot, holder))

    def forwardable(self) -> dict[Operand, Var]:
        """Snapshots that equal their variables at every use."""
        for use in self.nested_uses:
            use.snapshot.last = max(use.snapshot.last, self.ends[use.holder])
        return {
            value: snapshot.var
            for value, snapshot in self.snapshots.items()
            if value not in self.escaped and not self._written_during(snapshot)
        }

    def _written_during(self, snapshot: _Snapshot) -> bool:
        """Whether the variable is written after the snapshot, up to and with its last reader."""
        times = self.writes.get(snapshot.var, [])
        after = bisect_right(times, snapshot.time)
        return after < len(times) and times[after] <= snapshot.last


def _replace(block: Block, chosen: dict[Operand, Var]) -> None:
    def change(operand: Operand) -> Operand:
        return chosen.get(operand, operand) if isinstance(operand, Value) else operand

    for index, op in enumerate(block.ops):
        for region in op.regions():
            _replace(region, chosen)
        block.ops[index] = op.map_reads(change)
