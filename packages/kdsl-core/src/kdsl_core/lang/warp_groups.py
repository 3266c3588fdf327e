"""Words of kernels whose warps have different roles: producers, and warp groups that multiply."""

from __future__ import annotations

from typing import Any

from kdsl_core.isa import launch, warp, wgmma
from kdsl_core.lang.scalar import Scalar, as_scalar
from kdsl_core.lang.tracer import builder, current
from kdsl_core.lang.words import shfl_idx


def elect_one() -> Scalar:
    """True in one lane of the warp, which is the same each time.

    Threads: all lanes of the warp, converged.
    """
    return Scalar(warp.elect(builder()))


def warp_uniform(value: Any) -> Scalar:
    """The first lane's value: the assembler then knows that all lanes hold the same.

    Threads: all lanes of the warp, converged.
    """
    first, known = shfl_idx(value, 0), as_scalar(value)
    return Scalar(first.operand, divisor=known.divisor, nonneg=known.nonneg, bound=known.bound)


def set_max_registers(count: int) -> None:
    """Have `count` registers per thread from here on: fewer are given away, more waited for.

    Threads: all warps of a warp group, converged.
    Units: a multiple of 8 from 24 to 256; the sum over the block must not exceed what it had.
    """
    kernel = current().kernel
    # The assembler must know what a thread starts with, so one block per multiprocessor is said.
    kernel.min_blocks_per_sm = kernel.min_blocks_per_sm or 1
    launch.set_max_registers(builder(), count, increase=count > kernel.registers_at_entry)


def min_blocks_per_sm(count: int) -> None:
    """Have so few registers per thread that `count` blocks share a multiprocessor.

    The same as `@kd.kernel(min_blocks_per_sm=…)`, where it depends on a trace-time argument.
    """
    current().kernel.min_blocks_per_sm = count


def wgmma_fence() -> None:
    """Order writes of registers before the wgmma that read or accumulate into them.

    Threads: all warps of a warp group, converged.
    """
    wgmma.fence(builder())


def wgmma_commit() -> None:
    """Close the current group of wgmma operations."""
    wgmma.commit(builder())


def wgmma_wait(pending: int) -> None:
    """Wait until at most `pending` of the newest wgmma groups are unfinished.

    Memory: until then accumulators must not be touched, nor operands in shared memory changed.
    """
    wgmma.wait(builder(), pending)
