"""Tensor-core instructions: fragments, bits and text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.isa.warps import Bench, ptx_of
from kdsl_core.dtypes import BY_NAME, DType, bf16, f16, f32, i8, i32, tf32, u8, u32
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Array, Effect, target_of
from kdsl_core.ir.protocols import Accumulation
from kdsl_core.isa.mma import (
    MMA_SHAPES,
    MmaShape,
    evaluation,
    fragment_places,
    gather,
    mma,
    scatter,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "tensor_core" / "h200.npz"


# The element formulae of the PTX ISA, one statement per page, independent of the package's.
def isa_a(k: int, bits: int, lane: int, i: int) -> tuple[int, int]:
    """(row, column) of a_i: "Matrix Fragments for mma.m16n8k…"."""
    group, tig = lane >> 2, lane % 4
    if bits == 32:  # m16n8k8 .tf32
        return (group if i in (0, 2) else group + 8), (tig if i < 2 else tig + 4)
    if bits == 16 and k == 8:
        return (group if i < 2 else group + 8), tig * 2 + (i & 1)
    if bits == 16:
        row = group if i < 2 or 4 <= i < 6 else group + 8
        return row, tig * 2 + (i & 1) + (0 if i < 4 else 8)
    row = group if i < 4 or 8 <= i < 12 else group + 8
    return row, tig * 4 + (i & 3) + (0 if i < 8 else 16)


def isa_b(k: int, bits: int, lane: int, i: int) -> tuple[int, int]:
    """(row, column) of b_i."""
    group, tig = lane >> 2, lane % 4
    if bits == 32:
        return (tig if i == 0 else tig + 4), group
    if bits == 16:
        return tig * 2 + (i & 1) + (0 if i < 2 else 8), group
    return tig * 4 + (i & 3) + (0 if i < 4 else 16), group


def isa_c(lane: int, i: int) -> tuple[int, int]:
    """(row, column) of c_i."""
    return (lane >> 2) + (0 if i < 2 else 8), (lane % 4) * 2 + (i & 1)


def row_id(shape: MmaShape) -> str:
    return shape.text.split(".row.col.")[0][-8:] + "." + shape.text.split(".row.col.")[1]


def isa_places(shape: MmaShape, matrix: str) -> list[int]:
    """The places of all elements in the order lane, element; B as N×K."""
    elements = {"a": shape.m * shape.k, "b": shape.n * shape.k, "c": shape.m * shape.n}[
        matrix
    ] // 32
    found = []
    for lane in range(32):
        for i in range(elements):
            if matrix == "a":
                row, column = isa_a(shape.k, shape.a.bits, lane, i)
                found.append(row * shape.k + column)
            elif matrix == "b":
                row, column = isa_b(shape.k, shape.b.bits, lane, i)
                found.append(column * shape.k + row)
            else:
                row, column = isa_c(lane, i)
                found.append(row * shape.n + column)
    return found


@pytest.mark.parametrize("matrix", ["a", "b", "c"])
@pytest.mark.parametrize("shape", MMA_SHAPES, ids=row_id)
def test_fragments_are_those_of_the_isa(shape: MmaShape, matrix: str) -> None:
    """Each element of each lane lies where the PTX ISA says, and every element has a place."""
    places = fragment_places(shape, matrix).transpose(1, 0, 2).ravel()
    assert places.tolist() == isa_places(shape, matrix)
    assert sorted(places) == list(range(places.size))


@pytest.mark.parametrize("matrix", ["a", "b", "c"])
@pytest.mark.parametrize("shape", MMA_SHAPES, ids=row_id)
def test_gather_undoes_scatter(shape: MmaShape, matrix: str) -> None:
    """A matrix put into registers comes back unchanged."""
    rows, columns, dtype = shape._matrix(matrix)
    bits = np.random.default_rng(1).integers(0, 256, (3, rows, columns * dtype.bytes), np.uint8)
    values = bits.view(dtype.numpy)
    registers = scatter(shape, matrix, values)
    assert registers.shape == (3, shape.registers(matrix), 32)
    back = gather(shape, matrix, list(registers.swapaxes(0, 1)))
    np.testing.assert_array_equal(back.view(np.uint8), bits)


def fill(
    bench: Bench, shape: MmaShape, matrix: str, values: Array, dtype: DType
) -> tuple[Any, ...]:
    """Variables that hold the fragments of matrices [W, rows, columns]."""
    registers = scatter(shape, matrix, values)
    return tuple(bench.holding(dtype, registers[:, i]) for i in range(registers.shape[1]))


@pytest.mark.parametrize("name", ["f16", "bf16", "tf32", "e4m3", "e5m2"])
def test_bits_of_the_h200(name: str) -> None:
    """Through fragments in place, the recorded bits of an H200 come out."""
    dtype = BY_NAME[name]
    with np.load(GOLDEN) as recorded:
        a, b, c, d = (recorded[f"mma_{name}_{matrix}"] for matrix in "ABCD")
    shape = next(s for s in MMA_SHAPES if s.a is s.b is dtype and s.k == a.shape[-1] and s.d is f32)
    bench = Bench(len(a))
    acc = fill(bench, shape, "c", c.view(np.float32), f32)
    fragments = [
        fill(bench, shape, m, x.view(dtype.numpy), f32 if dtype is tf32 else u32)
        for m, x in (("a", a), ("b", b))
    ]
    mma(bench.b, (16, 8, shape.k), (f32, dtype, dtype, f32), acc, *fragments, acc)
    m = bench.run()
    got = gather(shape, "c", [m.registers[reg] for reg in acc])
    np.testing.assert_array_equal(got.view(np.uint32), d)
    assert ("count", "mma", 1.0) in m.asked


def test_bits_of_the_h200_with_f16_accumulators() -> None:
    """Accumulators of two packed f16 give the recorded bits."""
    with np.load(GOLDEN) as recorded:
        a, b = recorded["mma_f16_A"], recorded["mma_f16_B"]
        c, d = recorded["mma_f16acc_C"], recorded["mma_f16acc_D"]
    shape = next(s for s in MMA_SHAPES if s.d is f16 and s.k == 16)
    bench = Bench(len(a))
    fragments = [
        fill(bench, shape, m, x.view(np.float16), u32) for m, x in (("a", a), ("b", b), ("c", c))
    ]
    mma(bench.b, (16, 8, 16), (f16, f16, f16, f16), fragments[2], *fragments)
    m = bench.run()
    got = gather(shape, "c", [m.registers[reg] for reg in fragments[2]])
    np.testing.assert_array_equal(got.view(np.uint16), d)


@pytest.mark.parametrize(("left", "right"), [(i8, i8), (u8, i8), (i8, u8), (u8, u8)])
def test_integers_are_exact(left: DType, right: DType) -> None:
    """8-bit integers of either sign accumulate exactly."""
    shape = next(s for s in MMA_SHAPES if (s.a, s.b) == (left, right))
    rng = np.random.default_rng(2)
    a = rng.integers(0, 256, (2, 16, 32), np.uint8).view(left.numpy)
    b = rng.integers(0, 256, (2, 8, 32), np.uint8).view(right.numpy)
    c = rng.integers(-99, 99, (2, 16, 8), np.int32)
    bench = Bench(2)
    acc = fill(bench, shape, "c", c, i32)
    fragments = fill(bench, shape, "a", a, u32), fill(bench, shape, "b", b, u32)
    mma(bench.b, (16, 8, 32), (i32, left, right, i32), acc, *fragments, acc)
    m = bench.run()
    expected = a.astype(np.int64) @ b.astype(np.int64).swapaxes(1, 2) + c
    got = gather(shape, "c", [m.registers[reg] for reg in acc])
    np.testing.assert_array_equal(got, expected)


def build(d: int = 4, a: int = 4, b: int = 2, dtype: DType = u32) -> Any:
    """A bf16 instruction with these numbers of registers and this type of A's."""
    bench = Bench(1)
    new = bench.b.var
    acc = tuple(new(f32) for _ in range(d))
    a_regs, b_regs = tuple(new(dtype) for _ in range(a)), tuple(new(u32) for _ in range(b))
    mma(bench.b, (16, 8, 16), (f32, bf16, bf16, f32), acc, a_regs, b_regs, acc)
    return bench.kernel.body.ops[0]


@pytest.mark.parametrize("places", ["rectangle", "corner missing", "twice", "turned", "one longer"])
@pytest.mark.parametrize("shape", [MMA_SHAPES[1], MMA_SHAPES[2], MMA_SHAPES[-1]], ids=row_id)
def test_many_at_once(shape: MmaShape, places: str) -> None:
    """Sums of fragments that meet, or do not all meet, give the bits of each step alone."""
    rng = np.random.default_rng(0)

    def fragment(matrix: str) -> list[Array]:
        count, kind = shape.registers(matrix), shape.register_types(matrix)[0].numpy
        bits = rng.integers(0x3C00, 0x4400, (count, 3, 32, 2), dtype=np.uint16)
        return [np.ascontiguousarray(x).view(kind)[..., 0] for x in bits]

    steps = []
    for _ in range(3):
        a, b = [fragment("a") for _ in range(2)], [fragment("b") for _ in range(3)]
        steps.append([(x, y) for x in a for y in b])
    many = [Accumulation(fragment("c"), list(each)) for each in zip(*steps, strict=True)]
    many = {
        "rectangle": many,
        "corner missing": many[:-1],
        "twice": [*many, many[0]],
        "turned": [*many[:-1], Accumulation(many[-1].start, many[-1].steps[::-1])],
        "one longer": [*many[:-1], Accumulation(many[-1].start, many[-1].steps * 2)],
    }[places]
    run = evaluation(shape, "exact")
    for (now, inputs), found in zip(many, run(many), strict=True):
        for step in inputs:
            (now,) = run([Accumulation(now, [step])])
        np.testing.assert_array_equal(np.array(found), np.array(now))


def test_text_and_needs() -> None:
    """The instruction is spelled as PTX does, in place, and needs a whole warp."""
    op = build()
    (line,) = ptx_of(op)
    assert line.startswith("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {")
    d, _, _, c = line.split("{")[1:]
    assert d.rstrip("}, ") == c.rstrip("}, ")
    assert op.effects is Effect.CONVERGED
    assert op.need.missing(target_of("sm_80")) is None


def test_fp8_needs_ada() -> None:
    """fp8 does not exist on sm_80."""
    fp8 = next(s for s in MMA_SHAPES if s.a.name == "e4m3")
    assert fp8.need.missing(target_of("sm_86")) == "it needs sm_89 or newer"


@pytest.mark.parametrize("wrong", [{"d": 2}, {"a": 2}, {"b": 4}, {"dtype": f32}, {"dtype": i32}])
def test_wrong_registers_are_refused(wrong: dict[str, Any]) -> None:
    """The number and types of registers are checked."""
    with pytest.raises(TypeMismatch, match=r"mma\.sync\."):
        build(**wrong)


def test_unknown_instruction_names_those_that_exist() -> None:
    """A shape that no chip has is answered with those that there are."""
    bench = Bench(1)
    with pytest.raises(TypeMismatch, match="m16n8k4") as caught:
        mma(bench.b, (16, 8, 4), (f32, bf16, bf16, f32), (), (), (), ())
    assert "m16n8k16" in str(caught.value.fix)
