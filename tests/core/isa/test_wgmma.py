"""Matrix instructions of a warp group: bits, fragments, text, and what they refuse."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.isa.bench import assembler
from core.isa.warps import Bench, ptx_of
from kdsl_core.dtypes import BY_NAME, DType, bf16, boolean, e4m3, f16, f32, i8, i32, u8, u32, u64
from kdsl_core.errors import TypeMismatch, VerifyError
from kdsl_core.ir import Array, Builder, Const, Kernel, Value, Var, target_of
from kdsl_core.isa.wgmma import commit, fence, wait, wgmma
from kdsl_core.isa.wgmma_shapes import INTEGER_WIDTHS, TYPES, WgmmaShape, shape_of, widths_of
from kdsl_core.ptx import emit

GOLDEN = Path(__file__).parents[2] / "golden" / "tensor_core" / "h200.npz"
FALSE = Const(boolean, False)


# PTX ISA, "Register Fragments" of wgmma.mma_async: row and column of an element in thread t of the
# warp group, one statement per page, independent of the package's.
def isa_d(t: int, i: int) -> tuple[int, int]:
    """(row, column) of d_i."""
    row = (t % 32) // 4 + (t // 32) * 16 + 8 * ((i // 2) % 2)
    return row, 8 * (i // 4) + (t % 4) * 2 + i % 2


def isa_a(bits: int, t: int, i: int) -> tuple[int, int]:
    """(row, column) of a_i."""
    row, tig = (t % 128) // 32 * 16 + (t % 32) // 4, t % 4
    if bits == 32:
        return row + (0 if i % 2 == 0 else 8), tig + 4 * (i // 2)
    if bits == 16:
        return row + (0 if (i // 2) % 2 == 0 else 8), tig * 2 + i % 2 + 8 * (i // 4)
    return row + (0 if (i // 4) % 2 == 0 else 8), tig * 4 + i % 4 + 16 * (i // 8)


class Group(Bench):
    """Whole warp groups; a descriptor is the index of a matrix in `matrices`."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__(4 * groups)
        self.matrices: list[Array] = []
        self.m.special = self.special  # type: ignore[method-assign] # the test's own machine
        self.m.matrix_rows = self.matrix_rows
        self.m.warpgroup_matrices = lambda registers: None
        self.m.warpgroup_write = self.warpgroup_write

    def special(self, name: str) -> Array:
        assert name == "warpid"
        return np.broadcast_to(
            np.arange(self.m.warps, dtype=np.uint32)[:, None], (self.m.warps, 32)
        )

    def matrix_rows(
        self, descriptor: Array, first: int, rows: int, depth: int, dtype: DType, major: str
    ) -> tuple[Array, Array]:
        self.m.asked.append(("matrix_rows", dtype, major))
        numbers, of_warp = np.unique(descriptor[:, 0], return_inverse=True)
        chosen = np.stack([self.matrices[int(i)] for i in numbers])
        assert chosen.shape[2] == depth and chosen.dtype == dtype.numpy
        return chosen[:, first : first + rows], of_warp

    def warpgroup_write(
        self, registers: tuple[Var, ...], matrices: Array, spread: Callable[[Array], list[Array]]
    ) -> None:
        for register, value in zip(registers, spread(matrices), strict=True):
            self.m.write(register, value)

    def descriptor(self, groups_of: list[Array]) -> Var:
        """A descriptor for each warp group of its own matrix."""
        first = len(self.matrices)
        self.matrices += groups_of
        index = first + np.arange(self.m.warps) // 4 * (len(groups_of) > 1)
        return self.holding(u64, np.broadcast_to(index[:, None], (self.m.warps, 32)))

    def accumulators(self, shape: WgmmaShape, c: Array | None) -> tuple[Var, ...]:
        """Registers that hold C [groups, 64, N], or unwritten ones."""
        kind = shape.d if shape.d.bits == 32 else u32
        if c is None:
            return tuple(self.b.var(kind) for _ in range(shape.registers))
        words = spread(c, lambda t, i: isa_d(t, i), shape.d)
        return tuple(self.holding(kind, word) for word in words)

    def results(self, shape: WgmmaShape, d: tuple[Var, ...]) -> Array:
        """D [groups, 64, N] of the registers."""
        held = np.stack([self.got(register) for register in d], axis=-1)
        flat = np.ascontiguousarray(held).view(shape.d.numpy).reshape(-1, 128, 64 * shape.n // 128)
        found = np.zeros((len(flat), 64, shape.n), shape.d.numpy)
        for t, i in np.ndindex(flat.shape[1:]):
            found[(slice(None), *isa_d(t, i))] = flat[:, t, i]
        return found


def spread(matrix: Array, place: Any, dtype: DType) -> list[Array]:
    """Register words (W, 32) whose elements are the matrix's [groups, rows, columns]."""
    groups, rows, columns = matrix.shape
    per = 32 // dtype.bits
    held = np.zeros((groups, 128, rows * columns // 128), dtype.numpy)
    for t, i in np.ndindex(held.shape[1:]):
        held[:, t, i] = matrix[(slice(None), *place(t, i))]
    words = held if per == 1 else held.view(np.uint32)
    return [words[..., r].reshape(-1, 32) for r in range(words.shape[-1])]


@pytest.mark.parametrize("where", ["shared", "registers"])
@pytest.mark.parametrize("name", ["f16", "bf16", "tf32", "e4m3", "e5m2"])
def test_every_recorded_bit(name: str, where: str) -> None:
    """Accumulators in their registers equal the H200's, A from shared memory or registers."""
    with np.load(GOLDEN) as recorded:
        a, b, c, d = (recorded[f"wgmma_{name}_{x}"] for x in "ABCD")
    dtype = BY_NAME[name]
    shape = shape_of(8, f32, dtype, dtype)
    bench = Group(len(a))
    a, b = a.view(dtype.numpy), b.view(dtype.numpy)
    registers = bench.accumulators(shape, c.view(np.float32))
    if where == "shared":
        first: Any = bench.descriptor(list(a))
    else:
        words = spread(a, lambda t, i: isa_a(dtype.bits, t, i), dtype)
        first = tuple(bench.holding(u32, word.view(np.uint32)) for word in words)
    wgmma(bench.b, shape, registers, first, bench.descriptor(list(b)))
    bench.run()
    np.testing.assert_array_equal(bench.results(shape, registers).view(np.uint32), d)
    assert ("count", "wgmma", 1.0) in bench.m.asked


@pytest.mark.parametrize("n", [8, 24, 128, 256])
@pytest.mark.parametrize("d", [f32, f16], ids=str)
def test_accumulators_lie_where_ptx_says(n: int, d: DType) -> None:
    """D = row + 64·column / 256 comes out at the ISA's places; unwritten D is not read."""
    shape = shape_of(n, d, f16, f16)
    bench = Group()
    a, b = np.zeros((64, 16), np.float16), np.zeros((n, 16), np.float16)
    a[:, 0], a[:, 1] = np.arange(64) / 64, 1
    b[:, 0], b[:, 1] = 1, np.arange(n)
    registers = bench.accumulators(shape, None)
    majors = {"a_major": "MN", "b_major": "K"}
    descriptors = bench.descriptor([a]), bench.descriptor([b])
    wgmma(bench.b, shape, registers, *descriptors, scale_d=FALSE, **majors)
    bench.run()
    exact = np.arange(64)[:, None] / 64 + np.arange(n)
    np.testing.assert_array_equal(bench.results(shape, registers)[0], exact.astype(d.numpy))
    assert ("matrix_rows", f16, "MN") in bench.m.asked


def test_operands_may_be_negated_and_scale_d_chosen_by_each_warp_group() -> None:
    """(−A)·B, with the old accumulators only where the predicate holds."""
    shape = shape_of(16, f32, bf16, bf16)
    bench = Group(2)
    a = np.ones((64, 16), bf16.numpy)
    b = np.full((16, 16), 2, bf16.numpy)
    registers = bench.accumulators(shape, np.full((2, 64, 16), 100, np.float32))
    keep = bench.holding(boolean, np.repeat([False, True], 4)[:, None])
    descriptors = bench.descriptor([a]), bench.descriptor([b])
    wgmma(bench.b, shape, registers, *descriptors, scale_d=keep, negate_a=True)
    bench.run()
    first, second = bench.results(shape, registers)
    assert (first == -32).all() and (second == 68).all()


def test_integers_are_exact() -> None:
    """s8 × u8 adds up in 32-bit integers."""
    shape = shape_of(48, i32, i8, u8)
    bench, rng = Group(), np.random.default_rng(0)
    a = rng.integers(-128, 128, (64, 32)).astype(np.int8)
    b = rng.integers(0, 256, (48, 32)).astype(np.uint8)
    c = rng.integers(-(2**30), 2**30, (1, 64, 48)).astype(np.int32)
    registers = bench.accumulators(shape, c)
    wgmma(bench.b, shape, registers, bench.descriptor([a]), bench.descriptor([b]))
    bench.run()
    exact = c[0] + a.astype(np.int32) @ b.astype(np.int32).T
    np.testing.assert_array_equal(bench.results(shape, registers)[0], exact)


# -- PTX -----------------------------------------------------------------------------------------
def append(b: Builder, shape: WgmmaShape, from_registers: bool = False, **more: Any) -> None:
    """One instruction on fresh registers, in a batch of its own."""
    kind = shape.d if shape.d.bits == 32 else u32
    d = tuple(b.var(kind) for _ in range(shape.registers))
    a: Any = tuple(Const(u32, 0) for _ in range(4)) if from_registers else Const(u64, 1 << 62)
    fence(b)
    wgmma(b, shape, d, a, Const(u64, 1 << 62), scale_d=FALSE, **more)
    commit(b)
    wait(b, 0)


def test_text() -> None:
    """The forms of the instruction: transposes, one for A in registers, none for other types."""
    bench = Group()
    append(bench.b, shape_of(8, f32, f16, f16), a_major="MN", negate_b=True)
    append(bench.b, shape_of(8, f32, bf16, bf16), from_registers=True, b_major="MN")
    append(bench.b, shape_of(8, f16, e4m3, e4m3))
    append(bench.b, shape_of(8, i32, u8, i8))
    lines = [line for op in bench.kernel.body.ops for line in ptx_of(op)]
    starts = [line for line in lines if line.startswith("wgmma.mma_async")]
    assert starts[0].startswith("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {")
    ends = [line.rpartition("#False")[2] for line in starts]
    assert ends == [", 1, -1, 1, 0", ", 1, 1, 1", ", 1, 1", ""]
    assert lines[0] == "wgmma.fence.sync.aligned"
    assert lines[-2:] == ["wgmma.commit_group.sync.aligned", "wgmma.wait_group.sync.aligned 0"]


@pytest.mark.parametrize("types", TYPES, ids=lambda row: "_".join(map(str, row)))
def test_every_shape_assembles_without_a_warning(types: Any, tmp_path: Path) -> None:
    """All widths of each type, A from shared memory and from registers, in one kernel."""
    kernel = Kernel("shapes", (128, 1, 1), min_blocks_per_sm=1)
    b = Builder(kernel)
    for number, n in enumerate(widths_of(types[1])):
        shape = shape_of(n, *types)
        transposed = shape.transposable and number % 2 == 0
        append(b, shape, from_registers=number % 3 == 0, b_major="MN" if transposed else "K")
    source = tmp_path / "shapes.ptx"
    source.write_text(emit(kernel, target_of("sm_90a")).text)
    command = [assembler(), "-arch=sm_90a", "-O1", str(source), "-o", str(tmp_path / "cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# -- what is refused -------------------------------------------------------------------------------
def test_types_and_widths_that_do_not_exist() -> None:
    """The message lists what there is."""
    with pytest.raises(TypeMismatch, match="no wgmma multiplies f16 by bf16 into f32") as caught:
        shape_of(8, f32, f16, bf16)
    assert caught.value.code == "K284"
    with pytest.raises(TypeMismatch, match="multiple of 8 up to 256, got 12") as caught:
        shape_of(12, f32, f16, f16)
    assert caught.value.code == "K285"
    with pytest.raises(TypeMismatch, match="got 40") as caught:
        shape_of(40, i32, i8, i8)
    assert caught.value.code == "K285" and 40 not in INTEGER_WIDTHS


@pytest.mark.parametrize(
    ("shape", "more", "code"),
    [
        (shape_of(8, f32, e4m3, e4m3), {"b_major": "MN"}, "K286"),
        (shape_of(8, i32, i8, i8), {"negate_a": True}, "K287"),
        (shape_of(8, f32, f16, f16), {"from_registers": True, "a_major": "MN"}, "K430"),
        (shape_of(8, f32, f16, f16), {"a_major": "M"}, "K430"),
    ],
)
def test_modifiers_that_do_not_exist(shape: WgmmaShape, more: Any, code: str) -> None:
    """Transposes belong to 16-bit operands in shared memory, negation to floats."""
    with pytest.raises((TypeMismatch, VerifyError)) as caught:
        append(Group().b, shape, **more)
    assert caught.value.code == code


def test_operands_of_other_types() -> None:
    """Too few accumulators, 32-bit descriptors and too many pending groups are refused."""
    b, shape = Group().b, shape_of(8, f32, f16, f16)
    d = tuple(b.var(f32) for _ in range(4))
    for registers, a, code in ((d[:3], Value(u64), "K271"), (d, Value(u32), "K270")):
        with pytest.raises(TypeMismatch) as caught:
            wgmma(b, shape, registers, a, Value(u64))
        assert caught.value.code == code
    with pytest.raises(TypeMismatch, match="0 to 7, got 8"):
        wait(b, 8)
