"""The author's frames that run are found as a walk finds them that remembers nothing."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import kdsl_core as kd
from kdsl_core.authors import Place, chains_kept, is_author_code, running
from kdsl_core.loc import here

_DEPTH = 8
SEEN: list[tuple[list[Place], list[Place]]] = []
KEPT: list[weakref.ref[Any]] = []


def walked(frame: FrameType | None) -> list[Place]:
    """The author's frames from here outward to the root of the trace."""
    found = []
    while frame is not None and frame.f_code.co_name != "__kdsl_trace_root__":
        if is_author_code(frame.f_code):
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return found[:_DEPTH]


def look() -> None:
    """Note where the caller is, both ways."""
    frame = sys._getframe(1)
    SEEN.append((running(frame, _DEPTH), walked(frame)))


def twice() -> None:
    """Two places in one frame, and one further in."""
    look()
    look()
    further()
    look()


def further() -> None:
    """One more frame."""
    look()


def deep(left: int) -> None:
    """More frames than are told."""
    look()
    if left:
        deep(left - 1)
    look()


def steps() -> Iterator[int]:
    """A frame that several callers resume."""
    for step in range(3):
        look()
        further()
        yield step


def resume(walk: Iterator[int]) -> None:
    """Another caller."""
    next(walk)


class Held:
    """A thing that a frame holds."""


@kd.kernel
def looks(x: kd.Tensor["f32", "n"]):
    """Asks where it is, in all ways."""
    held = Held()
    KEPT.append(weakref.ref(held))
    twice()
    deep(12)
    twice()
    walk = steps()
    next(walk)
    resume(walk)
    next(walk)
    if kd.thread_rank() == 0:
        twice()
        x[0] = 1.0


def test_places_are_those_of_a_plain_walk():
    """Of frames met again, of new ones, of deep ones, and of one that others resume."""
    SEEN.clear()
    looks.ir(kd.spec("f32", (64,)), block=32)
    assert len(SEEN) == 4 + 2 * 13 + 4 + 2 * 3 + 4
    assert [found for found, _ in SEEN] == [expected for _, expected in SEEN]
    assert len({tuple(found) for found, _ in SEEN}) > 20


def test_frames_are_let_go_after_the_trace():
    """What the author's frames held is collected."""
    KEPT.clear()
    looks.clear()
    looks.ir(kd.spec("f32", (64,)), block=32)
    gc.collect()
    assert [reference() for reference in KEPT] == [None]


def test_traces_within_traces():
    """The inner one's frames are forgotten with it, the outer's are kept."""
    with chains_kept():
        first = here()
        with chains_kept():
            inner = here()
        again = here()
    assert first is not None and inner is not None and again is not None
    assert [at.file for at in (first, inner, again)] == [__file__] * 3
    assert first.line + 2 == inner.line == again.line - 1
