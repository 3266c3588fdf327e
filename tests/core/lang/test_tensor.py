"""Tensors: slices, vector widths that are proven, registers that are packed, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core import atoms
from kdsl_core import dtypes as dt
from kdsl_core.errors import KdslError, LayoutError, StagingError, TypeMismatch
from kdsl_core.ir import Kernel, Value
from kdsl_core.lang.copy import contiguous_run, copy
from kdsl_core.lang.memory import recast, rmem, smem
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.tensor import Tensor, identity_tensor
from kdsl_core.lang.tiled import gemm, tiled_mma
from kdsl_core.lang.tracer import Tracer, tracing
from kdsl_core.layout import ComposedLayout, Layout, Swizzle


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    """A kernel that is being traced."""
    traced = Kernel("k", (128, 1, 1))
    with tracing(Tracer(traced)):
        yield traced


def matrix(align: int = 16, divisor: int = 8, dtype: dt.DType = dt.bf16) -> Tensor:
    """A row-major matrix in global memory with a run-time pitch."""
    pitch = Scalar(Value(dt.i32), divisor=divisor, nonneg=True)
    layout = Layout((64, 64), (pitch, 1))
    return Tensor.from_pointer(Value(dt.u64), layout, dtype, align=align, name="x")


def test_cache_operators_reach_every_access(kernel: Kernel) -> None:
    """Both halves of a vector of 32 bytes say how caches should treat them."""
    x = matrix(dtype=dt.f32)
    values = x.load_vector((0, 0), 8, cache="cs")
    x.store_vector((1, 0), values, cache="cg")
    x.store((2, 0), x.load((2, 1), cache="nc"), cache="wt")
    found = [op.cache for op in kernel.body.walk() if hasattr(op, "cache")]
    assert found == ["cs", "cs", "cg", "cg", "nc", "wt"]


def names(kernel: Kernel) -> list[str]:
    """The text names of all operations."""
    return [op.name for op in kernel.body.walk()]


def vectors(kernel: Kernel) -> set[int]:
    """Registers per global load."""
    return {len(tuple(op.writes())) for op in kernel.body.walk() if op.name == "memory.load"}


@pytest.mark.parametrize(
    ("align", "divisor", "registers"), [(16, 8, 4), (16, 4, 2), (16, 2, 1), (8, 8, 2), (4, 8, 1)]
)
def test_vector_width_is_derived(kernel: Kernel, align: int, divisor: int, registers: int) -> None:
    """Rows of 8 bf16 move in as few accesses as pointer and pitch prove to be aligned."""
    row = matrix(align, divisor).tile((1, 8), (3, 2))
    copy(row, rmem(dt.bf16, (1, 8)))
    assert vectors(kernel) == {registers}


def test_demanded_width_is_refused_with_reasons(kernel: Kernel) -> None:
    """vector=16 where only 4 bytes are proven names both sides and the runs."""
    row = matrix(divisor=2).tile((1, 8), (3, 2))
    with pytest.raises(TypeMismatch, match="only 4 are proven") as caught:
        copy(row, rmem(dt.bf16, (1, 8)), vector=16)
    assert caught.value.code == "K221"


def test_slices_are_views(kernel: Kernel) -> None:
    """A slice keeps the modes given as None, and the same memory."""
    tile = matrix().tile((16, 8), (1, None))
    assert tile.shape == (16, 8, 8)
    assert tile[..., 3].shape == (16, 8)
    assert tile[2, None, 1].shape == (8,)
    assert names(kernel).count("memory.load") == 0


def test_identity_tensor_gives_coordinates(kernel: Kernel) -> None:
    """Tiles of an identity tensor hold the coordinates of the whole."""
    tile = identity_tensor((32, 16)).tile((8, 4), (1, 2))
    assert tile[3, 1] == (11, 9)


def test_registers_are_packed(kernel: Kernel) -> None:
    """Two bf16 or four 8-bit elements share a register; f32 takes one each."""
    counts = {dtype: len(rmem(dtype, 8).engine.variables) for dtype in (dt.bf16, dt.i8, dt.f32)}
    assert counts == {dt.bf16: 4, dt.i8: 2, dt.f32: 8}


@kd.kernel
def fill_a_part(y: kd.Tensor["f32", "n"], dtype: kd.Static) -> None:
    """Fill all of some registers with 1, and the second of three pairs with 2."""
    held = kd.rmem(dtype, (2, 3)).fill(1.0)
    held[None, 1].fill(2.0)
    for i in range(6):
        y[i] = held[i].to(kd.f32)


@pytest.mark.parametrize("dtype", (dt.f32, dt.bf16))
def test_filling_a_view_leaves_the_rest(dtype: dt.DType) -> None:
    """`fill` sets the elements of a view, not all registers that it looks at."""
    y = np.zeros(6, np.float32)
    fill_a_part[1, 1](y, dtype=dtype)
    assert y.tolist() == [1, 1, 2, 2, 1, 1]


def test_registers_are_indexed_while_tracing(kernel: Kernel) -> None:
    """A run-time index into registers is refused: they have no addresses."""
    fragment = rmem(dt.f32, (4, 2))
    with pytest.raises(StagingError, match="registers have no addresses") as caught:
        fragment[Scalar(Value(dt.i32)), 0]
    assert caught.value.code == "K311"


def test_swizzled_offsets_split(kernel: Kernel) -> None:
    """Whole periods of a swizzle are immediates: rows 0 and 8 share one address register."""
    tile = smem(dt.bf16, ComposedLayout(Swizzle(3, 3, 3), 0, Layout((16, 64), (64, 1))))
    column = Scalar(Value(dt.i32), divisor=8, bound=64)
    near, far = tile.place((0, column)), tile.place((8, column))
    assert near.address is far.address
    assert (near.offset, far.offset) == (0, 8 * 64 * 2)
    assert near.align == 16


def test_contiguous_run() -> None:
    """The run from index 0 on ends at the first mode that does not continue it."""
    assert contiguous_run(Layout(((2, 4), 8), ((1, 2), 16))) == 8
    assert contiguous_run(Layout((4, 4), (2, 1))) == 1


def bad(name: str) -> Any:
    """A misuse, and nothing else."""
    fragment = rmem(dt.f32, (4, 2))
    actions = {
        "K151": lambda: fragment[4, 0],
        "K152": lambda: copy(rmem(dt.f32, 4), rmem(dt.f32, 8)),
        "K211": lambda: smem(dt.f32, 4).fill(0.0),
        "K212": lambda: fragment.place(0),
        "K213": lambda: fragment.store((0, 0), Scalar(Value(dt.f16))),
        "K215": lambda: smem(dt.f32, Layout(Scalar(Value(dt.i32)))),
        "K217": lambda: fragment.as_dtype(dt.f16),
        "K220": lambda: copy(rmem(dt.f32, 4), rmem(dt.f16, 4)),
        "K222": lambda: copy(matrix(4), smem(dt.bf16, (64, 64)), atom=atoms.cp_async(16)),
        "K224": lambda: gemm(tiled_mma(atoms.UNIVERSAL_FMA_F32), matrix(), matrix(), fragment),
        "K310": lambda: fragment.__setitem__((None, 0), 1.0),
        "K312": lambda: list(fragment),
        "K313": lambda: bool(fragment),
    }
    return actions[name]()


@pytest.mark.parametrize(
    "code",
    ["K151", "K152", "K211", "K212", "K213", "K215", "K217", "K220", "K222", "K224", "K310", "K312",
     "K313"],
)  # fmt: skip
def test_misuse(kernel: Kernel, code: str) -> None:
    """Each misuse is refused at the author's line, with its code and the mend."""
    with pytest.raises(KdslError) as caught:
        bad(code)
    assert caught.value.code == code
    assert caught.value.loc is not None and caught.value.fix


def test_swizzled_part_cannot_be_recast(kernel: Kernel) -> None:
    """A view that starts inside a swizzle has no plain start."""
    tile = smem(dt.bf16, ComposedLayout(Swizzle(3, 3, 3), 0, Layout((16, 64), (64, 1))))
    assert recast(tile, dt.f32, (16, 32)).shape == (16, 32)
    with pytest.raises(TypeMismatch) as caught:
        recast(tile[3, None], dt.f32, 32)
    assert caught.value.code == "K214"


def test_layout_refusals_point_at_the_author(kernel: Kernel) -> None:
    """A layout error inside a slice carries the line of the kernel."""
    with pytest.raises(LayoutError) as caught:
        matrix()[None, 0, 0]
    assert caught.value.loc is not None and caught.value.loc.file == __file__
