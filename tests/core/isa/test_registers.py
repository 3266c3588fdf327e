"""Register variables hold what was assigned; special registers say which thread this is."""

from __future__ import annotations

import numpy as np
import pytest

from core.isa.bench import Traced
from kdsl_core.dtypes import f32, i32, u32
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Builder, Const, Kernel, Operand, Value
from kdsl_core.isa.arith import binary
from kdsl_core.isa.register import assign, declare, snapshot
from kdsl_core.isa.special import SpecialOp, special


def builder(x: int = 1, y: int = 1, z: int = 1) -> Builder:
    """A builder of a kernel with a block shape."""
    return Builder(Kernel("k", (x, y, z)))


def test_a_snapshot_keeps_the_value() -> None:
    """A later assignment changes the variable only."""

    def build(b: Builder, x: Value) -> Operand:
        var = declare(b, i32, x)
        before = snapshot(b, var)
        assign(b, var, binary(b, "mul", var, Const(i32, 10)))
        return binary(b, "add", var, before)

    assert Traced(build, i32)(np.array([1, 2])).tolist() == [11, 22]


def test_values_and_constants_are_their_own_snapshot() -> None:
    """Only variables change, so only they are copied."""
    b = builder()
    x = Value(i32)
    assert snapshot(b, x) is x and not b.block.ops


def test_assignment_checks_the_type() -> None:
    """A variable keeps its dtype; assigning itself is nothing."""
    b = builder()
    var = declare(b, i32)
    assign(b, var, var)
    assert not b.block.ops
    with pytest.raises(TypeMismatch, match=r"K251.*i32.*f32"):
        assign(b, var, Const(f32, 1))


def test_the_block_shape_is_known() -> None:
    """Extents, and indices along extents of 1, are constants."""
    b = builder(64, 2)
    assert special(b, "ntid.y") == Const(u32, 2)
    assert special(b, "tid.z") == Const(u32, 0)
    assert isinstance(special(b, "tid.y"), Value)
    assert special(b, "tid.x") is special(b, "tid.x")


@pytest.mark.parametrize(("shape", "ops"), [((128, 1, 1), 2), ((1, 1, 1), 0), ((32, 4, 1), 5)])
def test_the_warp_index_comes_from_the_thread_index(shape: tuple[int, int, int], ops: int) -> None:
    """It is the linear thread index by 32, with no more operations than the shape asks for."""
    b = builder(*shape)
    special(b, "warpid")
    assert len(b.block.ops) == ops


def test_unknown_registers_are_refused() -> None:
    """The error lists those that exist."""
    with pytest.raises(TypeMismatch, match=r"K252.*clock.*laneid"):
        special(builder(), "clock")
    with pytest.raises(TypeMismatch, match="K252"):
        builder().append(SpecialOp(register="laneid", d=Value(i32)))
