"""Rows that are taken in turns: read again for each phase and for the results."""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.row_staging import Stage


@kd.func
def take_in_turns(program, operands, share, exchange):
    """One row, from memory or from a stage, and what is kept of it in registers."""
    turns = Turns(program, operands, share)
    turns.begin()
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
    """The turns in which the threads of a row read it; the last may be kept in registers.

    `ahead` are the epilogue's operands of the turn that is written next: they are on their way
    from L2 while the one before is computed, and during the last meeting of the row's threads.
    """

    def __init__(self, program: Any, operands: Any, share: Any) -> None:
        self.program, self.operands, self.share = program, operands, share
        self.config, self.row = share.config, share.rows[0]
        self.source = Stage(operands, share) if self.config.staged else operands
        self.rest, self.kept = share.at(None), []
        self.ahead: Any = None

    def begin(self) -> None:
        """Have the stage filled, read what is kept."""
        if self.config.staged:
            self.source.copy(self.share)
        if self.config.kept:
            self.kept = self.operands.read(self.row, self.rest)

    @kd.func
    def reduced(self, phase, stats):
        """This thread's state of a phase."""

        def values(part):
            read = self.source.read(self.row, part)
            return part.filled([self.operands.values(x) for x in read], phase, stats)

        first = phase.local(values(self.share), stats)
        held = [kd.rmem(x.dtype, 1).fill(x) for x in map(kd.as_scalar, first)]
        for turn in kd.range(1, self.share.turns):
            more = values(self.share.at(turn))
            joined = phase.extend(tuple(x[0] for x in held), more, stats)
            for register, value in zip(held, joined, strict=True):
                register[0] = kd.as_scalar(value)
        state = tuple(x[0] for x in held)
        if not self.kept:
            return state
        kept = [self.operands.values(x) for x in self.kept]
        return phase.extend(state, self.rest.filled(kept, phase, stats), stats)

    def look_ahead(self, part: Any) -> None:
        """Read the epilogue's operands of a turn, so that they come in time."""
        if self.config.early and self.config.staged:
            self.ahead = self.operands.extras_of(self.row, part)

    @kd.func
    def write(self, stats):
        """Compute and write the results."""
        if self.config.streamed:
            for turn in kd.range(0, self.share.turns):
                self._write(self.share.at(turn), stats)
        else:
            parts = [self.share.at(turn) for turn in range(self.share.turns)]
            if self.kept:
                parts.append(self.rest)
            for part, after in zip(parts, [*parts[1:], None], strict=True):
                self._write(part, stats, after)

    def _write(self, part: Any, stats: Any, after: Any = None) -> None:
        read, own = self.kept, self.ahead
        if self.ahead is None:
            own = self.operands.extras_of(self.row, part)
        elif after is not None:
            self.look_ahead(after)
        if part is not self.rest:
            read = self.source.read(self.row, part)
        self.operands.write_vectors(self.row, part, read, own, stats)
