"""State in objects: fields of a @kd.struct are registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kdsl_core as kd


@kd.struct
class Pipeline:
    """Stage and phase of a ring of buffers."""

    stage: kd.i32
    phase: kd.i32
    depth: int = 3

    @kd.func
    def advance(self) -> None:
        """Go to the next buffer."""
        self.stage += 1
        if self.stage == self.depth:
            self.stage = 0
            self.phase ^= 1


@kd.kernel
def walks(steps: kd.Tensor["i32", "n"], out: kd.Tensor["i32", "n"]) -> None:
    """Advance a pipeline as often as each lane is told."""
    i = kd.thread_idx()[0]
    p = Pipeline(0, 0)
    for _ in kd.range(steps[i]):
        p.advance()
    out[i] = p.stage * 10 + p.phase


def test_fields_change_in_loops_and_branches() -> None:
    """A field that kernel control flow assigns is loop-carried state."""
    steps = np.arange(32, dtype=np.int32)
    out = np.zeros(32, np.int32)
    walks[1, 32](steps, out)
    assert out.tolist() == [(n % 3) * 10 + (n // 3) % 2 for n in range(32)]


@kd.kernel
def swaps(out: kd.Tensor["i32", "n"]) -> None:
    """Read a field before it changes."""
    i = kd.thread_idx()[0]
    p = Pipeline(i, 0)
    before = p.stage
    p.stage = 7
    out[i] = before * 100 + p.stage


def test_reading_a_field_gives_its_value_then() -> None:
    """What was read stays what it was when the field changes."""
    out = np.zeros(32, np.int32)
    swaps[1, 32](out)
    assert out.tolist() == [n * 100 + 7 for n in range(32)]


def test_outside_a_kernel_it_is_a_dataclass() -> None:
    """On the host the fields hold what they are given."""
    p = Pipeline(1, 2)
    assert (p.stage, p.phase, p.depth) == (1, 2, 3)


def _wrong(change: Any) -> None:
    @kd.kernel
    def wrong(x: kd.Tensor["i32", "n"], change: kd.Static) -> None:
        p = Pipeline(0, 0)
        if x[0] > 0:
            change(p)

    wrong.ir(kd.spec("i32", 4), change, block=32)


def test_fields_keep_their_type() -> None:
    """A value of another type is refused with both types."""
    with pytest.raises(kd.StagingError, match=r"K346.*stage of Pipeline is i32, got Python float"):
        _wrong(lambda p: setattr(p, "stage", 1.5))


def test_python_fields_stay() -> None:
    """A field without a register does not change under a condition of the kernel."""
    with pytest.raises(kd.StagingError, match="K347"):
        _wrong(lambda p: setattr(p, "depth", 4))
