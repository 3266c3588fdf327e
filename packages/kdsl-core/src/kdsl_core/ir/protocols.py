"""The three interfaces that an operation's rules talk to: flattener, PTX writer and machine.

Back ends implement them once; operations are added every week and know nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.ir.block import Block, SharedAlloc
from kdsl_core.ir.target import Target
from kdsl_core.ir.value import Operand, Reg

if TYPE_CHECKING:
    from kdsl_core.ir.op import Op

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Inputs: TypeAlias = Sequence[Sequence[Array]]  # of one instruction: operands' registers (W, 32)


class Accumulation(NamedTuple):
    """Instructions one after the other, each of which updates the same registers (W, 32)."""

    start: Sequence[Array]
    steps: Sequence[Inputs]


Evaluation: TypeAlias = Callable[
    [Sequence[Accumulation]], list[list[Array]]
]  # the registers of each at its end


class Sum(NamedTuple):
    """Numbers (W, 32) as the sum of a column (W or 1, 1) and a row (1, 32 or 1) of their type."""

    column: Array
    row: Array

    @property
    def uniform(self) -> bool:
        """Whether it is one number, in the column."""
        return self.column.size == self.row.size == 1

    @property
    def whole(self) -> Array:
        """All numbers, broadcastable to (W, 32)."""
        return np.asarray(self.column + self.row)


class Label:
    """A place in a flat program; `index` is the instruction it stands before, once placed."""

    __slots__ = ("hint", "index")

    def __init__(self, hint: str) -> None:
        self.hint = hint
        self.index = -1


class Flattener(Protocol):
    """Turns structured control flow into one list of instructions with jumps.

    Structured code is laid out in source order, so that the group of lanes with the smallest
    program counter is always the one that others can re-converge with.
    """

    def instruction(self, op: Op) -> None:
        """Append an ordinary operation."""

    def block(self, block: Block) -> None:
        """Append every operation of a nested block."""

    def label(self, hint: str) -> Label:
        """A new label, not placed yet."""

    def place(self, label: Label) -> None:
        """Put a label before the next instruction."""

    def jump(self, label: Label, op: Op) -> None:
        """Continue at a label."""

    def branch(self, condition: Operand, if_true: bool, label: Label, op: Op) -> None:
        """Lanes whose condition equals `if_true` continue at the label, the others go on."""

    def exit(self, op: Op) -> None:
        """The lanes that are here end."""

    def enter_loop(self, end: Label, step: Label) -> None:
        """Make `end` the target of break and `step` that of continue, until `leave_loop`."""

    def leave_loop(self) -> None:
        """Restore the enclosing loop's targets."""

    def break_label(self) -> Label | None:
        """The target of break here; None outside a loop."""

    def continue_label(self) -> Label | None:
        """The target of continue here; None outside a loop."""


class PtxWriter(Protocol):
    """Receives the PTX of operations, one instruction at a time."""

    target: Target

    def reg(self, operand: Operand) -> str:
        """An operand's text: a register name, or an immediate where PTX takes one.

        Constants of types without immediates in PTX (f16, bf16, fp8, truth values) are moved to a
        register first.
        """

    def emit(self, text: str) -> None:
        """Append one instruction, without its semicolon."""

    def temp(self, register_class: str) -> str:
        """A fresh scratch register of class "b16", "b32", "b64", "f32", "f64" or "pred"."""

    def shared_address(self, alloc: SharedAlloc) -> str:
        """Text of the 32-bit shared-window address of an allocation, usable in `mov.u32`."""

    def label(self, hint: str) -> str:
        """A fresh label's name, for an instruction that waits in a loop of its own."""

    def place_label(self, label: str) -> None:
        """Put a label before the next instruction."""

    def declare(self, text: str) -> None:
        """Put a declaration before the kernel, once however often it is asked for."""

    def string(self, text: str) -> str:
        """Name of a zero-terminated global string that holds `text`."""


class Machine(Protocol):
    """The simulated GPU as one operation sees it: a group of W warps at one program counter.

    Register arrays have shape (W, 32), in the dtype's NumPy type, or broadcast to it; callers never
    modify an array they were given. Every method acts for the active lanes only, records hazards
    at the current operation's line, and counts what the hardware would count.
    """

    numerics: Literal["exact", "fast"]  # tensor cores bit for bit, or one f32 matmul each
    checks_values: bool  # whether anybody wants to know of operands that give no result

    # -- who is here -----------------------------------------------------------------------
    @property
    def warps(self) -> int:
        """W, the number of warps in the group."""

    @property
    def active(self) -> Array:
        """Lanes that execute: bool (W, 32)."""

    def special(self, name: str) -> Array:
        """A special register as u32: "tid.x", "ntid.y", "ctaid.z", "nctaid.x", "laneid", "warpid"
        (the warp's index in its block), "cluster_ctarank", "cluster_ctaid.x", …"""

    # -- registers --------------------------------------------------------------------------
    def read(self, operand: Operand) -> Array:
        """The operand's value, broadcastable to (W, 32)."""

    def write(self, reg: Reg, value: Array, *, where: Array | None = None) -> None:
        """Set a register in active lanes (and in `where`, a bool array, when given)."""

    def compute(
        self,
        registers: tuple[Reg, ...],
        old: Sequence[Operand],
        inputs: Inputs,
        evaluate: Evaluation,
    ) -> None:
        """Set registers of all lanes to what a function makes of old ones and of inputs.

        The machine may wait with it for others of the same function, also for those that go on
        with what this one gives.
        """

    def sums(self, operands: Sequence[Operand]) -> list[Sum] | None:
        """Operands as sums, where the machine keeps all of them so and it pays; else None."""

    def special_sum(self, name: str) -> Sum | None:
        """A special register as a sum, where the machine keeps it so."""

    def write_sum(self, reg: Reg, value: Sum) -> None:
        """Set a register of all lanes to a sum."""

    # -- memory -----------------------------------------------------------------------------
    def load_lines(self, space: str, address: Operand, offset: int, size: int) -> Array | None:
        """What `load` gives where each warp's lanes are equally far apart; None elsewhere."""

    def store_lines(self, space: str, address: Operand, offset: int, data: Array) -> bool:
        """Store uint8 (W, 32, size) where lanes are equally far apart; False elsewhere."""

    def load(
        self,
        space: str,
        address: Array,
        size: int,
        *,
        where: Array | None = None,
        kind: str = "ld",
    ) -> Array:
        """Bytes read: uint8 (W, n, size) for addresses (W, n); zeros where masked off.

        `space` is "global", "shared" (this block's) or "cluster" (shared memory of any block of the
        cluster, addresses of `cluster_address`); `kind` "ld" or "ldmatrix" says how the access is
        split into wavefronts. n is 32 except for matrix loads, where address i belongs to lane i.
        """

    def store(
        self,
        space: str,
        address: Array,
        data: Array,
        *,
        where: Array | None = None,
        kind: str = "st",
    ) -> None:
        """Write data, uint8 (W, n, size), to addresses (W, n)."""

    def atomic(
        self,
        space: str,
        address: Array,
        dtype: DType,
        update: Callable[[Array, Array, Array], Array],
        *,
        where: Array | None = None,
    ) -> Array:
        """Read-modify-write per lane, one at a time; returns the old values (W, 32).

        `update(old, warp, lane)` gives the new values element by element: arrays of one shape,
        for threads whose addresses differ.
        """

    def shared_address(self, alloc: SharedAlloc) -> Array:
        """The u32 (1 or W, 1) shared-window address of an allocation in each warp's block.

        In a cluster it names the block too: its bits from 24 on are no zeros.
        """

    # -- asynchronous copies (cp.async) -----------------------------------------------------
    def async_copy(
        self, destination: Array, source: Array, size: int, source_bytes: Array | None
    ) -> None:
        """Copy `size` bytes per lane from global to shared memory, in the background.

        `source_bytes` (W, 32), when given, limits what is read; the rest is filled with zeros.
        """

    def async_commit(self) -> None:
        """Close the current group of asynchronous copies of every active thread."""

    def async_wait(self, pending: int) -> None:
        """Wait until at most `pending` committed groups of each thread are unfinished."""

    # -- clusters of blocks --------------------------------------------------------------------
    def cluster_address(self, address: Array, rank: Array) -> Array:
        """The u32 (W, 32) address, for space "cluster", of a shared address in block `rank`."""

    def cluster_arrive(self, *, release: bool) -> None:
        """Arrive at the cluster's barrier without waiting."""

    def cluster_wait(self, *, acquire: bool) -> None:
        """Wait until every thread of the cluster has arrived."""

    # -- mbarriers: 8 bytes of shared memory; addresses (W, 32) may be those of another block ----
    def mbarrier_init(self, address: Array, count: Array) -> None:
        """Make an mbarrier that completes a phase after `count` arrivals."""

    def mbarrier_invalidate(self, address: Array) -> None:
        """End the life of an mbarrier, so that its bytes may be used otherwise."""

    def mbarrier_arrive(
        self,
        address: Array,
        count: Array,
        *,
        expect_bytes: Array | None = None,
        where: Array | None = None,
        cluster: bool = False,
        relaxed: bool = False,
    ) -> None:
        """Arrive `count` times; first expect `expect_bytes` more bytes of the current phase.

        `cluster` says that the release is seen by the whole cluster (remote arrivals); `relaxed`
        that nothing is released but that the wgmma are over that the warp has waited for.
        """

    def mbarrier_expect(self, address: Array, size: Array, *, where: Array | None = None) -> None:
        """Expect `size` more bytes in the current phase without arriving."""

    def mbarrier_test(self, address: Array, parity: Array, *, scope: str = "cluster") -> Array:
        """Whether the phase of this parity has completed, bool (W, 32); acquires where it has."""

    def mbarrier_wait(self, address: Array, parity: Array, *, scope: str = "cluster") -> None:
        """Wait until the phase of this parity has completed, and acquire at a scope."""

    def fence_mbarrier_init(self) -> None:
        """Make this thread's mbarrier initialisations visible to the cluster and to TMA."""

    def async_copy_arrive(self, address: Array, *, counted: bool) -> None:
        """Let the thread's `cp.async` copies so far arrive at an mbarrier when they are done.

        `counted` says that the arrival is one of the barrier's count (`.noinc`).
        """

    # -- TMA: every active lane issues a transfer of its own -------------------------------------
    def tensor_load(
        self,
        tensor_map: Array,
        coordinates: list[Array],
        destination: Array,
        barrier: Array,
        *,
        multicast: Array | None = None,
        offsets: tuple[Array, ...] = (),
        where: Array | None = None,
    ) -> None:
        """Start copying a box to shared memory; its bytes complete at `barrier`.

        Coordinates are innermost first. `multicast` (W, 32) is a mask of blocks of the cluster that
        all receive it at their own `destination` and `barrier`; `offsets` are those of im2col.
        """

    def tensor_store(
        self, tensor_map: Array, coordinates: list[Array], source: Array, *, reduce: str | None
    ) -> None:
        """Start copying a box from shared to global memory, in the thread's bulk group.

        `reduce` combines with what is there: "add", "min", "max", "and", "or", "xor", "inc", "dec".
        """

    def tensor_prefetch(self, tensor_map: Array, coordinates: list[Array]) -> None:
        """Count a box brought into L2, and check its coordinates as a load would."""

    def bulk_load(
        self,
        destination: Array,
        source: Array,
        size: Array,
        barrier: Array,
        *,
        multicast: Array | None = None,
    ) -> None:
        """Start copying `size` bytes (a multiple of 16) from global to shared memory."""

    def bulk_store(
        self, destination: Array, source: Array, size: Array, *, reduce: tuple[str, DType] | None
    ) -> None:
        """Start copying `size` bytes from shared to global memory, in the thread's bulk group."""

    def bulk_send(self, destination: Array, source: Array, size: Array, barrier: Array) -> None:
        """Start copying `size` bytes to shared memory of a block of the cluster."""

    def bulk_commit(self) -> None:
        """Close the thread's current bulk group."""

    def bulk_wait(self, pending: int, *, read: bool) -> None:
        """Wait until at most `pending` bulk groups are unfinished; with `read`, still reading."""

    # -- wgmma: each warp computes its own 16 rows of the warp group's 64 -------------------------
    def matrix_rows(
        self, descriptor: Array, first: int, rows: int, depth: int, dtype: DType, major: str
    ) -> tuple[Array, Array]:
        """The distinct matrices in shared memory that wgmma descriptors name, and whose they are.

        Gives their elements [n, rows, depth], and the number (W,) of each warp's. Rows are
        `first` … along M or N and `depth` elements lie along K; `major` "K" or "MN" says which are
        neighbours. The read belongs to the warp's open wgmma group, and is unfinished until
        `warpgroup_wait` covers it. `descriptor` is (W, 32), equal in all lanes.
        """

    def warpgroup_matrices(self, registers: tuple[Reg, ...]) -> Any:
        """What `warpgroup_write` gave accumulators, where nothing changed them since; else None."""

    def warpgroup_write(
        self,
        registers: tuple[Reg, ...],
        matrices: Any,
        spread: Callable[[Any], list[Array]],
    ) -> None:
        """Set accumulators that stay in flight until `warpgroup_wait` covers the open group.

        `spread` gives the registers that matrices, in whatever form, stand for; it is called when
        somebody reads one.
        """

    def warpgroup_uses(self, registers: tuple[Reg, ...]) -> None:
        """Mark operand registers that must not change before the open group is waited for."""

    def warpgroup_fence(self) -> None:
        """Order the warp's register accesses before later wgmma (`wgmma.fence`)."""

    def warpgroup_commit(self) -> None:
        """Close the warp's open wgmma group."""

    def warpgroup_wait(self, pending: int) -> None:
        """Wait until at most `pending` wgmma groups of the warp are unfinished."""

    # -- order ------------------------------------------------------------------------------
    def set_max_registers(self, count: int, *, increase: bool) -> None:
        """Have `count` registers per thread: wait for more, or give the others to the block."""

    def wait_for_dependencies(self) -> None:
        """Wait until the launches ahead of this one have ended."""

    def fence_proxy(self, space: str) -> None:
        """Order ordinary accesses before it with asynchronous ones after it, and the reverse.

        `space` is "shared::cta", "shared::cluster", "global" or "" for all.
        """

    def barrier(self, number: Operand, threads: int | None, *, wait: bool = True) -> None:
        """Arrive at a block's barrier, and wait for it unless `wait` is False.

        `threads` is the number of threads that take part; None means the whole block.
        """

    def sync_lanes(self, mask: Array) -> None:
        """Wait until the lanes named by each lane's 32-bit `mask` are here; orders their memory."""

    def fence(self, scope: str) -> None:
        """Order this thread's memory accesses at scope "cta", "gpu" or "sys"."""

    def require_lanes(self, source: Array, *, where: Array | None = None) -> None:
        """Report a hazard where a source lane index (W, 32) names a lane that is not active."""

    # -- findings ---------------------------------------------------------------------------
    def hazard(self, code: str, message: str, *, where: Array | None = None) -> None:
        """Report a hazard in the active lanes (or in `where`)."""

    def count(self, what: str, amount: float = 1.0) -> None:
        """Add to a counter per warp, such as "mma" operations."""

    def print(self, template: str, values: tuple[Array, ...]) -> None:
        """Show one line per active lane."""
