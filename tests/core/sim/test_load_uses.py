"""Which loads of shared memory may be under way at an arrival, and what ends them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core.sim.author import Author
from kdsl_core.ir import Operand, flatten
from kdsl_core.isa import mbarrier
from kdsl_core.sim.load_uses import load_steps


class Reader(Author):
    """An author of kernels that load a word from shared memory and arrive at an mbarrier."""

    def __init__(self) -> None:
        super().__init__(32, y="u32")
        self.stage, self.barrier = self.shared("stage", 128), self.shared("barrier", 8)

    def load(self) -> Operand:
        """The thread's word."""
        return self.get("shared", self.word(self.stage, self.tid))

    def keep(self, value: Operand) -> None:
        """Store a word to global memory."""
        self.put("global", self.address("y", self.tid, 4), value)

    def arrive(self, **more: Operand) -> None:
        """Arrive at the mbarrier."""
        mbarrier.arrive(self.b, self.barrier, **more)

    def followed(self) -> dict[str, int]:
        """How many loads are followed, and how many instructions end loads, by their names."""
        program = flatten(self.kernel)
        steps = load_steps(program)
        names = [
            getattr(program.instructions[pc], "name", "branch") for pc, s in steps.items() if s.ends
        ]
        return {"loads": sum(s.begins for s in steps.values())} | {n: names.count(n) for n in names}


def used_behind(a: Reader) -> None:
    """load, arrive, store"""
    value = a.load()
    a.arrive()
    a.keep(value)


def used_before(a: Reader) -> None:
    """load, store, arrive"""
    a.keep(a.load())
    a.arrive()


def computed_before(a: Reader) -> None:
    """load, add, arrive, store of the sum"""
    total = a.do("add", a.load(), 1)
    a.arrive()
    a.keep(total)


def in_the_address(a: Reader) -> None:
    """load, load from where it says, arrive, store: the first one has ended"""
    value = a.get("shared", a.word(a.stage, a.load()))
    a.arrive()
    a.keep(value)


def in_the_predicate(a: Reader) -> None:
    """load, arrive if it is one"""
    a.arrive(pred=a.test("eq", a.load(), 1))


def on_one_way(a: Reader) -> None:
    """load, store if the thread is the first one, arrive, store"""
    value = a.load()
    a.when(a.test("eq", a.tid, 0), lambda: a.keep(value))
    a.arrive()
    a.keep(value)


def around_a_loop(a: Reader) -> None:
    """arrive, load, store in a loop: nothing is under way when it comes around"""

    def turn(_: Operand) -> None:
        a.arrive()
        a.keep(a.load())

    a.loop(3, turn)


def unused_around_a_loop(a: Reader) -> None:
    """arrive, load in a loop: the load is under way when it comes around"""

    def turn(_: Operand) -> None:
        a.arrive()
        a.load()

    a.loop(3, turn)


def no_arrival(a: Reader) -> None:
    """load, store"""
    a.keep(a.load())


EXPECTED: dict[Callable[[Reader], None], dict[str, int]] = {
    used_behind: {"loads": 1, "memory.store": 1},
    used_before: {"loads": 0},
    computed_before: {"loads": 1, "memory.store": 1},
    in_the_address: {"loads": 1, "memory.store": 1},
    in_the_predicate: {"loads": 0},
    on_one_way: {"loads": 1, "memory.store": 2},
    around_a_loop: {"loads": 0},
    unused_around_a_loop: {"loads": 1},
    no_arrival: {"loads": 0},
}


@pytest.mark.parametrize("write", EXPECTED, ids=lambda write: write.__name__)
def test_what_is_followed(write: Callable[[Reader], None]) -> None:
    """Loads under way where something is let go, with what needs them; no others."""
    author = Reader()
    write(author)
    assert author.followed() == EXPECTED[write]
