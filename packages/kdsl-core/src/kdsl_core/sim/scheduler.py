"""Which group runs next: the one with the smallest program counter, until it blocks or ends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kdsl_core.ir import Op
from kdsl_core.ir.flat import Branch, Exit, FlatProgram, Jump
from kdsl_core.ir.protocols import Array
from kdsl_core.sim.counters import Counters
from kdsl_core.sim.deadlock import report_deadlock, report_runaway
from kdsl_core.sim.groups import Group, merge
from kdsl_core.sim.instruction_facts import Facts
from kdsl_core.sim.machine import SimMachine

_PATIENCE = 256  # backward jumps after which other warps get their turn
_LANE_PATIENCE = 1 << 16  # the same for lanes of one warp, which re-converge if left alone
_NEVER = 1 << 60
_TEAMS = 3
_PROMPT = 0.25  # of the transfers are done before the next group runs, when the order is random


class Budget:
    """Instructions that a run may still execute, a group at a time, and a call now and then."""

    def __init__(self, instructions: int, every_so_often: Callable[[], None]) -> None:
        self.limit = instructions
        self.left = instructions
        self.beat = every_so_often


class Scheduler:
    """Runs one batch of blocks to its end, or until nobody can go on.

    With `rng`, warps are dealt to teams that take turns at random; teams never merge, so that the
    order of warps differs from run to run of different seeds while lanes still re-converge. And
    transfers complete some time after they were started, in any order.
    """

    def __init__(
        self,
        program: FlatProgram,
        known: list[Facts],
        machine: SimMachine,
        counters: Counters,
        budget: Budget,
        rng: np.random.Generator | None,
    ) -> None:
        self._instructions = program.instructions
        self._facts = known
        self._machine = machine
        machine.delays = rng is not None
        self._total = machine.batch.rows
        self._counters = counters
        self._budget = budget
        self._rng = rng
        self._ready: list[Group] = []
        self._parked: list[Group] = []
        self._partial: list[Group] = []
        self._deal()

    def _deal(self) -> None:
        batch = self._machine.batch
        team = np.zeros(self._total, np.int64)
        if self._rng is not None:
            team = self._rng.integers(0, _TEAMS, self._total)
        for number in np.unique(team).tolist():
            index = np.nonzero(team == number)[0]
            self._ready.append(Group(index, batch.exist[index], 0, self._total, number))

    def run(self) -> None:
        """Run every group to its end."""
        late = self._machine.late
        while self._ready or self._partial or late:
            if late and (not self._ready or self._at_random(_PROMPT)):
                self._complete_transfer()
            elif self._ready:
                self._run(self._next())
            else:
                self._go_on_without_lanes()
        if self._parked:
            report_deadlock(self._machine, self._parked)

    def _at_random(self, share: float) -> bool:
        return self._rng is not None and bool(self._rng.random() < share)

    def _complete_transfer(self) -> None:
        """Some transfer that was delayed is done."""
        machine = self._machine
        machine.complete_late(
            0 if self._rng is None else int(self._rng.integers(len(machine.late)))
        )
        for kind, rows in machine.freed:
            self._wake(kind, rows)
        machine.freed = []

    # -- choice ------------------------------------------------------------------------------
    def _next(self) -> Group:
        """Take the group to run from the ready ones, merged with those at the same place."""
        self._budget.beat()
        candidates = [g for g in self._ready if not self._must_wait(g)]
        if not candidates:
            for group in self._ready:
                group.back_jumps += 1
            candidates = self._ready
        if self._rng is not None:
            teams = sorted({g.team for g in candidates})
            team = teams[int(self._rng.integers(len(teams)))]
            candidates = [g for g in candidates if g.team == team]
        first = min(candidates, key=lambda g: (g.pc, int(g.index[0])))
        same = [g for g in candidates if g.pc == first.pc and g.team == first.team]
        self._ready = [g for g in self._ready if not any(g is s for s in same)]
        return merge(same, self._total)

    def _must_wait(self, group: Group) -> bool:
        """Whether a group has had its turn, or would overtake its own warps' other lanes."""
        if len(self._ready) == 1:
            return False
        if group.back_jumps and group.back_jumps % _PATIENCE == 0:
            return True
        for other in self._ready:
            if (
                other.pc < group.pc
                and other.back_jumps % _LANE_PATIENCE
                and other.back_jumps % _PATIENCE == 0
                and np.isin(other.index, group.index).any()
            ):
                return True
        return False

    def _limit(self, group: Group) -> int:
        """The first place where `group` must look for others."""
        others = [g.pc for g in self._ready if g.team == group.team and g.pc >= group.pc]
        return min(others, default=_NEVER)

    # -- execution ---------------------------------------------------------------------------
    def _run(self, group: Group) -> None:
        """Run a group until it blocks, ends, splits, or meets another."""
        machine, instructions, facts_of = self._machine, self._instructions, self._facts
        steps, idle = self._counters.steps, self._counters.idle
        limit = self._limit(group)
        if limit == group.pc:
            limit = group.pc + 1
        size, missing = group.size, group.idle
        while True:
            pc = group.pc
            if pc >= limit and group.pc != _NEVER:
                self._ready.append(group)
                return
            instruction = instructions[pc]
            machine.group, machine.pc = group, pc
            steps[pc] += size
            idle[pc] += missing
            self._budget.left -= 1
            if self._budget.left < 0:
                report_runaway(machine, self._parked, self._budget.limit)
            if isinstance(instruction, Op):
                known = facts_of[pc]
                if known.aligned and group.mask is not None:
                    together = self._converge(group)
                    if together is None:
                        return
                    machine.group = group = together
                    size, missing = group.size, group.idle
                    self._counters.step(pc, group)
                    machine.require_converged(whole=known.whole)
                if known.meets and machine.mbarriers.offset.size:
                    machine.meet()
                if known.loads is not None:
                    machine.batch.clocks.loads.step(pc, known.loads, group)
                machine.fills_in, machine.in_wgmma = known.fills_in, known.wgmma
                instruction.simulate(machine)
                group.pc, group.alone = pc + 1, False
                if machine.held is not None or machine.freed:
                    self._after_wait(group)
                    return
            elif isinstance(instruction, Jump):
                if not self._jump(group, instruction.label.index):
                    return
            elif isinstance(instruction, Branch):
                if not self._branch(group, instruction):
                    return
            else:
                self._exit(group, instruction)
                return

    def _converge(self, group: Group) -> Group | None:
        """The warps whose living lanes are all here, at an instruction for all of them together.

        The others wait for their lanes, as compiled code does where branches end.
        """
        self._counters.step(group.pc, group, -1)
        if group.alone:
            return group
        same = [g for g in self._partial if g.pc == group.pc and g.team == group.team]
        self._partial = [g for g in self._partial if not any(g is s for s in same)]
        merged = merge([group, *same], self._total)
        elsewhere = self._machine.batch.alive[merged.rows] & ~merged.lanes()
        missing = np.asarray(elsewhere.any(axis=1))
        waiting = merged.keep(missing, merged.pc, self._total)
        if waiting is not None:
            self._partial.append(waiting)
        together = merged.keep(~missing, merged.pc, self._total)
        return merged if waiting is None else together

    def _go_on_without_lanes(self) -> None:
        """Nobody else can run: lanes that wait for others of their warp go on without them."""
        first = min(self._partial, key=lambda g: (g.pc, int(g.index[0])))
        self._partial = [g for g in self._partial if g is not first]
        first.alone = True
        self._ready.append(first)

    def _jump(self, group: Group, target: int) -> bool:
        """Continue at `target`; False when another group's turn has come."""
        backward = target <= group.pc
        group.pc = target
        if not backward:
            return True
        group.back_jumps += 1
        if group.back_jumps % _PATIENCE:
            return True
        self._budget.beat()
        if not self._ready:
            return True
        self._ready.append(group)
        return False

    def _branch(self, group: Group, branch: Branch) -> bool:
        """Continue on one side, or split; False when the group went back to the ready ones."""
        machine, loads = self._machine, self._facts[group.pc].loads
        machine.count("branches")
        if loads is not None:
            machine.batch.clocks.loads.step(group.pc, loads, group)
        taken = machine.read(branch.condition).astype(bool)
        if not branch.if_true:
            taken = ~taken
        lanes = group.mask
        if taken.size > 1 and lanes is not None:
            taken = taken & lanes
        some = bool(taken.any())
        every = (
            bool(taken.all()) if lanes is None or taken.size == 1 else bool((taken == lanes).all())
        )
        if every or not some:
            return self._jump(group, branch.label.index if some else group.pc + 1)
        here = group.lanes()
        yes = np.broadcast_to(taken, here.shape) & here
        no = here & ~yes
        divergent = int((yes.any(axis=1) & no.any(axis=1)).sum())
        if divergent:
            machine.count("divergent_branches", divergent / group.size)
        for part, pc in ((no, group.pc + 1), (yes, branch.label.index)):
            split = group.part(part, pc, self._total)
            if split is not None:
                split.back_jumps = group.back_jumps
                self._ready.append(split)
        return False

    def _exit(self, group: Group, instruction: Exit) -> None:
        batch, machine = self._machine.batch, self._machine
        machine.group = group
        machine.end()
        batch.alive[group.rows] &= False if group.mask is None else ~group.mask
        machine.ended()
        if self._parked:
            self._wake("barrier", machine.barriers.warps_ended())
            self._wake("cluster", machine.cluster_barriers.complete())

    def _after_wait(self, group: Group) -> None:
        """Park the warps that wait, go on with the others, and wake those set free."""
        machine = self._machine
        held, freed = machine.held, machine.freed
        machine.held, machine.freed = None, []
        for kind, rows in freed:
            self._wake(kind, rows)
        if held is None:
            self._ready.append(group)
            return
        waiting = group.keep(held, group.pc - machine.again, self._total)
        if waiting is not None:
            waiting.waits_for, waiting.stopped = machine.waits_for, group.pc - 1
            if machine.again:
                self._counters.step(group.pc - 1, waiting, -1)
            self._parked.append(waiting)
        going_on = group.keep(~held, group.pc, self._total)
        if going_on is not None:
            self._ready.append(going_on)

    def _wake(self, kind: str, rows: Array) -> None:
        """Warps wait no longer for something of a kind."""
        if not rows.size:
            return
        parked, self._parked = self._parked, []
        for group in parked:
            free = np.isin(group.index, rows) & (group.waits_for == kind)
            for which, queue in ((free, self._ready), (~free, self._parked)):
                part = group.keep(which, group.pc, self._total)
                if part is not None:
                    part.waits_for, part.stopped = group.waits_for, group.stopped
                    queue.append(part)
