"""Words that ask where a thread is, order threads, and exchange data between lanes."""

from __future__ import annotations

from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Const
from kdsl_core.isa import async_copy, barrier, convert, launch, special, warp
from kdsl_core.lang.scalar import Scalar, as_scalar
from kdsl_core.lang.tensor import operand_of
from kdsl_core.lang.tracer import builder, current
from kdsl_core.loc import here

_FULL_MASK = 0xFFFFFFFF
_AXES = "xyz"
_PROXY_SPACES = {
    "shared": "shared::cta",
    "cluster": "shared::cluster",
    "global": "global",
    "all": "",
}


# -- where am I ------------------------------------------------------------------------------
def thread_idx() -> tuple[Any, Any, Any]:
    """The thread's index in its block, (x, y, z)."""
    extents = current().kernel.block_dim
    return tuple(_index(f"tid.{axis}", n) for axis, n in zip(_AXES, extents, strict=True))  # type: ignore[return-value] # three axes


def block_idx() -> tuple[Any, Any, Any]:
    """The block's index in the grid, (x, y, z)."""
    return tuple(_index(f"ctaid.{axis}", None) for axis in _AXES)  # type: ignore[return-value] # three axes


def block_dim() -> tuple[int, int, int]:
    """Threads of a block along each axis: known while tracing."""
    return current().kernel.block_dim


def grid_dim() -> tuple[Any, Any, Any]:
    """Blocks of the grid along each axis."""
    return tuple(_index(f"nctaid.{axis}", None) for axis in _AXES)  # type: ignore[return-value] # three axes


def thread_rank() -> Any:
    """The thread's linear index in its block, x fastest."""
    (x, y, z), (nx, ny, _) = thread_idx(), block_dim()
    return as_scalar(x + nx * (y + ny * z))


def lane_idx() -> Any:
    """The thread's lane in its warp, 0 … 31."""
    return thread_rank() % 32


def warp_idx() -> Any:
    """The warp's index in its block."""
    return thread_rank() // 32


def warpgroup_idx() -> Any:
    """The index of the warp's group of four warps."""
    return thread_rank() // 128


def _index(name: str, extent: int | None) -> Scalar:
    if extent == 1:
        return as_scalar(0)
    b = builder()
    operand = convert.bitcast(b, special.special(b, name), dt.i32)
    return Scalar(operand, nonneg=True, bound=extent)


# -- order -----------------------------------------------------------------------------------
def sync_threads() -> None:
    """Wait for every thread of the block; orders their shared and global memory accesses.

    Threads: all threads of the block, converged in each warp.
    Source: PTX `barrier.sync 0`.
    """
    barrier.barrier_sync(builder(), Const(dt.u32, 0))


def sync_warp(mask: int = _FULL_MASK) -> None:
    """Wait for the lanes in `mask`; orders their memory accesses among each other.

    Source: PTX `bar.warp.sync`.
    """
    barrier.sync_warp(builder(), Const(dt.u32, mask))


class named_barrier:
    """One of the block's 16 barriers, for a part of its threads.

    Threads: `threads` counts those that arrive or wait; a multiple of 32. `number` may be a value
    of the kernel, the same in all lanes of a warp.
    """

    def __init__(self, number: int | Scalar, threads: int) -> None:
        known = isinstance(number, int)
        if (known and not 0 <= number < 16) or threads % 32 or not 0 < threads <= 1024:
            raise TypeMismatch(
                f"a named barrier has a number 0 … 15 and a multiple of 32 threads, got "
                f"{number} and {threads}",
                code="K216",
                loc=here(),
                fix="round the number of threads up to whole warps",
            )
        self.number = as_scalar(number, dt.u32).operand
        self.threads = threads

    def sync(self) -> None:
        """Arrive and wait for the others."""
        barrier.barrier_sync(builder(), self.number, self.threads)

    def arrive(self) -> None:
        """Arrive without waiting."""
        barrier.barrier_arrive(builder(), self.number, self.threads)


def fence(scope: str = "gpu") -> None:
    """Order this thread's memory accesses as others at `scope` ("cta", "gpu", "sys") see them."""
    barrier.fence(builder(), scope)


def fence_proxy_async(space: str = "shared") -> None:
    """Order this thread's own accesses before it with those of TMA and wgmma after it.

    `space` is "shared", "cluster" (shared memory of any block of it), "global" or "all". Data that
    a TMA load brought needs no fence, the wait on its mbarrier is enough.
    """
    if space not in _PROXY_SPACES:
        raise TypeMismatch(
            f"a proxy fence is for one of {', '.join(_PROXY_SPACES)}, got {space!r}",
            code="K279",
            loc=here(),
            fix='write kd.fence_proxy_async() after stores to shared memory, "all" when in doubt',
        )
    barrier.fence_proxy(builder(), _PROXY_SPACES[space])


def cp_async_commit() -> None:
    """Close this thread's current group of asynchronous copies."""
    async_copy.cp_async_commit(builder())


def cp_async_wait(pending: int) -> None:
    """Wait until at most `pending` of this thread's newest groups are unfinished.

    Memory: makes the finished copies visible to this thread; others need a barrier after it.
    """
    async_copy.cp_async_wait(builder(), pending)


def wait_for_dependencies() -> None:
    """Wait until the kernels that this one was launched behind have ended, and see their results.

    Needed only where a launch may overlap the one before it; otherwise it returns at once.
    """
    launch.wait_for_dependencies(builder())


def launch_dependents() -> None:
    """Let the next kernel of the stream start, once every block has said so or has ended."""
    launch.launch_dependents(builder())


# -- lanes -----------------------------------------------------------------------------------
def shfl_xor(value: Any, lane_mask: int) -> Scalar:
    """The value of the lane whose number differs by XOR with `lane_mask`."""
    return _shuffle("xor", value, lane_mask)


def shfl_up(value: Any, delta: int) -> Scalar:
    """The value of the lane `delta` below; the lowest `delta` lanes keep their own."""
    return _shuffle("up", value, delta)


def shfl_down(value: Any, delta: int) -> Scalar:
    """The value of the lane `delta` above; the highest `delta` lanes keep their own."""
    return _shuffle("down", value, delta)


def shfl_idx(value: Any, lane: Any) -> Scalar:
    """The value of lane `lane`."""
    return _shuffle("idx", value, lane)


def _shuffle(mode: str, value: Any, lane: Any) -> Scalar:
    operand = as_scalar(lane).operand
    return Scalar(warp.shuffle(builder(), mode, as_scalar(value).operand, operand))


def ballot(condition: Any) -> Scalar:
    """A u32 with bit i set where lane i's condition holds."""
    return Scalar(warp.vote(builder(), "ballot", as_scalar(condition).operand))


def any_sync(condition: Any) -> Scalar:
    """Whether the condition holds in some lane of the warp."""
    return Scalar(warp.vote(builder(), "any", as_scalar(condition).operand))


def all_sync(condition: Any) -> Scalar:
    """Whether the condition holds in every lane of the warp."""
    return Scalar(warp.vote(builder(), "all", as_scalar(condition).operand))


def warp_reduce(op: Any, value: Any) -> Scalar:
    """`op` over the 32 lanes, the result in every lane.

    `op` is a function of two scalars, associative and commutative, such as `kd.max` or
    ``lambda a, b: a + b``.
    """
    total = as_scalar(value)
    for step in (16, 8, 4, 2, 1):
        total = op(total, shfl_xor(total, step))
    return total


__all__ = [
    "all_sync",
    "any_sync",
    "ballot",
    "block_dim",
    "block_idx",
    "cp_async_commit",
    "cp_async_wait",
    "fence",
    "fence_proxy_async",
    "grid_dim",
    "lane_idx",
    "launch_dependents",
    "named_barrier",
    "operand_of",
    "shfl_down",
    "shfl_idx",
    "shfl_up",
    "shfl_xor",
    "sync_threads",
    "sync_warp",
    "thread_idx",
    "thread_rank",
    "wait_for_dependencies",
    "warp_idx",
    "warp_reduce",
    "warpgroup_idx",
]
