"""Fused functions with the shipped GEMM kernel, in the simulator with every check on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kdsl_core as kd
import kdsl_fuse as kf
from kdsl_core.dtypes import dtype_of
from kdsl_core.errors import KdslError, TypeMismatch
from kdsl_fuse import ops
from kdsl_fuse.kernels.gemm_sm80 import gemm_sm80
from kdsl_fuse.reference import evaluate

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
# Each operator is written with the last value v, an earlier one u, and an operand e from outside
# in −1 … 1, and changes its result by at most STEEPEST times a change of v or u.
STEEPEST = 1.13  # GELU's largest slope; SiLU's is 1.1, all others' at most 1
OPERATORS: dict[str, Callable[..., Any]] = {
    "bias": lambda v, u, e, narrow: v + e,
    "bias on the left": lambda v, u, e, narrow: e + v,
    "minus": lambda v, u, e, narrow: e - v,
    "scale": lambda v, u, e, narrow: v * e,
    "number": lambda v, u, e, narrow: v * -0.75 + 0.5,
    "gelu": lambda v, u, e, narrow: kf.gelu(v),
    "gelu tanh": lambda v, u, e, narrow: kf.gelu(v, approximate="tanh"),
    "relu": lambda v, u, e, narrow: kf.relu(v),
    "silu": lambda v, u, e, narrow: kf.silu(v),
    "tanh": lambda v, u, e, narrow: kf.tanh(v),
    "sigmoid": lambda v, u, e, narrow: kf.sigmoid(v),
    "narrow": lambda v, u, e, narrow: kf.cast(v, narrow),
    "widen": lambda v, u, e, narrow: kf.cast(v, "f32"),
    "earlier value": lambda v, u, e, narrow: (v + u) * 0.5,
    "maximum": lambda v, u, e, narrow: kf.maximum(v, u),
    "select": lambda v, u, e, narrow: kf.where(e > 0, v, u),
}
SIZES = st.integers(1, 40)
OUTSIDE = st.sampled_from(["row", "column", "scalar", "matrix", "transposed matrix"])


def outside(kind: str, m: int, n: int) -> tuple[int, ...]:
    """The shape of an operand from outside."""
    shapes = {"row": (n,), "column": (m, 1), "scalar": (), "transposed matrix": (n, m)}
    return shapes.get(kind, (m, n))


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, order: str) -> Any:
    """Uniform numbers in −1 … 1 in C or F order."""
    return np.asarray(rng.uniform(-1, 1, shape).astype(dtype), order=order)


def rounding_bound(graph: kf.Graph, inputs: list[Any], k: int) -> float:
    """How far a plan may be from the f64 reference: every rounding moves a value by at most half
    an epsilon of itself, and each operator after it magnifies that by at most STEEPEST."""
    nodes = list(graph)
    every_value = copy.copy(graph)
    every_value.outputs = [node for node in nodes if node.dtype.is_float]
    values = evaluate(every_value, inputs)
    largest = max(float(np.max(np.abs(value.astype(np.float64)))) for value in values)
    rounded = [node.dtype for node in nodes if node.op.name == "Cast"] + [graph.outputs[0].dtype]
    roundings = sum(float(ml_dtypes.finfo(dtype.numpy).eps) / 2 for dtype in rounded)
    in_f32 = (k + 16 * len(nodes)) * 2.0**-24
    return float(STEEPEST ** len(nodes) * (largest + 1) * (roundings + in_f32))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(OPERATORS)), st.integers(0, 9), st.integers(0, 9)),
        min_size=1,
        max_size=6,
    ),
    kinds=st.lists(OUTSIDE, min_size=1, max_size=3),
    sizes=st.tuples(SIZES, SIZES, SIZES),
    dtypes=st.sampled_from([(F32, "bf16"), (F32, "f16"), (BF16, "bf16"), (F16, "f16")]),
    orders=st.tuples(st.sampled_from("CF"), st.sampled_from("CF"), st.booleans()),
    target=st.sampled_from(["sm_80", "sm_90a"]),
    seed=st.integers(0, 99),
)
def test_random_tails_equal_the_reference(
    steps: Any, kinds: Any, sizes: Any, dtypes: Any, orders: Any, target: str, seed: int
) -> None:
    """Any tail on any sizes, types and major orders is one kernel within the rounding bound."""
    rng = np.random.default_rng(seed)
    (m, n, k), (dtype, narrow), (order_x, order_w, turned) = sizes, dtypes, orders
    x = draw(rng, (m, k), dtype, order_x)
    w = draw(rng, (n, k) if turned else (k, n), dtype, order_w)
    operands = [draw(rng, outside(kind, m, n), dtype, "C") for kind in kinds]

    @kf.fuse(target=target)
    def layer(x: Any, w: Any, operands: Any) -> Any:
        pairs = zip(operands, kinds, strict=True)
        given = [e.T if kind == "transposed matrix" else e for e, kind in pairs]
        values = [x @ (w.T if turned else w)]
        for name, earlier, which in steps:
            u, e = values[earlier % len(values)], given[which % len(given)]
            values.append(OPERATORS[name](values[-1], u, e, narrow))
        return values[-1]

    result = layer(x, w, operands)
    plan = layer.plan(x, w, operands)
    inputs = [x, w, *operands]
    assert len(plan.steps) == len(plan.calls) == 1
    (expected,) = evaluate(plan.graph, inputs)
    assert (result.dtype, result.shape) == (expected.dtype, (m, n))
    np.testing.assert_allclose(
        result.astype(np.float64),
        expected.astype(np.float64),
        rtol=0,
        atol=rounding_bound(plan.graph, inputs, k),
    )


def dense(m: int = 17, n: int = 24, k: int = 40, dtype: Any = BF16) -> list[Any]:
    """x, w, a bias and a residual."""
    rng = np.random.default_rng(m + n + k)
    return [draw(rng, shape, dtype, "C") for shape in ((m, k), (k, n), (n,), (m, n))]


@kf.fuse
def residual_layer(x: Any, w: Any, b: Any, r: Any) -> Any:
    """Bias, GELU and a residual."""
    return kf.gelu(x @ w + b) + r


def test_a_call_can_be_run_simulated_and_shown() -> None:
    """run, simulate, specs, module and ptx of a call all are of the same kernel."""
    args = dense()
    plan = residual_layer.plan(*args)
    (call,) = plan.calls
    values = plan.values(*args)
    once = call.run(values)
    again = call.simulate(values, on_hazard="collect", order="shuffle", seed=3)
    assert again.hazards == ()
    c = again.outputs[2]
    assert once.tobytes() == c.tobytes() == residual_layer(*args).tobytes()
    facts = [(spec.dtype.name, spec.shape, spec.strides) for spec in call.specs()]
    assert facts == [
        ("bf16", (17, 40), (40, 1)),
        ("bf16", (24, 40), (1, 24)),
        ("bf16", (17, 24), (24, 1)),
        ("bf16", (17, 24), (0, 1)),
        ("bf16", (17, 24), (24, 1)),
    ]
    for target in ("sm_80", "sm_90a"):
        module = call.module(target)
        assert call.ptx(target) == module.text
        assert f".target {target}" in module.text
        assert module.threads == call.block[0]
        assert module.shared_bytes >= call.config.shared_bytes(2)


def test_equal_tails_share_one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tail written twice is traced once, another one again."""
    from kdsl_core.lang import compilation

    traces: list[Any] = []

    def counted(*args: Any, **options: Any) -> Any:
        traces.append(args)
        return original(*args, **options)

    original = compilation.trace
    gemm_sm80.clear()
    monkeypatch.setattr(compilation, "trace", counted)
    first = kf.fuse(lambda x, w, b, r: kf.silu(x @ w + b) * r)
    second = kf.fuse(lambda a, v, c, s: kf.silu(a @ v + c) * s)
    other = kf.fuse(lambda x, w, b, r: kf.silu(x @ w + b) * r * 2)
    results = [layer(*dense()) for layer in (first, second, first)]
    assert len(traces) == 1
    assert len({result.tobytes() for result in results}) == 1
    other(*dense())
    assert len(traces) == 2


def test_fallback_runs_the_rest_in_numpy() -> None:
    """What the kernel leaves runs in NumPy on its result, when asked for."""
    x, w, *_ = dense(dtype=F32)
    rows = np.asarray([1, 0], np.int32)

    @kf.fuse(fallback="numpy")
    def layer(x: Any, w: Any) -> Any:
        y = kf.relu(x @ w)
        return y, kf.take(y, rows)

    y, t = layer(x, w)
    assert [type(step).__name__ for step in layer.plan(x, w).steps] == ["KernelCall", "NumpyStep"]
    np.testing.assert_allclose(y, np.maximum(x @ w, 0), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(t, y[[1, 0]])


def test_layers_feed_each_other() -> None:
    """Two kernels and a transposed view between them."""
    x, w, *_ = dense(dtype=F32)
    layer = kf.fuse(lambda x, w: kf.tanh(x @ w).T @ x)
    assert len(layer.plan(x, w).calls) == 2
    np.testing.assert_allclose(layer(x, w), np.tanh(x @ w).T @ x, rtol=1e-4, atol=1e-5)


def test_tf32_is_asked_for_and_shown() -> None:
    """f32_precision="tf32" takes the tensor cores, whose operands have 10 mantissa bits."""
    x, w, *_ = dense(dtype=F32)
    exact, fast = kf.fuse(lambda x, w: x @ w), kf.fuse(f32_precision="tf32")(lambda x, w: x @ w)
    assert "TF32" in fast.plan(x, w).calls[0].config.atom
    assert "TF32" not in exact.plan(x, w).calls[0].config.atom
    assert "products of f32 in tf32" in fast.plan(x, w).explain()
    bound = np.abs(x) @ np.abs(w) * 2.0**-10
    error = np.abs(fast(x, w) - x.astype(np.float64) @ w)
    assert np.all(error <= bound)
    assert np.any(error > bound * 2.0**-8)


def test_target_bounds_the_tile() -> None:
    """A target with less shared memory gets a smaller tile, and each plan fits its own."""
    specs = [kd.spec("bf16", (8192, 8192)) for _ in range(2)]
    tiles = {}
    for target in ("sm_80", "sm_89", "sm_90a"):
        layer = kf.fuse(target=target)(lambda x, w: x @ w)
        (call,) = layer.plan(*specs).calls
        assert call.module(target).shared_bytes <= kd.target_of(target).shared_bytes
        assert f"target {target}" in layer.plan(*specs).explain()
        tiles[target] = call.config.tile
    assert tiles["sm_89"] < tiles["sm_80"]


def test_error_in_a_tail_is_at_the_authors_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong while a tail is traced is shown where its operator was written."""
    broken = ops.OpDef("Relu", ops.op_named("Relu").infer, np.abs, lambda kd, x: x & 1)
    monkeypatch.setitem(ops._BY_NAME, "Relu", broken)

    def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
        biased = x @ w + b
        return kf.relu(biased) + r

    with pytest.raises(KdslError) as caught:
        kf.fuse(layer)(*dense())
    error = caught.value
    assert isinstance(error, TypeMismatch)
    assert error.loc is not None
    assert (error.loc.file, error.loc.line) == (__file__, layer.__code__.co_firstlineno + 2)
    assert "called from epilogue.py" in str(error)
    assert "tail.py" not in str(error)


@pytest.mark.parametrize("name", ["i8", "i16", "i32", "u8", "u16", "u32", "boolean"])
def test_integers_and_truth_values_are_loaded(name: str) -> None:
    """An array of integers is cast, and compared, in the tail; one of truth values selects."""
    x, w, *_ = dense(dtype=F32)
    kind = dtype_of(name).numpy
    given = np.random.default_rng(2).integers(0, 2, (17, 24)).astype(kind)

    @kf.fuse
    def layer(x: Any, w: Any, given: Any) -> Any:
        chosen = given if name == "boolean" else given > 0
        return kf.where(chosen, x @ w, 0.5) + kf.cast(given, "f32")

    assert len(layer.plan(x, w, given).calls) == 1
    (expected,) = evaluate(layer.graph(x, w, given), [x, w, given])
    np.testing.assert_allclose(layer(x, w, given), expected, rtol=1e-5, atol=1e-5)


# Each pointwise operator on the product v, whose elements lie in −3 … 3, and a matrix e.
EACH: dict[str, Callable[..., Any]] = {
    "Add": lambda v, e: v + e,
    "Sub": lambda v, e: v - e,
    "Mul": lambda v, e: v * e,
    "Div": lambda v, e: v / (e + 2),
    "Neg": lambda v, e: -v,
    "Abs": lambda v, e: abs(v),
    "Max": lambda v, e: kf.maximum(v, e),
    "Min": lambda v, e: kf.minimum(v, e),
    "Clip": lambda v, e: kf.clip(v, -0.5, 0.25),
    "Pow": lambda v, e: v**3 + (e + 2) ** -2,
    "Sqrt": lambda v, e: kf.sqrt(e + 1) + v,
    "Rsqrt": lambda v, e: kf.rsqrt(abs(v) + 0.5),
    "Exp": lambda v, e: kf.exp(v),
    "Log": lambda v, e: kf.log(abs(v) + 0.5),
    "Equal": lambda v, e: kf.where(kf.cast(e * 2, "f32") == 2 * e, v, 0.0),
    "Less": lambda v, e: kf.where(v < e, v, e),
    "LessOrEqual": lambda v, e: kf.where(v <= e, v, e),
    "Greater": lambda v, e: kf.where(v > e, v, e),
    "GreaterOrEqual": lambda v, e: kf.where(v >= e, v, e),
    "And": lambda v, e: kf.where((v > 0) & (e > 0), v, e),
    "Or": lambda v, e: kf.where((v > 0) | (e > 0), v, e),
    "Not": lambda v, e: kf.where(~(v > 0), v, e),
    "Where": lambda v, e: kf.where(e > 0, 1.5, v),
    "Cast": lambda v, e: kf.where(kf.cast(e, "boolean"), v, 0) + kf.cast(v > e, "f32"),
    "Relu": lambda v, e: kf.relu(v),
    "Gelu": lambda v, e: kf.gelu(v) + kf.gelu(e, approximate="tanh"),
    "Sigmoid": lambda v, e: kf.sigmoid(v),
    "Silu": lambda v, e: kf.silu(v),
    "Tanh": lambda v, e: kf.tanh(v),
    "Erf": lambda v, e: kf.erf(v),
    "Reciprocal": lambda v, e: kf.reciprocal(e + 2) * v,
    "Sign": lambda v, e: kf.sign(v) + kf.sign(e * 0),
    "Floor": lambda v, e: kf.floor(e * 8) + v,
    "Ceil": lambda v, e: kf.ceil(e * 8) + v,
    "Sin": lambda v, e: kf.sin(v),
    "Cos": lambda v, e: kf.cos(v),
    "IsNaN": lambda v, e: kf.where(kf.isnan(kf.log(e)), v, e),
    "Xor": lambda v, e: kf.where((v > 0) ^ (e > 0), v, e),
    "LeakyRelu": lambda v, e: kf.leaky_relu(v, 0.2),
    "Elu": lambda v, e: kf.elu(v, 1.5),
    "Softplus": lambda v, e: kf.softplus(v),
    "HardSigmoid": lambda v, e: kf.hard_sigmoid(v),
    "HardSwish": lambda v, e: kf.hard_swish(v),
    "Mish": lambda v, e: kf.mish(v),
}


def test_each_pointwise_operator_is_listed() -> None:
    """A new operator needs its line above."""
    assert set(EACH) == {op.name for op in ops.ALL_OPS if op.is_pointwise}


@pytest.mark.parametrize("name", EACH)
def test_each_pointwise_operator_in_a_kernel(name: str) -> None:
    """Each operator is traced into the kernel and has its reference's values."""
    x, w, _, r = dense(m=8, n=16, k=8, dtype=F32)
    layer = kf.fuse(lambda x, w, e: EACH[name](x @ w, e))
    assert len(layer.plan(x, w, r).steps) == 1
    (expected,) = evaluate(layer.graph(x, w, r), [x, w, r])
    np.testing.assert_allclose(layer(x, w, r), expected, rtol=4e-6, atol=4e-6)


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, 1e30, -1e30, 88.0, -88.0, 104.0, -104.0, 1e-40, -9.3]


@pytest.mark.parametrize(
    "name",
    ["Relu", "Max", "Min", "Clip", "Gelu", "Sigmoid", "Silu", "Tanh", "Erf", "Exp", "LessOrEqual"],
)
def test_special_values_are_those_of_numpy(name: str) -> None:
    """NaN, infinities, overflow and subnormal numbers come out as in NumPy's f32."""
    x, w = np.asarray(SPECIAL, F32)[:, None], np.ones((1, 4), F32)
    other = np.tile(np.asarray([0.5, np.nan, -np.inf, 0.0], F32), (len(SPECIAL), 1))
    layer = kf.fuse(lambda x, w, e: EACH[name](x @ w, e))
    (expected,) = evaluate(layer.graph(x, w, other), [x, w, other], F32)
    np.testing.assert_allclose(layer(x, w, other), expected, rtol=4e-6, atol=1e-6)
