"""The tensor-core model against bits recorded on an H200."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from core.isa.ways import WAYS, only
from kdsl_core.errors import TypeMismatch
from kdsl_core.isa import tensor_core_sums
from kdsl_core.isa.tensor_core import accumulate_products, multiply_accumulate
from kdsl_core.isa.tensor_core_operands import prepare
from kdsl_core.isa.tensor_core_tiles import tiles_of

GOLDEN = Path(__file__).parents[2] / "golden" / "tensor_core" / "h200.npz"
TYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


@pytest.fixture(autouse=True, params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test runs once for each way of a sum."""
    with only(request.param):
        yield


@pytest.fixture(scope="module")
def h200() -> Any:
    """Inputs and outputs of single instructions, as raw bits."""
    with np.load(GOLDEN) as recorded:
        return dict(recorded)


@pytest.mark.parametrize("family", ["mma.sync", "wgmma"])
@pytest.mark.parametrize("name", TYPES)
def test_every_recorded_bit(h200: Any, family: Any, name: str) -> None:
    """Every f32 accumulator bit equals the H200's."""
    a, b, c, d = (h200[f"{family.removesuffix('.sync')}_{name}_{x}"] for x in "ABCD")
    dtype = TYPES[name]
    got = multiply_accumulate(a.view(dtype), b.view(dtype), c.view(np.float32), family)
    np.testing.assert_array_equal(got.view(np.uint32), d)


def test_every_recorded_bit_of_f16_accumulators(h200: Any) -> None:
    """Every f16 accumulator bit equals the H200's."""
    a, b = h200["mma_f16_A"].view(np.float16), h200["mma_f16_B"].view(np.float16)
    got = multiply_accumulate(a, b, h200["mma_f16acc_C"].view(np.float16))
    np.testing.assert_array_equal(got.view(np.uint16), h200["mma_f16acc_D"])


def of_exponents(
    rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int, dtype: Any
) -> Any:
    """Numbers with exponents in a range, many with short significands, a tenth of them zeros."""
    significand = rng.integers(1 << 23, 1 << 24, shape) & -(1 << rng.integers(0, 24, shape))
    exact = np.ldexp(significand.astype(np.float64), rng.integers(low, high + 1, shape) - 23)
    exact *= rng.choice([-1, 1, 0], shape, p=[0.5, 0.4, 0.1])
    return exact.astype(np.float32).astype(dtype)


# exponents of A, B and C; E is where terms meet, so C is put at all distances from the products
RANGES = {
    "alike": ((-3, 3), (-3, 3), (-3, 3)),
    "wide": ((-50, 50), (-50, 50), (-126, 127)),
    "large": ((40, 50), (40, 50), (80, 120)),
    "small": ((-50, -48), (-50, -48), (-126, -90)),
    "overflow": ((50, 50), (49, 50), (118, 127)),
    "C subnormal": ((-50, -40), (-50, -40), (-149, -126)),
    "subnormal in 16 bits": ((-24, -13), (-24, -13), (-60, -20)),
    "A zero": ((-200, -200), (0, 3), (-149, 127)),
    "A zero, C small": ((-200, -200), (0, 3), (-102, -98)),
}


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("family", ["mma.sync", "wgmma"])
@pytest.mark.parametrize("name", TYPES)
def test_narrow_types_give_the_bits_of_wide_ones(
    monkeypatch: pytest.MonkeyPatch, family: Any, name: str, ranges: str
) -> None:
    """Where float32 and int32 are enough for a sum, they give what float64 gives."""
    rng = np.random.default_rng(0)
    k = 32 // np.dtype(TYPES[name]).itemsize
    for m, n, batch in ((16, 8, 24), (16, 40, 6)):  # the batch, and N, as the inner loop
        at_a, at_b, at_c = RANGES[ranges]
        a = of_exponents(rng, (batch, m, k), *at_a, TYPES[name])
        b = of_exponents(rng, (batch, n, k), *at_b, TYPES[name])
        c = of_exponents(rng, (batch, m, n), *at_c, np.float32)
        for accumulator in (np.float32, *[np.float16] * (name == "f16")):
            narrow = multiply_accumulate(a, b, c.astype(accumulator), family)
            with monkeypatch.context() as only_wide:
                only_wide.setattr(tensor_core_sums, "_stays_narrow", lambda *_: False)
                wide = multiply_accumulate(a, b, c.astype(accumulator), family)
            np.testing.assert_array_equal(narrow.view(np.uint8), wide.view(np.uint8))


def test_usual_numbers_take_narrow_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Normal numbers, zeros among them, never need float64; exponents beyond ±50 do."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((4, 16, 16)).astype(ml_dtypes.bfloat16) for _ in range(2))
    a[0, 0], c = 0, np.zeros((4, 16, 16), np.float32)
    monkeypatch.setattr(tensor_core_sums, "_wide_sum", None)
    multiply_accumulate(a, b, c)
    a[1, 3, 5] = 2.0**51
    with pytest.raises(TypeError):
        multiply_accumulate(a, b, c)


def test_batches_broadcast_and_prepared_operands_agree(h200: Any) -> None:
    """A grid of A against B tiles gives the bits of each pair done alone."""
    a = h200["mma_bf16_A"][:4].view(ml_dtypes.bfloat16)
    b = h200["mma_bf16_B"][:3].view(ml_dtypes.bfloat16)
    c = np.ones((4, 3, 16, 8), np.float32)
    grid = multiply_accumulate(prepare(a[:, None]), prepare(b), c)
    for i, j in np.ndindex(4, 3):
        alone = multiply_accumulate(a[i], b[j], c[i, j])
        np.testing.assert_array_equal(grid[i, j], alone)


@pytest.mark.parametrize(
    ("order", "tiles"),
    [
        ("au bv au bw", [[0, 2], [1, 3]]),  # each A meets others
        ("au bu av bv", [[0, 2], [1, 3]]),  # all meet all
        ("au av bv bu cu cv", [[0, 1], [3, 2], [4, 5]]),
        ("au bu", [[0], [1]]),  # one B for all
        ("au au", [[0, 1]]),
        ("au bv cw", None),
        ("au av bw", None),
    ],
)
@pytest.mark.parametrize("block", [64, 1 << 18])
def test_products_that_meet(
    monkeypatch: pytest.MonkeyPatch, order: str, tiles: Any, block: int
) -> None:
    """Products with an operand in common give the bits of each one alone, in blocks of any size."""
    rng = np.random.default_rng(0)
    few = {name: of_exponents(rng, (2, 32, 16), -20, 3, ml_dtypes.bfloat16) for name in "abc"}
    others = {name: of_exponents(rng, (2, 24, 16), -3, 3, ml_dtypes.bfloat16) for name in "uvw"}
    a = np.stack([few[left] for left, _ in order.split()], axis=1)
    b = np.stack([others[right] for _, right in order.split()], axis=1)
    c = of_exponents(rng, (a.shape[1], 32, 24), -9, 9, np.float32)
    monkeypatch.setattr(tensor_core_sums, "BLOCK_PRODUCTS", block)
    found = tiles_of(a, b, c)
    assert (found if found is None else found.at.tolist()) == tiles
    together = accumulate_products(a, b, c, "wgmma")
    for i in range(a.shape[1]):
        alone = accumulate_products(a[:, i], b[:, i], c[i], "wgmma")
        np.testing.assert_array_equal(together[i].view(np.uint32), alone.view(np.uint32))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("family", ["mma.sync", "wgmma"])
@pytest.mark.parametrize("data", ["usual", "huge", "infinite"])
@pytest.mark.parametrize("block", [1024, 1 << 17])
def test_a_chain_gives_the_bits_of_its_steps(
    monkeypatch: pytest.MonkeyPatch, data: str, family: Any, name: str, block: int
) -> None:
    """Instructions one after the other, also where sums overflow or an operand is infinite."""
    rng, dtype = np.random.default_rng(0), TYPES[name]
    k, far = 32 // np.dtype(dtype).itemsize, name in ("bf16", "tf32")
    factors = (62, 63) if data == "huge" and far else (-4, 7)
    sums = (120, 127) if data == "huge" else (-9, 9)
    for m, n, batch in ((16, 8, 24), (16, 40, 6)):
        a, b = (of_exponents(rng, (5, batch, rows, k), *factors, dtype) for rows in (m, n))
        a[:, 1], c = a[:, 0], of_exponents(rng, (batch, m, n), *sums, np.float32)
        if data == "infinite":
            a[3, 0, 2, 1] = np.nan if name == "e4m3" else np.inf
        with monkeypatch.context() as in_blocks:
            in_blocks.setattr(tensor_core_sums, "BLOCK_PRODUCTS", block)
            together = accumulate_products(a, b, c, family)
        for step in range(5):
            c = multiply_accumulate(a[step], b[step], c, family)
        np.testing.assert_array_equal(together.view(np.uint32), c.view(np.uint32))
        assert np.isfinite(c).all() == (data == "usual" or (data == "huge" and not far))


@pytest.mark.parametrize("n", [8, 40])
def test_a_chain_whose_f16_sum_overflows(n: int) -> None:
    """A sum that is infinite on the way stays so, or becomes NaN, as it does step by step."""
    a, b = np.full((3, 12, 16, 16), 64, np.float16), np.full((3, 12, n, 16), 64, np.float16)
    b[:, :, 1::2], c = 1, np.zeros((12, 16, n), np.float16)
    b[2] *= -1
    together = accumulate_products(a, b, c)
    for step in range(3):
        c = multiply_accumulate(a[step], b[step], c)
    assert np.isinf(c[..., ::2]).all() and (c[..., 1::2] == 1024).all()
    np.testing.assert_array_equal(together.view(np.uint16), c.view(np.uint16))


def test_sums_that_int32_cannot_hold() -> None:
    """Sixteen products just below four and a C below two are more than 2^31 times 2^-25."""
    a = np.full((1, 16, 16), 2 - 2.0**-7).astype(ml_dtypes.bfloat16)
    a[0, 1::2] *= -1
    c = np.where(a[..., :1] < 0, -1.9375, 1.9375).astype(np.float32).repeat(16, axis=2)
    exact = a.astype(np.float64) @ np.abs(a.astype(np.float64)).swapaxes(1, 2) + c
    np.testing.assert_array_equal(multiply_accumulate(a, np.abs(a), c), exact)


def test_wide_tiles_agree_with_narrow_ones(h200: Any) -> None:
    """M and N only index independent outputs: one wide tile equals its parts."""
    a = h200["wgmma_f16_A"][:2].view(np.float16)
    b = h200["wgmma_f16_B"].view(np.float16).reshape(2, 256, 16)
    c = np.zeros((2, 64, 256), np.float32)
    wide = multiply_accumulate(a, b, c, "wgmma")
    part = multiply_accumulate(a, b[:, 40:48], c[..., 40:48], "wgmma")
    np.testing.assert_array_equal(wide[..., 40:48], part)


@pytest.mark.parametrize("signed", [np.int8, np.uint8])
def test_integers_are_exact_and_wrap(signed: Any) -> None:
    """int8 products add exactly and int32 accumulators wrap."""
    rng = np.random.default_rng(0)
    a = rng.integers(-128, 256, (3, 16, 32)).astype(signed)
    b = rng.integers(-128, 128, (3, 8, 32)).astype(np.int8)
    c = np.full((3, 16, 8), 2**31 - 1, np.int32)
    exact = a.astype(np.int64) @ b.astype(np.int64).swapaxes(-1, -2) + c
    np.testing.assert_array_equal(multiply_accumulate(a, b, c), exact.astype(np.int32))


def test_tf32_ignores_low_bits() -> None:
    """The low 13 bits of a tf32 operand have no influence."""
    a = np.full((16, 8), 1.5, np.float32)
    b, c = np.ones((8, 8), np.float32), np.zeros((16, 8), np.float32)
    noisy = (a.view(np.uint32) | np.uint32(0x1FFF)).view(np.float32)
    np.testing.assert_array_equal(multiply_accumulate(noisy, b, c), multiply_accumulate(a, b, c))


def test_nonfinite_inputs_follow_ieee() -> None:
    """inf propagates with its sign, inf − inf and NaN give 0x7fffffff, other rows are untouched."""
    a, b = np.ones((16, 16), np.float16), np.ones((8, 16), np.float16)
    a[0, 0], a[1, :2], a[2, 5] = -np.inf, (np.inf, -np.inf), np.nan
    d = multiply_accumulate(a, b, np.zeros((16, 8), np.float32))
    assert (d[0] == -np.inf).all()
    assert (d[1:3].view(np.uint32) == 0x7FFFFFFF).all()
    assert (d[3:] == 16).all()


def one_sum(pairs: list[tuple[float, float]], c: float, dtype: Any, accumulator: Any) -> float:
    """Σ xᵢ·yᵢ + c as one instruction gives it."""
    a, b = (np.zeros((1, 8), np.float64) for _ in range(2))
    for i, (x, y) in enumerate(pairs):
        a[0, i], b[0, i] = x, y
    total = multiply_accumulate(a.astype(dtype), b.astype(dtype), np.full((1, 1), c, accumulator))
    return float(total[0, 0])


TOP = float(np.finfo(np.float32).max)
BIG = 2.0**127


@pytest.mark.parametrize(
    ("pairs", "c", "expected"),
    [
        ([(BIG, 2)], 0, np.inf),
        ([(-BIG, BIG)], TOP, -np.inf),
        ([(BIG, BIG), (BIG, -BIG)], 3, 0),  # 3 is below 2^(254−25)
        ([(2.0**64, 2.0**64), (2.0**64, -(2.0**64)), (2.0**60, 2.0**60)], 1, 2.0**120),
        ([(BIG, 4), (BIG, -2)], 0, np.inf),
        ([(BIG, 2), (-(2.0**52), 2.0**52)], 0, TOP - 2.0**104 + 2.0**104),
        ([(1, 2.0**103)], TOP, TOP),  # half a step: toward zero
        ([(1, 2.0**104)], TOP, np.inf),
        ([(-1, 2.0**104)], -TOP, -np.inf),
        ([(-1, 2.0**104)], np.inf, np.inf),
    ],
)
def test_sums_beyond_the_range(pairs: list[tuple[float, float]], c: float, expected: float) -> None:
    """Only the sum overflows, not a product: at 2^128, to an infinity of its sign."""
    for dtype in (ml_dtypes.bfloat16, np.float32):
        assert one_sum(pairs, c, dtype, np.float32) == expected


def test_sums_beyond_the_range_of_f16() -> None:
    """f16 accumulators become infinite where nearest even does, whatever the products were."""
    kinds = (np.float16, np.float16)
    assert one_sum([(256, 256), (256, -256)], 1, *kinds) == 1
    assert one_sum([(256, 256), (-16, 2)], 0, *kinds) == 65504
    assert one_sum([(256, 256), (-15.984375, 1)], 0, *kinds) == np.inf
    assert one_sum([(256, 256), (-17, 1)], 0, *kinds) == 65504


def test_fast_numerics_is_one_matmul(h200: Any) -> None:
    """The fast variant is close where no cancellation occurs."""
    a, b = h200["mma_f16_A"][7].view(np.float16), h200["mma_f16_B"][7].view(np.float16)
    c = np.zeros((16, 8), np.float32)
    fast = multiply_accumulate(a, b, c, numerics="fast")
    np.testing.assert_allclose(fast, multiply_accumulate(a, b, c), rtol=1e-5)


@pytest.mark.parametrize(
    ("a", "b", "c", "k", "code"),
    [
        (np.float64, np.float64, np.float32, 16, "K280"),
        (np.float16, ml_dtypes.bfloat16, np.float32, 16, "K281"),
        (np.int8, np.int8, np.float32, 16, "K281"),
        (np.float16, np.float16, np.float64, 16, "K282"),
        (np.float16, np.float16, np.float32, 32, "K283"),
    ],
)
def test_wrong_types_are_named(a: Any, b: Any, c: Any, k: int, code: str) -> None:
    """A combination that no instruction takes is refused with its code."""
    with pytest.raises(TypeMismatch) as caught:
        multiply_accumulate(np.ones((16, k), a), np.ones((8, k), b), np.zeros((16, 8), c))
    assert caught.value.code == code
