"""A ring of shared-memory stages between the thread that fills them and the warps that read them.

Each stage has two mbarriers: `full` completes when its bytes have arrived, `empty` when every
reader has released it. Writer and readers walk the ring at their own pace, and keep stage and
parity themselves.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.lang.mbarriers import Mbarrier, Mbarriers, mbarrier
from kdsl_core.lang.numbers import where
from kdsl_core.lang.scalar import Scalar, as_scalar
from kdsl_core.lang.struct import struct


@struct
class RingPosition:
    """A place in a ring of `stages`, and the parity of the phase that is waited for there."""

    stages: int
    index: dt.i32  # type: ignore[valid-type] # a register of the kernel
    parity: dt.u32  # type: ignore[valid-type] # as above

    @property
    def stage(self) -> Scalar:
        """The stage, known to be one of the ring's."""
        return Scalar(as_scalar(self.index).operand, bound=self.stages)

    def advance(self) -> None:
        """Go to the next stage; the parity turns when the ring wraps."""
        wraps = self.index == self.stages - 1
        self.parity = where(wraps, self.parity ^ 1, self.parity)
        self.index = where(wraps, 0, self.index + 1)

    def skip(self, steps: Any) -> None:
        """Go `steps` stages on, without waiting for any of them."""
        place = Scalar((self.stage + steps).operand, nonneg=True)
        self.parity = (self.parity + (place // self.stages).to(dt.u32)) % 2
        self.index = place % self.stages


class TmaPipeline:
    """A ring of `stages` that one thread fills by TMA, `bytes` each, and `readers` release.

    In a cluster whose blocks fill each other's stages by multicast, `sharers` lists the ranks of
    the blocks that a release must reach: those that load what this block reads, itself included.
    With `rings` there are so many of them side by side, each of which is seen by `ring`. `scope` is
    that of waits, as of `Mbarrier.wait`.

    Memory: 16 bytes of shared memory a stage.
    Threads: `init` by one thread, then a barrier of all; one writer; each reader releases once.
    """

    def __init__(
        self,
        stages: int,
        bytes: int,
        readers: int,
        sharers: tuple[Any, ...] = (None,),
        rings: int = 1,
        scope: str | None = None,
    ) -> None:
        self.stages = stages
        self.bytes = bytes
        self.sharers = sharers
        self.scope = scope
        self.full = mbarrier(1, stages * rings, name="full")
        self.empty = mbarrier(readers * len(sharers), stages * rings, name="empty")

    def init(self) -> None:
        """Initialise the barriers."""
        self.full.init()
        self.empty.init()

    def ring(self, number: Any) -> TmaPipeline:
        """One of several rings: what goes through it, in an order of its own."""
        one, first = copy(self), number * self.stages
        one.full = Mbarriers(self.full[first], self.stages)
        one.empty = Mbarriers(self.empty[first], self.stages)
        return one

    def writer(self) -> PipelineWriter:
        """The writer's view, at the first stage; all stages are free."""
        return PipelineWriter(self, RingPosition(self.stages, 0, 1))

    def reader(self) -> PipelineReader:
        """A reader's view, at the first stage."""
        return PipelineReader(
            self, RingPosition(self.stages, 0, 0), RingPosition(self.stages, 0, 0)
        )


class PipelineWriter:
    """The thread that fills the stages."""

    def __init__(self, pipeline: TmaPipeline, at: RingPosition) -> None:
        self.pipeline = pipeline
        self.at = at

    def acquire(self, bytes: Any = None) -> tuple[Any, Mbarrier]:
        """Wait until the stage is free, and announce its bytes: the stage and its `full` barrier.

        The copies into the stage must complete on this barrier, `bytes` of them in all: those of
        the pipeline unless other ones are given.
        """
        stage = self.at.stage
        self.pipeline.empty[stage].wait(self.at.parity, scope=self.pipeline.scope)
        barrier = self.pipeline.full[stage]
        barrier.arrive_expect(self.pipeline.bytes if bytes is None else bytes)
        return stage, barrier

    def advance(self) -> None:
        """Go on to the next stage."""
        self.at.advance()

    def drain(self) -> None:
        """Wait until every stage is free: nobody arrives at this block's barriers any more."""
        for _ in range(self.pipeline.stages):
            self.pipeline.empty[self.at.stage].wait(self.at.parity, scope=self.pipeline.scope)
            self.at.advance()


class PipelineReader:
    """Warps that read the stages in order and release them, later, in the same order."""

    def __init__(self, pipeline: TmaPipeline, at: RingPosition, oldest: RingPosition) -> None:
        self.pipeline = pipeline
        self.at = at
        self.oldest = oldest

    def wait(self) -> Any:
        """Wait for the next stage's bytes; gives the stage."""
        stage = self.at.stage
        self.pipeline.full[stage].wait(self.at.parity, scope=self.pipeline.scope)
        self.at.advance()
        return stage

    def release(self, thread: Any) -> None:
        """Let the oldest stage that this reader still holds be filled again.

        Threads: all of the reader, each with its own number `thread`; the first ones arrive, one
        for each block that must know. Readers by ordinary loads fence (`fence_proxy_async`) and
        meet (`sync_warp`) before it: an arrival does not wait for loads that are on their way. To
        other blocks of a cluster it is relaxed, which is right only for readers by `wgmma`.
        """
        barrier = self.pipeline.empty[self.oldest.stage]
        for number, rank in enumerate(self.pipeline.sharers):
            # What was read by wgmma has been read: nothing is left to release to other blocks.
            barrier.arrive(rank=rank, pred=thread == number, relaxed=rank is not None)
        self.oldest.advance()

    def skip(self, steps: Any) -> None:
        """Leave out `steps` stages that another reader takes.

        Threads: before the next `wait`, those stages must have been waited for by their reader: a
        parity tells a phase from the next one, not from the one after that.
        """
        self.at.skip(steps)
        self.oldest.skip(steps)
