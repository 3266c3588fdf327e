"""Rows that are taken in turns: read again for each phase and for the results."""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.row_staging import Stage


@kd.func
def take_in_turns(program, operands, share, exchange):
    """One row, from memory, or from a stage and registers."""
    source = Stage(operands, share) if share.config.staged else operands
    turns = Turns(program, operands, share, source)
    turns.begin()
    take_row(turns, exchange)


@kd.func
def take_row(turns, exchange):
    """Reduce a row and write its results."""
    program, operands, share = turns.program, turns.operands, turns.share
    labels = operands.labels(turns.row, share)
    picked = operands.picked(turns.row, *labels)
    stats = ()
    for number, phase in enumerate(program.phases):
        state = turns.reduced(phase, stats)
        if number == len(program.phases) - 1:
            turns.look_ahead(share)
        total = exchange.total(number, phase, state)
        stats = (*stats, *phase.finish(total, share.count, stats))
    if program.outputs:
        turns.write(stats)
    operands.write_row(turns.row, share, stats, labels[0], picked)


class Turns:
    """The turns in which the threads of a row read it.

    Of a staged row the last ones may be `kept` in registers. `ahead` are the epilogue's operands of
    the turn that is written next: they are on their way from L2 while the one before is computed,
    and while the row's threads meet for the last time.
    """

    def __init__(self, program: Any, operands: Any, share: Any, source: Any) -> None:
        self.program, self.operands, self.share, self.source = program, operands, share, source
        self.config, self.row = share.config, share.rows[0]
        self.kept: list[tuple[Any, Any]] = []
        self.ahead: Any = None

    def begin(self) -> None:
        """Have the stage filled, read what is kept."""
        c = self.config
        if c.staged:
            self.source.copy(self.share)
        rest = [self.share.at(turn) for turn in range(c.staged, c.staged + c.kept)]
        self.kept = [(part, self.operands.read(self.row, part)) for part in rest]

    @kd.func
    def reduced(self, phase, stats):
        """This thread's state of a phase."""
        turns = (self.config.staged or self.share.turns) - self.config.ends_apart
        held = [kd.rmem(x.dtype, 1).fill(x) for x in self._extended(phase, stats, self.share)]
        for turn in kd.range(1, turns):
            state = tuple(x[0] for x in held)
            joined = self._extended(phase, stats, self.share.at(turn), state)
            for register, value in zip(held, joined, strict=True):
                register[0] = value
        state = tuple(x[0] for x in held)
        if self.config.ends_apart:
            state = self._extended(phase, stats, self.share.at(turns), state)
        for part, read in self.kept:
            state = self._extended(phase, stats, part, state, read)
        return state

    def _extended(
        self, phase: Any, stats: Any, part: Any, state: Any = None, read: Any = None
    ) -> list[Any]:
        """A phase's state with the turn `part`, read where it is not yet."""
        read = self.source.read(self.row, part) if read is None else read
        values = [self.operands.values(x) for x in read]
        return [kd.as_scalar(x) for x in part.reduced(phase, values, stats, state)]

    def look_ahead(self, part: Any) -> None:
        """Read the epilogue's operands of a turn, so that they come in time."""
        if self.config.early and self.config.staged:
            (self.ahead,) = self.operands.extras_of(part)

    @kd.func
    def write(self, stats):
        """Compute and write the results."""
        if self.config.streamed:
            for turn in kd.range(0, self.share.turns):
                part = self.share.at(turn)
                self._write(part, self.operands.read_again(self.row, part), stats, None)
        else:
            kept = dict(self.kept)
            parts = [self.share.at(turn) for turn in range(self.config.staged)]
            for part, after in zip([*parts, *kept], [*parts[1:], *kept, None], strict=True):
                self._write(part, kept.get(part), stats, after)

    def _write(self, part: Any, read: Any, stats: Any, after: Any) -> None:
        own = self.ahead
        if own is None:
            (own,) = self.operands.extras_of(part)
        elif after is not None:
            self.look_ahead(after)
        if read is None:
            read = self.source.read(self.row, part)
        self.operands.write_vectors(self.row, part, read, own, stats)
