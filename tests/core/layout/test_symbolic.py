"""Symbolic sizes: expressions that simplify, facts that decide, and layouts that hold them."""

from __future__ import annotations

import pickle
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kdsl_core as kd
from core.layout import definitions as defined
from kdsl_core.errors import LayoutError
from kdsl_core.layout import (
    ComposedLayout,
    Layout,
    Swizzle,
    SymInt,
    ceil_div,
    coalesce,
    compatible,
    complement,
    composition,
    cosize,
    crd2idx,
    idx2crd,
    is_static,
    left_inverse,
    local_tile,
    logical_divide,
    logical_product,
    make_identity_layout,
    make_layout_like,
    max_common_vector,
    recast_layout,
    right_inverse,
    same_function,
    shape_div,
    size,
    substitute,
    sym,
    tile_to_shape,
    vector_width,
    zipped_divide,
)

M = sym("m")
N = sym("n", divisible_by=64)
K = sym("k", divisible_by=8)


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (N, "n"),
        (N * 64, "n*64"),
        (ceil_div(N, 128), "ceil(n/128)"),
        (-(-N // 128), "ceil(n/128)"),
        (N * 64 // 64, "n"),
        (N % 8, "0"),
        (ceil_div(N, 8) * 8, "n"),
        (ceil_div(ceil_div(M, 8), 16), "ceil(m/128)"),
        (M * K * N // (K * N), "m"),
        ((M + 1) * (M - 1) - M * M, "-1"),
        ((M % 8) // 8, "0"),
        (7 // N, "0"),
        (ceil_div(8, N), "1"),
        (M % 8, "m%8"),
        (N - M, "-m+n"),
        (abs(-N), "n"),
        (divmod(N, 16)[0], "n//16"),
        ((M % 8) * (M // 3), "(m%8)*(m//3)"),
        (np.int64(2) * N + np.int32(1), "n*2+1"),
    ],
)
def test_expressions_simplify(got: Any, wanted: str) -> None:
    """Products, sums, floors and ceils take their shortest form; constants are plain integers."""
    assert str(got) == wanted
    assert isinstance(got, SymInt) == any(c.isalpha() for c in wanted)


def _expression(rng: Random, depth: int, env: dict[str, int]) -> tuple[Any, int]:
    """A random expression, and its value under `env`."""
    if depth == 0:
        symbol = rng.choice((M, N, K, None))
        number = rng.randint(-9, 70)
        return (number, number) if symbol is None else (symbol, env[str(symbol)])
    (a, x), (b, y) = _expression(rng, depth - 1, env), _expression(rng, depth - 1, env)
    kind = rng.choice("+-*/%c")
    if kind in "+-*":
        return {"+": (a + b, x + y), "-": (a - b, x - y), "*": (a * b, x * y)}[kind]
    if isinstance(b, int) or rng.random() < 0.5:
        b = y = rng.choice((1, 2, 3, 8, 12, 64, -3, -8))
    if kind == "c":
        return -(-a // b), -(-x // y)
    return (a // b, x // y) if kind == "/" else (a % b, x % y)


@given(st.integers(0, 2**64 - 1))
@settings(max_examples=60, deadline=None)
def test_expressions_keep_their_value(seed: int) -> None:
    """Whatever simplifies, the value is Python's; bounds and divisors hold; repr evaluates."""
    rng = Random(seed)
    for _ in range(20):
        env = {"m": rng.randint(1, 40), "n": 64 * rng.randint(1, 9), "k": 8 * rng.randint(1, 9)}
        try:
            got, wanted = _expression(rng, rng.randint(1, 3), env)
        except LayoutError as error:
            assert "needs" in error.message
            continue
        assert substitute(got, env) == wanted, (got, env)
        if isinstance(got, SymInt):
            assert wanted % got.divisible_by == 0
            assert got.low is None or got.low <= wanted
            assert got.high is None or wanted <= got.high
            assert eval(repr(got)) == got == pickle.loads(pickle.dumps(got))


def test_symbols_are_values() -> None:
    """Equal and hashed by name and facts; layouts of them too, and they survive a pickle."""
    assert sym("n", divisible_by=64) == N != sym("n") and hash(sym("m")) == hash(M)
    layout = Layout((M, N), (N, 1))
    again = Layout((sym("m"), sym("n", divisible_by=64)), (sym("n", divisible_by=64), 1))
    assert layout == again and hash(layout) == hash(again) and not is_static(layout)
    assert pickle.loads(pickle.dumps(layout)) == layout == eval(repr(layout))
    assert str(layout) == "(m,n):(n,1)" and kd.sym is sym
    assert make_identity_layout((M, 4)) == make_identity_layout((sym("m"), 4))


def test_comparisons_follow_from_facts() -> None:
    """What the facts imply is decided; the rest names the missing fact."""
    assert N >= 64 and N > 8 and not N < 64 and M > 0 and M * K >= K
    assert ceil_div(M, 128) * 128 >= M and bool(M)
    for undecided in (lambda: M > 1, lambda: N <= M, lambda: bool(M - 1)):
        with pytest.raises(LayoutError, match=r"K102.*needs"):
            undecided()


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (right_inverse(Layout((16, M), (1, 16))), Layout(M * 16, 1)),
        (right_inverse(Layout((M, N), (N, 1))), Layout((N, M), (M, 1))),
        (coalesce(Layout((M, (4, N)), (1, (M, M * 4)))), Layout(M * N * 4, 1)),
        (coalesce(Layout((M, 4), (1, N))), Layout((M, 4), (1, N))),
        (zipped_divide(Layout(N, 1), 16), Layout((16, N // 16), (1, 16))),
        (
            zipped_divide(Layout((M, N), (N, 1)), (16, 64)),
            Layout(((16, 64), (ceil_div(M, 16), N // 64)), ((N, 1), (N * 16, 64))),
        ),
        (
            logical_divide(Layout((N, 4), (1, N * 3)), 8),
            Layout((8, (N // 8, 4)), (1, (8, N * 3))),
        ),
        (logical_divide(Layout(N), 8, exact=True), Layout((8, N // 8), (1, 8))),
        (composition(Layout((N, M), (M, 1)), Layout((8, M), (1, N))), Layout((8, M), (M, 1))),
        (composition(Layout((16, N), (1, 100)), Layout(N, 1)), Layout((16, N // 16), (1, 100))),
        (composition(Layout((8, 4), (N, 1)), Layout(8, 2)), Layout((4, 2), (N * 2, 1))),
        (complement(Layout((4, 8), (1, N)), N * 8), Layout(N // 4, 4)),
        (complement(Layout(N, 1), N * M), Layout(M, N)),
        (left_inverse(Layout((N, 4), (1, N * 2))), Layout((N * 2, 4), (1, N))),
        (logical_product(Layout((8, N)), 4), Layout(((8, N), 4), ((1, 8), N * 8))),
        (
            tile_to_shape(Layout((8, 64), (64, 1)), (K, N)),
            Layout(((8, K // 8), (64, N // 64)), ((64, 512), (1, K * 64))),
        ),
        (recast_layout(Layout((M, N), (N, 1)), 16, 128), Layout((M, N // 8), (N // 8, 1))),
        (make_layout_like(Layout((M, N, 4), (N * 4, 4, 1))), Layout((M, N, 4), (N * 4, 4, 1))),
    ],
)
def test_operations_on_symbolic_layouts(got: Any, wanted: Any) -> None:
    """Where the facts decide, the result is the layout that holds for every value."""
    assert got == wanted


@pytest.mark.parametrize(
    ("operation", "fact"),
    [
        (lambda: logical_divide(Layout((M, 4), (1, M * 3)), 8), "m % 8 == 0"),
        (lambda: logical_divide(Layout(M), 8, exact=True), "m % 8 == 0"),
        (lambda: composition(Layout((M, 4), (1, 100)), Layout(8, 1)), "m % 8 == 0"),
        (lambda: composition(Layout((16, M), (1, 100)), Layout(M, 1)), "m % 16 == 0"),
        (lambda: complement(Layout((4, 8), (1, M)), M * 8), "m % 4 == 0"),
        (lambda: tile_to_shape(Layout((8, 8)), (M, 64)), "m % 8 == 0"),
        (lambda: recast_layout(Layout((4, M), (M, 1)), 16, 128), "m % 8 == 0"),
        (lambda: shape_div(M, 8), "m % 8 == 0"),
        (lambda: compatible(M, N), "m == n"),
        (lambda: Layout((M - 1, 4)), "m-1 >= 1"),
        (lambda: make_layout_like(Layout((M, N, 2), (N, M, 1))), "<="),
    ],
)
def test_what_is_not_implied_is_refused_with_the_fact(operation: Any, fact: str) -> None:
    """The message says which fact to declare."""
    with pytest.raises(LayoutError, match="needs") as caught:
        operation()
    assert fact in caught.value.message


@given(st.integers(0, 2**64 - 1))
@settings(max_examples=25, deadline=None)
def test_symbolic_results_hold_for_every_value(seed: int) -> None:
    """With numbers put in, a symbolic result has the values of the operation on numbers."""
    rng = Random(seed)
    for _ in range(10):
        extents = [rng.choice((2, 4, 8, K, M, K * 2)) for _ in range(rng.randint(1, 3))]
        strides, current = [], 1
        for extent in extents:
            strides.append(current)
            current = current * extent * rng.choice((1, 1, 2))
        order = rng.sample(range(len(extents)), len(extents))
        layout = Layout(tuple(extents[i] for i in order), tuple(strides[i] for i in order))
        tile = rng.choice((2, 4, 8, 3))
        env = {"m": rng.randint(1, 5), "k": 8 * rng.randint(1, 2)}
        t = Layout(tile, 1)
        for operation, holds in (
            (coalesce, lambda x, y: defined.table(x) == defined.table(y)),
            (right_inverse, defined.is_right_inverse),
            (left_inverse, defined.is_left_inverse),
            (lambda x, t=t: composition(x, t), lambda x, y, t=t: defined.is_composition(x, t, y)),
            (lambda x, t=t: logical_divide(x, t), lambda x, y, t=t: defined.is_divide(x, t, y)),
            (lambda x: complement(x, size(x) * 2), _is_complement),
        ):
            _check_under(env, operation, holds, layout)


def _is_complement(layout: Layout, result: Layout) -> bool:
    return defined.is_complement(layout, size(layout) * 2, result)


def _check_under(env: dict[str, int], operation: Any, holds: Any, layout: Layout) -> None:
    try:
        result = operation(layout)
    except LayoutError as error:
        assert error.code in ("K102", "K140", "K141", "K142", "K151"), error
        return
    plain = Layout(*substitute((layout.shape, layout.stride), env))
    known = Layout(*substitute((result.shape, result.stride), env))
    assert size(plain) > 600 or holds(plain, known), (layout, result, env)


def test_tiles_measures_and_coordinates() -> None:
    """What kernels ask of a tensor of symbolic size."""
    layout = Layout((M, N), (N, 1))
    assert size(layout) == cosize(layout) == M * N == kd.size(layout)
    tile, offset = local_tile(layout, (16, 64), (1, None))
    assert tile == Layout((16, 64, N // 64), (N, 1, 64)) and offset == N * 16
    assert layout(1, 2) == N + 2 and crd2idx((1, 2), (N, M)) == N * 2 + 1
    assert idx2crd(5, (N, M)) == (5, 0)
    assert vector_width(Layout((4, N), (N, 1)), 16) == 1 and vector_width(Layout(N), 16) == 16
    assert vector_width(Layout((N, 4), (1, K)), 16) == 8
    assert max_common_vector(Layout((N, M)), Layout((N, M))) == 64
    assert same_function(Layout((4, N)), Layout(N * 4))


def test_swizzles_see_known_bits_only() -> None:
    """An offset whose low bits are proven is swizzled; another is refused."""
    tile = ComposedLayout(Swizzle(2, 0, 3), 0, Layout((64, M), (1, 64)))
    assert tile(9, M) == M * 64 + 8
    with pytest.raises(LayoutError, match="% 32 == 0"):
        Swizzle(2, 0, 3)(M)


@pytest.mark.parametrize(
    "facts", [{"name": "2n"}, {"name": ""}, {"divisible_by": 0}, {"divisible_by": 1.5}]
)
def test_bad_symbols_are_refused(facts: dict[str, Any]) -> None:
    """A symbol needs a name and integers as facts."""
    with pytest.raises(LayoutError, match="K107"):
        sym(**{"name": "n", **facts})


def test_facts_are_kept_and_sizes_stay_bounded() -> None:
    """A value that breaks a fact is refused, and so is an expression that explodes."""
    with pytest.raises(LayoutError, match="K109"):
        substitute(N, {"n": 100})
    with pytest.raises(LayoutError, match="K103"):
        N // (M - M)
    total: Any = 1
    with pytest.raises(LayoutError, match="K108"):
        for i in range(40):
            total = total * (sym(f"x{i}") + 1)
    with pytest.raises(LayoutError, match="K108"):
        M ** (1 << 60)
    nested: Any = M
    with pytest.raises(LayoutError, match="K108"):
        for _ in range(100):
            nested = (nested * nested + 1) // K
    with pytest.raises(TypeError):
        N * 1.5
