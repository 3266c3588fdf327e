"""Each instruction family through the language: NumPy's answer, and on a GPU the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from execution import Executor

BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
N, BLOCK = 256, 128
GRID = N // BLOCK


def rng(seed: int = 0) -> np.random.Generator:
    """Random numbers, the same every time."""
    return np.random.default_rng(seed)


def bits(array: Any) -> bytes:
    """The bytes of an array, in C order."""
    return np.ascontiguousarray(array).tobytes()


def place() -> Any:
    """The thread's index in the grid."""
    return kd.block_idx()[0] * BLOCK + kd.thread_idx()[0]


# -- arithmetic ------------------------------------------------------------------------------------
@kd.kernel
def integers(a: kd.Tensor["i32|u32|i64|u64", "n"], b: kd.Tensor["=a", "n"], out: kd.Tensor) -> None:
    """One row of `out` for each operation."""
    i = place()
    x, y, count = a[i], b[i], b[i] & 31
    results = [x + y, x - y, x * y, x // y, x % y, x & y, x | y, x ^ y, x << count, x >> count]
    results += [-x, ~x, kd.minimum(x, y), kd.maximum(x, y), x * 3 + 7, x // 10, x % 8]
    for row, value in enumerate(results):
        out[row, i] = value


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_integer_arithmetic(execute: Executor, dtype: str) -> None:
    """Wrapping sums and products, Python's division and remainder, bits and shifts."""
    info = np.iinfo(dtype)
    a = rng().integers(info.min + 1, info.max, N, dtype, endpoint=True)
    b = rng(1).integers(1, 1000, N, dtype) * (-1 if info.min else 1) ** np.arange(N).astype(dtype)
    b = b.astype(dtype)
    out = np.zeros((17, N), dtype)
    got = execute(integers, GRID, BLOCK, a, b, out)[2]
    with np.errstate(over="ignore"):
        c = b & b.dtype.type(31)
        three, seven, ten, eight = (a.dtype.type(k) for k in (3, 7, 10, 8))
        want = [a + b, a - b, a * b, a // b, a % b, a & b, a | b, a ^ b, a << c, a >> c]
        want += [-a, ~a, np.minimum(a, b), np.maximum(a, b), a * three + seven, a // ten, a % eight]
    for row, values in enumerate(want):
        np.testing.assert_array_equal(got[row], values, err_msg=f"row {row}")


@kd.kernel
def floats(a: kd.Tensor["f16|bf16|f32|f64", "n"], b: kd.Tensor["=a", "n"], out: kd.Tensor) -> None:
    """One row of `out` for each operation."""
    i = place()
    x, y = a[i], b[i]
    results = [x + y, x - y, x * y, x / y, -x, abs(x), kd.minimum(x, y), kd.maximum(x, y)]
    for row, value in enumerate(results):
        out[row, i] = value


@pytest.mark.parametrize("dtype", [np.dtype("f2"), BF16, np.dtype("f4"), np.dtype("f8")], ids=str)
def test_float_arithmetic(execute: Executor, dtype: Any) -> None:
    """Each operation rounds once, to nearest even."""
    a, b = (rng(seed).standard_normal(N).astype(dtype) for seed in (0, 1))
    got = execute(floats, GRID, BLOCK, a, b, np.zeros((8, N), dtype))[2]
    want = [a + b, a - b, a * b, a / b, -a, abs(a), np.minimum(a, b), np.maximum(a, b)]
    for row, values in enumerate(want):
        assert bits(got[row]) == bits(values), f"row {row}"


@kd.kernel
def fused(a: kd.Tensor["f32", "n"], b: kd.Tensor["f32", "n"], out: kd.Tensor["f32", "m n"]) -> None:
    """Fused multiply-adds and roundings to whole numbers."""
    i = place()
    x, y = a[i], b[i]
    for row, value in enumerate([kd.fma(x, y, x), kd.floor(x * 8.0), kd.ceil(x * 8.0)]):
        out[row, i] = value


def test_fused_and_whole(execute: Executor) -> None:
    """x·y + z is rounded once; floor and ceil are exact."""
    a, b = (rng(seed).standard_normal(N).astype(np.float32) for seed in (2, 3))
    got = execute(fused, GRID, BLOCK, a, b, np.zeros((3, N), np.float32))[2]
    wide = a.astype(np.longdouble) * b + a
    eight = np.float32(8)
    for row, want in enumerate((wide.astype(np.float32), np.floor(a * eight), np.ceil(a * eight))):
        assert bits(got[row]) == bits(want), f"row {row}"


# -- conversion, comparison ------------------------------------------------------------------------
@kd.kernel
def converts(x: kd.Tensor, y: kd.Tensor) -> None:
    """Element by element to the other type."""
    i = place()
    y[i] = x[i].to(y.dtype)


CONVERSIONS = [
    *[("f4", other) for other in ("f2", BF16, "f8", "i4", "i8", "i2", E4M3, E5M2)],
    *[("i4", other) for other in ("f4", "f8", "i8", "i2", "i1", "u1", "u4", "f2")],
    *[("f2", "f4"), (BF16, "f4"), ("f8", "f4"), (E4M3, "f4"), (E5M2, "f4"), (E4M3, "f2")],
    *[("u4", "f4"), ("u1", "i4"), ("i1", "i8"), ("i8", "f8"), ("f2", BF16), ("u8", "f4")],
]


@pytest.mark.parametrize(("source", "target"), CONVERSIONS, ids=lambda t: np.dtype(t).name)
def test_conversions(execute: Executor, source: Any, target: Any) -> None:
    """To nearest even for floats, towards zero for integers, the low bits between integers."""
    source, target = np.dtype(source), np.dtype(target)
    if source.kind in "iu":
        info = np.iinfo(source)
        top = 2000 if target == np.float16 else info.max
        x = rng().integers(max(info.min, -top), top, N, source)
    else:
        x = (rng().standard_normal(N) * 50).astype(source)
    got = execute(converts, GRID, BLOCK, x, np.zeros(N, target))[1]
    wide = x.astype(np.float32) if source in (E4M3, E5M2, BF16, np.dtype("f2")) else x
    assert bits(got) == bits(wide.astype(target))


@kd.kernel
def compares(a: kd.Tensor["f32|i32|u32", "n"], b: kd.Tensor["=a", "n"], out: kd.Tensor) -> None:
    """Truth values as bits, and selections."""
    i = place()
    x, y = a[i], b[i]
    tests = [x < y, x <= y, x > y, x >= y, x == y, x != y, x < y < 3, x < y and not y < 2]
    word = 0
    for k, test in enumerate(tests):
        word = word | kd.where(test, 1 << k, 0)
    out[0, i] = word
    out[1, i] = kd.where((x < y) | (x == 2), 10, 20)
    out[2, i] = 5 if x > y else 6


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32"])
def test_comparison_and_selection(execute: Executor, dtype: str) -> None:
    """All six relations, chains, `and`/`not`, and both kinds of selection; NaN is unordered."""
    a, b = (rng(seed).integers(0, 5, N).astype(dtype) for seed in (0, 1))
    if dtype == "float32":
        a[::7] = np.nan
    got = execute(compares, GRID, BLOCK, a, b, np.zeros((3, N), np.int32))[2]
    tests = [a < b, a <= b, a > b, a >= b, a == b, a != b, (a < b) & (b < 3), (a < b) & ~(b < 2)]
    word = sum(test.astype(np.int32) << k for k, test in enumerate(tests))
    np.testing.assert_array_equal(got[0], word)
    np.testing.assert_array_equal(got[1], np.where((a < b) | (a == 2), 10, 20))
    np.testing.assert_array_equal(got[2], np.where(a > b, 5, 6))


# -- functions -------------------------------------------------------------------------------------
def _erf(x: Any) -> Any:
    from math import erf

    return np.vectorize(erf)(x)


# name → (NumPy's function, lowest and highest argument, error bound of the fast one in ulps)
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], float, float, float]] = {
    "exp": (np.exp, -20, 20, 4),
    "exp2": (np.exp2, -20, 20, 2),
    "log": (np.log, 0.01, 100, 4),
    "log2": (np.log2, 0.01, 100, 4),
    "sqrt": (np.sqrt, 0, 100, 2),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.01, 100, 2),
    "tanh": (np.tanh, -5, 5, 2.0**12),
    "sin": (np.sin, -3, 3, 8),
    "cos": (np.cos, -3, 3, 8),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), -10, 10, 6),
}


@kd.kernel
def maps(
    x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], function: kd.Static, approx: kd.Static
) -> None:
    """A function of each element."""
    i = place()
    y[i] = function(x[i], approx=approx)


@pytest.mark.parametrize("name", [*FUNCTIONS, "erf"])
def test_full_functions(execute: Executor, name: str) -> None:
    """Within 4 ulp of the real function; the GPU gives the simulator's bits."""
    reference, low, high, _ = FUNCTIONS.get(name, (_erf, -3, 3, 0))
    x = rng().uniform(low, high, N).astype(np.float32)
    got = execute(maps, GRID, BLOCK, x, x * 0, function=getattr(kd, name), approx=False)[1]
    want = reference(x.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=4 * 2**-23, atol=2**-24)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_fast_functions(execute: Executor, name: str) -> None:
    """Within the bound of the hardware's instruction; the GPU gives the simulator's bits."""
    reference, low, high, ulps = FUNCTIONS[name]
    x = rng(1).uniform(low, high, N).astype(np.float32)
    got = execute(maps, GRID, BLOCK, x, x * 0, function=getattr(kd, name), approx=True)[1]
    want = reference(x.astype(np.float64))
    bound = (ulps + 40 * (name == "exp")) * 2.0**-23  # exp rounds x · log2 e, |x| ≤ 20, before
    np.testing.assert_allclose(got, want, rtol=bound, atol=bound)


# -- memory ----------------------------------------------------------------------------------------
@kd.kernel
def moves_vectors(x: kd.Tensor["f16", "n"], y: kd.Tensor["f16", "n"], width: kd.Static) -> None:
    """One vector a thread, through registers."""
    held = kd.rmem(kd.f16, width // 2)
    kd.copy(kd.local_tile(x, (width // 2,), (place(),)), held, vector=width)
    kd.copy(held, kd.local_tile(y, (width // 2,), (place(),)), vector=width)


@pytest.mark.parametrize(("width", "text"), [(2, "b16"), (4, "b32"), (8, "v2.b32"), (16, "v4.b32")])
def test_vectors(execute: Executor, width: int, text: str) -> None:
    """Accesses of 2 to 16 bytes arrive whole, each as one instruction."""
    x = rng().standard_normal(N * width // 2).astype(np.float16)
    assert bits(execute(moves_vectors, GRID, BLOCK, x, x * 0, width=width)[1]) == bits(x)
    ptx = moves_vectors.ptx(x, x, target="sm_80", block=BLOCK, width=width)
    assert f"ld.global.{text}" in ptx and f"st.global.{text}" in ptx


@kd.kernel
def through_shared(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], width: kd.Static) -> None:
    """Asynchronous copies into shared memory in two groups; reads what other threads brought."""
    t, per = kd.thread_idx()[0], width // 4
    count = BLOCK * per
    tile = kd.smem(kd.f32, kd.Layout((count, 2)))
    atom = {4: kd.atoms.SM80_CP_ASYNC_CACHEALWAYS_U32, 16: kd.atoms.SM80_CP_ASYNC_CACHEGLOBAL_U128}
    plan = kd.tiled_copy(atom[width], kd.f32, kd.Layout(BLOCK), kd.Layout(per))
    part = plan.get_slice(t)
    for stage in range(2):
        kd.copy(
            part.partition_S(kd.local_tile(x, (count,), (stage,))),
            part.partition_D(tile[None, stage]),
            atom=plan,
        )
        kd.cp_async_commit()
    for stage in range(2):
        kd.cp_async_wait(1 - stage)
        kd.sync_threads()
        for k in range(per):
            y[stage * count + k * BLOCK + t] = tile[count - 1 - (k * BLOCK + t), stage]


@pytest.mark.parametrize("width", [4, 16])
def test_asynchronous_copies(execute: Executor, width: int) -> None:
    """Both widths; a group is complete after the wait, and visible to all after the barrier."""
    count = BLOCK * width // 4
    x = rng().standard_normal(2 * count).astype(np.float32)
    got = execute(through_shared, 1, BLOCK, x, x * 0, width=width)[1]
    np.testing.assert_array_equal(got.reshape(2, count), x.reshape(2, count)[:, ::-1])


# -- lanes, barriers, atomics ----------------------------------------------------------------------
@kd.kernel
def exchanges(x: kd.Tensor["i32", "n"], out: kd.Tensor["i32", "m n"]) -> None:
    """Shuffles, votes and reductions in each warp."""
    i, lane = place(), kd.lane_idx()
    v = x[i]
    rows = [
        kd.shfl_xor(v, 5),
        kd.shfl_up(v, 3),
        kd.shfl_down(v, 7),
        kd.shfl_idx(v, (lane * 3) % 32),
    ]
    rows += [kd.ballot(v > 0).bitcast(kd.i32), kd.any_sync(v > 90), kd.all_sync(v > -99)]
    rows += [kd.warp_reduce(lambda p, q: p + q, v), kd.warp_reduce(kd.maximum, v)]
    rows += [kd.warp_reduce(kd.minimum, v), kd.warp_idx() * 32 + lane]
    for row, value in enumerate(rows):
        out[row, i] = kd.where(value, 1, 0) if value.dtype is kd.boolean else value


def test_lanes(execute: Executor) -> None:
    """Every exchange between the lanes of a warp."""
    x = rng().integers(-100, 100, N).astype(np.int32)
    got = execute(exchanges, GRID, BLOCK, x, np.zeros((11, N), np.int32))[1]
    warps, lane = x.reshape(-1, 32), np.arange(32)
    one = np.uint32(1)
    ballot = ((warps > 0) * (one << lane.astype(np.uint32))).sum(1, dtype=np.uint32).view(np.int32)
    want = [
        warps[:, lane ^ 5],
        warps[:, np.where(lane < 3, lane, lane - 3)],
        warps[:, np.where(lane > 24, lane, lane + 7)],
        warps[:, lane * 3 % 32],
        *(column[:, None] for column in (ballot, (warps > 90).any(1), (warps > -99).all(1))),
        *(getattr(warps, name)(1)[:, None] for name in ("sum", "max", "min")),
        (np.arange(N) % BLOCK).reshape(-1, 32),
    ]
    for row, values in enumerate(want):
        np.testing.assert_array_equal(got[row].reshape(-1, 32), values * np.ones_like(warps))


@kd.kernel
def hands_over(x: kd.Tensor["i32", "n"], y: kd.Tensor["i32", "n"]) -> None:
    """Two warps write, two read, round after round, by two named barriers."""
    full, empty = kd.named_barrier(1, BLOCK), kd.named_barrier(2, BLOCK)
    box = kd.smem(kd.i32, 64)
    t = kd.thread_idx()[0]
    if t < 64:
        for step in kd.range(4):
            empty.sync()
            box[t] = x[step * 64 + t]
            full.arrive()
    else:
        empty.arrive()
        for step in kd.range(4):
            full.sync()
            y[step * 64 + t - 64] = box[127 - t]
            if step < 3:
                empty.arrive()


def test_named_barriers(execute: Executor) -> None:
    """What one half of the block writes, the other half reads, and nothing is overtaken."""
    x = np.arange(N, dtype=np.int32)
    got = execute(hands_over, 1, BLOCK, x, x * 0)[1]
    np.testing.assert_array_equal(got.reshape(4, 64), x.reshape(4, 64)[:, ::-1])


@kd.kernel
def counts(
    x: kd.Tensor["i32", "n"], whole: kd.Tensor["i32", "m"], real: kd.Tensor["f32", "k"]
) -> None:
    """Sums, extremes and counts whose result no order changes; shared and global."""
    v, t = x[place()], kd.thread_idx()[0]
    bins = kd.smem(kd.i32, 8)
    if t < 8:
        bins[t] = 0
    kd.sync_threads()
    kd.atomic_add(bins, v & 7, 1)
    kd.sync_threads()
    if t < 8:
        kd.atomic_add(whole, t, bins[t])
    kd.atomic_add(whole, 8, v)
    kd.atomic_min(whole, 9, v)
    kd.atomic_max(whole, 10, v)
    kd.atomic_add(real, 0, 0.25)
    kd.atomic_cas(whole, 11 + (v & 3), 0, 7)
    kd.atomic_exchange(whole, 15, 42)


def test_atomics(execute: Executor) -> None:
    """Every thread's contribution counts once."""
    x = rng().integers(-1000, 1000, N).astype(np.int32)
    _, whole, real = execute(
        counts, GRID, BLOCK, x, np.zeros(16, np.int32), np.zeros(1, np.float32)
    )
    np.testing.assert_array_equal(whole[:8], np.bincount(x & 7, minlength=8))
    assert whole[8:11].tolist() == [x.sum(), x.min(), x.max()]
    assert whole[11:].tolist() == [7, 7, 7, 7, 42] and real.tolist() == [N / 4]


# -- control flow ----------------------------------------------------------------------------------
@kd.kernel
def steps_to_one(x: kd.Tensor["i32", "n"], y: kd.Tensor["i32", "n"], most: kd.i32) -> None:
    """The length of each Collatz sequence: every lane leaves the loop at its own time."""
    i = place()
    if i >= x.shape[0]:
        return
    value, steps = x[i], 0
    while value != 1:
        if steps == most:
            steps = -1
            break
        value = value // 2 if value % 2 == 0 else 3 * value + 1
        steps += 1
    y[i] = steps


def test_divergent_loops_and_early_return(execute: Executor) -> None:
    """Lanes that return or break wait for nobody, and the others go on."""
    x = np.arange(1, 201, dtype=np.int32)

    def length(value: int) -> int:
        steps = 0
        while value != 1 and steps < 100:
            value, steps = (value // 2 if value % 2 == 0 else 3 * value + 1), steps + 1
        return steps if value == 1 else -1

    got = execute(steps_to_one, GRID, BLOCK, x, x * 0, 100)[1]
    assert got.tolist() == [length(int(value)) for value in x]


@kd.kernel
def sifts(x: kd.Tensor["i32", "n"], y: kd.Tensor["i32", "n"]) -> None:
    """Nested loops with `continue`, `break` and a branch in three ways."""
    i = place()
    total = 0
    for row in kd.range(x[i] % 7):
        if row == 3:
            continue
        for column in kd.range(row, 9, 2):
            if column * row > i % 13:
                break
            total += column
        if total > 40:
            total -= 40
        elif total % 2 == 1:
            total += 1
        else:
            total = total ^ row
    y[i] = total


def test_nested_control_flow(execute: Executor) -> None:
    """The same loops in Python give the same numbers."""
    x = rng().integers(0, 100, N).astype(np.int32)
    want = []
    for i, value in enumerate(x.tolist()):
        total = 0
        for row in (row for row in range(value % 7) if row != 3):
            for column in range(row, 9, 2):
                if column * row > i % 13:
                    break
                total += column
            if total > 40:
                total -= 40
            elif total % 2 == 1:
                total += 1
            else:
                total ^= row
        want.append(total)
    assert execute(sifts, GRID, BLOCK, x, x * 0)[1].tolist() == want
