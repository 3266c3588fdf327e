"""`kf.from_onnx`: models as fused functions, equal to ONNX's own reference evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
import kdsl_fuse as kf
from kdsl_core.errors import FusionError

onnx = pytest.importorskip("onnx", reason="onnx is missing: pip install 'kdsl-fuse[onnx]'")
reference = pytest.importorskip("onnx.reference")
RNG = np.random.default_rng(5)


def draw(*shape: int) -> Any:
    """Normal numbers in f32."""
    return RNG.standard_normal(shape).astype(np.float32)


HELD = {
    "w": draw(8, 8), "row": draw(8), "b": draw(8), "positive": np.abs(draw(4)) + 1, "c": draw(4),
    "d": draw(4), "half": np.float32(0.5), "two": np.float32(2), "zero": np.int64(0),
    "axes": np.array([-1]), "first": np.array([0]), "shape": np.array([0, 2, -1]),
    "starts": np.array([1, 0]), "ends": np.array([4, 9]), "steps": np.array([1, 2]),
    "tail": np.array([4, 2]), "parts": np.array([3, 5]),
}  # fmt: skip


def model(body: str, opset: int = 21, result: str = "float[] y") -> Any:
    """A model of x: [N, 8] and z: [4, 8], with `HELD` as initialisers."""
    text = f"""<ir_version: 9, opset_import: ["" : {opset}, "com.acme" : 1]>
        net (float[N, 8] x, float[4, 8] z) => ({result}) {{ {body} }}"""
    made = onnx.parser.parse_model(text)
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    arrays = (onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in HELD.items())
    made.graph.initializer.extend(arrays)
    return made


def check(body: str, opset: int = 21, result: str = "float[] y", **options: Any) -> Any:
    """Run both ways; the fused function."""
    made, x, z = model(body, opset, result), draw(4, 8), draw(4, 8)
    expected = reference.ReferenceEvaluator(made).run(None, {"x": x, "z": z})
    function = kf.from_onnx(made, **options)
    got = function(x, z)
    for a, b in zip(got if isinstance(got, tuple) else (got,), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
        assert a.dtype == b.dtype and a.shape == b.shape
    return function


def test_layers_become_kernels() -> None:
    """Gemm with bias and activation is one kernel, and a second one takes the residual."""
    function = check("h = Gemm<transB=1>(x, w, b) r = Relu(h) p = MatMul(r, w) y = Add(p, z)")
    plan = function.plan(kd.spec("f32", (4, 8)), kd.spec("f32", (4, 8)))
    assert [call.name for call in plan.calls] == ["gemm_sm80", "gemm_sm80"]
    assert "model: Gemm → h" in plan.explain()


def test_open_sizes_come_with_the_arrays() -> None:
    """One function for each batch size; sizes computed from shapes are numbers by then."""
    body = """h = MatMul(x, w) s = Shape(x) n = Gather(s, zero) m = Unsqueeze(n, first)
        t = Concat<axis=0>(m, tail) y = Reshape(h, t)"""
    function = kf.from_onnx(model(body))
    for rows in (3, 5):
        x = draw(rows, 8)
        got = function(x, HELD["w"][:4])
        np.testing.assert_allclose(got.reshape(rows, 8), x @ HELD["w"], rtol=1e-5, atol=1e-6)
        assert got.shape == (rows, 4, 2)
    assert len(function.plans) == 2


FORMS = [
    "y = Max(x, z, row)",
    "y = Sum(x, z, row)",
    "y = Clip(x, , half)",
    "y = Pow(x, two)",
    "a = Abs(x) y = Pow(a, half)",
    "c = Less(x, z) y = Where(c, x, z)",
    "i = Cast<to=10>(x) y = Cast<to=1>(i)",
    'y = Gelu<approximate="tanh">(x)',
    "y = HardSigmoid<alpha=0.3>(x)",
    "y = LeakyRelu(x)",
    "y = Transpose(x)",
    "y = Reshape(x, shape)",
    "y = Flatten<axis=0>(x)",
    "e = Unsqueeze(x, axes) y = Squeeze(e, axes)",
    "y = Slice(x, starts, ends, , steps)",
    "y, q = Split<axis=1>(x, parts)",
    "y = Gather<axis=1>(x, zero)",
    "y = Gather(x, first)",
    "y = Concat<axis=-1>(x, z)",
    "y = ReduceMean<keepdims=0>(x, axes)",
    "y = ReduceMax(x)",
    "y = Softmax(x)",
    "y = LogSoftmax<axis=0>(x)",
    "y = LayerNormalization<epsilon=0.001>(x, row, b)",
    "e = Unsqueeze(z, axes) t = Transpose<perm=[1,0,2]>(e) u = Transpose<perm=[1,0,2]>(t) "
    "v = Squeeze(u, axes) y = Dropout(v)",
    "y = Gemm<alpha=0.5, beta=2.0>(x, w, b)",
    "k = Add(row, b) y = Mul(x, k)",
    "k = Constant<value_float=3.0>() y = Mul(x, k)",
]


@pytest.mark.parametrize("body", FORMS)
def test_forms_of_operators(body: str) -> None:
    """Each operator means what ONNX says, with its defaults and its left-out inputs."""
    check(body, fallback="numpy")


def test_several_results_are_a_tuple() -> None:
    """Results come in the model's order."""
    check("y = Relu(x) q = MatMul(x, w)", result="float[] y, float[] q", fallback="numpy")


def test_files_are_read(tmp_path: Path) -> None:
    """A path works like a model, and errors name the file."""
    path = tmp_path / "net.onnx"
    onnx.save(model("y = MatMul(x, w)"), path)
    x = draw(4, 8)
    np.testing.assert_allclose(kf.from_onnx(path)(x, x), x @ HELD["w"], rtol=1e-5, atol=1e-6)
    with pytest.raises(FusionError, match=r"net\.onnx declares its input x as f32\[\?, 8\]"):
        kf.from_onnx(path)(draw(4, 9), x)


def test_unsupported_operators_are_counted() -> None:
    """All names come in one error, the most frequent first."""
    body = "a = NonZero(x) b1 = NonZero(z) t = com.acme.Turbo(x) y = Relu(x)"
    with pytest.raises(FusionError, match=r"NonZero ×2, com\.acme::Turbo") as caught:
        kf.from_onnx(model(body))
    assert caught.value.code == "K984" and "3 of 4" in str(caught.value)


def test_bad_models() -> None:
    """An old opset is K986, a form that kdsl lacks K985 at the node, a wrong input K988."""
    with pytest.raises(FusionError, match="opset 6") as caught:
        kf.from_onnx(model("y = Relu(x)", opset=6))
    assert caught.value.code == "K986"
    with pytest.raises(FusionError, match="Reshape → y") as caught:
        kf.from_onnx(model("s = Cast<to=7>(z) y = Reshape(x, s)"))(draw(4, 8), draw(4, 8))
    assert caught.value.code == "K985"
    with pytest.raises(FusionError, match=r"got f32\[3, 8\]") as caught:
        kf.from_onnx(model("y = Relu(x)"))(draw(4, 8), draw(3, 8))
    assert caught.value.code == "K988"


def test_older_opsets_are_converted() -> None:
    """Axes that are attributes, and Softmax over all axes behind one, mean what they meant."""
    body = "e = Unsqueeze<axes=[1]>(x) s = Softmax<axis=1>(e) y = Squeeze<axes=[1]>(s)"
    x = draw(4, 8)
    powers = np.exp(x)
    got = kf.from_onnx(model(body, opset=11))(x, x)
    np.testing.assert_allclose(got, powers / powers.sum(-1, keepdims=True), rtol=1e-5)
