"""Tensor and bulk copies: the PTX of every form, what the machine is asked, and the limits."""

from __future__ import annotations

import subprocess
from itertools import product
from pathlib import Path

import pytest

from core.isa.bench import assembler
from core.isa.warps import GLOBAL_BASE, SHARED_BASE, Bench, ptx_of
from kdsl_core.dtypes import DType, boolean, f32, i32, u16, u32, u64
from kdsl_core.errors import KdslError, TypeMismatch, VerifyError
from kdsl_core.ir import Builder, Const, Kernel, MapShape, Param, Value, target_of
from kdsl_core.ir.tensor_map import TensorMapSpec
from kdsl_core.isa import tma
from kdsl_core.isa.bulk import REDUCTIONS
from kdsl_core.isa.cache_policy import POLICIES
from kdsl_core.ptx import emit


def test_every_form_assembles(tmp_path: Path) -> None:
    """Loads of 1 to 5 dimensions, im2col, multicast, hints, reductions and bulk copies."""
    kernel = Kernel("forms", (32, 1, 1), cluster_dim=(2, 1, 1))
    map_, shared, mask, hint = Value(u64), Value(u32), Value(u16), Value(u64)
    spec = TensorMapSpec(MapShape(f32, (4,)), "x", Const(u64, 0), (Const(i32, 1),), ())
    kernel.params.append(Param("x_map", map_, map=spec))
    b = Builder(kernel)
    for rank, many, kept in product(range(1, 6), (None, mask), (None, hint)):
        at = tuple(Value(i32) for _ in range(rank))
        options = {"multicast": many, "policy": kept, "pred": Value(boolean)}
        tma.load(b, map_, at, shared, shared, destination_offset=128, barrier_offset=8, **options)
        if rank > 2:
            offsets = (Value(u16), *(Const(u16, 1),) * (rank - 3))
            tma.load(b, map_, at, shared, shared, offsets=offsets, **options)
        for reduce in (None, "add", "min", "max", "inc", "dec", "and", "or", "xor"):
            tma.store(b, map_, at, shared, 256, reduce=reduce, policy=kept)
        tma.prefetch(b, map_, at)
    tma.prefetch_map(b, map_)
    build_bulk(b, shared, mask, hint)
    module = emit(kernel, target_of("sm_90a"))
    assert module.ptx_version == (8, 0) and [d.name for _, d in module.params] == ["tensor_map"]
    source = tmp_path / "forms.ptx"
    source.write_text(module.text)
    command = [assembler(), "-arch=sm_90a", "-O0", str(source), "-o", str(tmp_path / "o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[:3000]


def build_bulk(b: Builder, shared: Value, mask: Value, hint: Value) -> None:
    """Every bulk copy."""
    memory, size = Value(u64), Value(u32)
    for many, kept in product((None, mask), (None, hint)):
        tma.bulk_load(b, shared, memory, size, shared, multicast=many, policy=kept)
    tma.bulk_store(b, memory, shared, Const(u32, 64), policy=hint)
    for name, dtypes in REDUCTIONS.items():
        for dtype in dtypes:
            tma.bulk_store(b, memory, shared, size, reduce=(name, dtype))
    tma.bulk_send(b, shared, shared, size, shared, barrier_offset=8)
    tma.commit(b)
    tma.wait(b, 3, read=True)
    tma.wait(b, 0, read=False)
    for kind in POLICIES:
        tma.policy(b, kind)


def test_text() -> None:
    """Qualifiers and operands come in the order that PTX wants."""
    bench = Bench(1)
    b, new = bench.b, bench.b.var
    at = (Const(i32, 64), new(i32))
    map_, shared = new(u64), new(u32)
    tma.load(b, map_, at, shared, shared, barrier_offset=8, multicast=Const(u16, 3), pred=None)
    tma.store(b, map_, at, shared, 16, reduce="add", policy=new(u64))
    assert ptx_of(bench.kernel.body) == [
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [b32_1], [b64_3, {#64, b32_2}], [b32_1+8], #3",
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group.L2::cache_hint "
        "[b64_3, {#64, b32_2}], [b32_1+16], b64_4",
    ]


def test_the_machine_is_asked_per_lane() -> None:
    """Each operation is one question with one address, coordinate and mask a lane."""
    bench = Bench(2)
    b = bench.b
    shared, memory = bench.holding(u32, SHARED_BASE), bench.holding(u64, GLOBAL_BASE)
    map_, at = bench.holding(u64, 77), (bench.holding(i32, 5), Const(i32, 6))
    tma.load(b, map_, at, shared, shared, destination_offset=128, pred=bench.holding(boolean, 1))
    tma.store(b, map_, at, shared, 64, reduce="max")
    tma.prefetch(b, map_, at)
    tma.bulk_load(b, shared, memory, Const(u32, 32), shared, source_offset=16)
    tma.bulk_store(b, memory, shared, Const(u32, 32), reduce=("add", f32))
    tma.bulk_send(b, shared, shared, Const(u32, 32), shared)
    tma.commit(b)
    tma.wait(b, 1, read=True)
    asked = bench.run().asked
    names = [name for name, *_ in asked]
    assert names == [
        "tensor_load", "tensor_store", "tensor_prefetch", "bulk_load", "bulk_store", "bulk_send",
        "bulk_commit", "bulk_wait",
    ]  # fmt: skip
    _, told, coordinates, destination, barrier, many, offsets, where = asked[0]
    assert (told == 77).all() and [int(c[1, 31]) for c in coordinates] == [5, 6]
    assert (destination == SHARED_BASE + 128).all() and (barrier == SHARED_BASE).all()
    assert many is None and offsets == () and where.all()
    assert (asked[1][3] == SHARED_BASE + 64).all() and asked[1][4] == "max"
    assert (asked[3][2] == GLOBAL_BASE + 16).all() and (asked[3][3] == 32).all()
    assert asked[4][4] == ("add", f32) and asked[7][1:] == (1, True)


def test_policies_are_shared() -> None:
    """A cache policy is made once; another kind is another value."""
    bench = Bench(1)
    first = tma.policy(bench.b, "evict_first")
    assert tma.policy(bench.b, "evict_first") is first
    assert tma.policy(bench.b, "evict_last") is not first


@pytest.mark.parametrize(
    ("code", "dtypes", "offsets"),
    [
        ("K450", (i32,) * 6, ()),
        ("K450", (), ()),
        ("K270", (u32,), ()),
        ("K451", (i32, i32), (u16,)),
        ("K451", (i32,) * 4, (u16,)),
        ("K270", (i32,) * 4, (u16, u32)),
    ],
)
def test_coordinates_are_checked(
    code: str, dtypes: tuple[DType, ...], offsets: tuple[DType, ...]
) -> None:
    """One to five i32 coordinates, and rank − 2 offsets of u16 for im2col."""
    b = Bench(1).b
    at, moved = tuple(map(Value, dtypes)), tuple(map(Value, offsets))
    with pytest.raises(KdslError) as caught:
        tma.load(b, Value(u64), at, Value(u32), Value(u32), offsets=moved)
    assert caught.value.code == code and not b.block.ops


def test_bulk_sizes_and_reductions_are_checked() -> None:
    """Multiples of 16 bytes; reductions that PTX has; known words."""
    b = Bench(1).b
    memory, shared = Value(u64), Value(u32)
    with pytest.raises(TypeMismatch, match=r"K452.*multiples of 16 bytes, got 40"):
        tma.bulk_load(b, shared, memory, Const(u32, 40), shared)
    with pytest.raises(TypeMismatch, match="got 8"):
        tma.bulk_send(b, shared, shared, Const(u32, 32), shared, source_offset=8)
    with pytest.raises(VerifyError, match="its type must be one of"):
        tma.bulk_store(b, memory, shared, Const(u32, 32), reduce=("min", f32))
    with pytest.raises(VerifyError, match="the reduction must be one of"):
        tma.store(b, memory, (Const(i32, 0),), shared, reduce="mul")
    with pytest.raises(VerifyError, match="cache policy must be one of"):
        tma.policy(b, "forever")
    with pytest.raises(TypeMismatch, match="pending groups"):
        tma.wait(b, 64, read=True)
