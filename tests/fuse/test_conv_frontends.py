"""Convolutions that come in through ONNX and torch: numbers, kernels, and forms that stay out."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kdsl_fuse as kf
from kdsl_core.errors import FusionError

for package in ("onnx", "torch"):
    if importlib.util.find_spec(package) is None:
        extra = f"{package} is missing: pip install 'kdsl-fuse[{package}]'"
        pytest.skip(extra, allow_module_level=True)
onnx, reference = (importlib.import_module(name) for name in ("onnx", "onnx.reference"))
torch = importlib.import_module("torch")
F, nn = torch.nn.functional, torch.nn
RNG = np.random.default_rng(8)


def draw(*shape: int) -> Any:
    """Normal numbers in f32."""
    return RNG.standard_normal(shape).astype(np.float32)


HELD = {
    "w": draw(6, 4, 3, 3), "g": draw(8, 1, 3, 3), "t": draw(4, 3, 2, 2), "b": draw(6), "c": draw(4),
    "v": np.abs(draw(4)) + 1, "p": draw(4, 4, 1, 1), "k": draw(1, 4, 1, 1),
    "zoom": np.array([1, 1, 2, 3], np.float32), "half": np.array([1, 1, 2, 1.5], np.float32),
    "low": np.float32(0), "high": np.float32(6), "none": np.array([], np.float32),
    "sizes": np.array([1, 4, 12, 14]),
}  # fmt: skip


def model(body: str, opset: int = 17) -> Any:
    """A model of x: [2, 4, 6, 7] with `HELD` as initialisers."""
    text = f"""<ir_version: 9, opset_import: ["" : {opset}]>
        net (float[N, 4, H, W] x) => (float[] y) {{ {body} }}"""
    made = onnx.parser.parse_model(text)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    arrays = (onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in HELD.items())
    made.graph.initializer.extend(arrays)
    return made


FORMS = {
    "y = Conv<pads=[1,0,2,1], strides=[2,1]>(x, w, b)": ["conv_direct"],
    'y = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)': ["conv_direct"],
    'y = Conv<auto_pad="SAME_LOWER", strides=[2,2]>(x, w)': ["conv_direct"],
    'y = Conv<auto_pad="VALID", dilations=[2,1]>(x, w)': ["conv_sm80"],
    "y = Conv<group=4>(x, g)": ["conv_depthwise"],
    "h = Conv(x, p) n = BatchNormalization(h, c, c, c, v) r = Relu(n) y = Add(r, x)": ["gemm_sm80"],
    "h = Conv<pads=[1,1,1,1]>(x, w) y = Clip(h, low, high)": ["conv_sm80"],
    "h = Conv<group=4>(x, g) s = Sigmoid(h) y = Mul(s, h)": ["conv_depthwise"],
    "h = Conv<group=4>(x, g) y = HardSwish(h)": ["conv_depthwise"],
    "h = Add(x, k) y = Conv(h, p)": ["elementwise", "gemm_sm80"],
    "y = ConvTranspose<strides=[2,2]>(x, t)": ["conv_direct"],
    "y = ConvTranspose<strides=[2,3], output_padding=[1,0], pads=[1,0,0,1]>(x, t)": ["conv_direct"],
    "y = MaxPool<kernel_shape=[3,2], strides=[2,2], pads=[1,0,1,1]>(x)": ["windows"],
    "y = MaxPool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(x)": ["windows"],
    "y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x)": ["windows"],
    "y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(x)": ["windows"],
    'y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", '
    'nearest_mode="floor">(x, , zoom)': ["windows"],
    'y = Resize<mode="nearest">(x, none, none, sizes)': ["windows"],
    "h = Conv(x, p) a = GlobalAveragePool(h) s = HardSigmoid(a) y = Mul(h, s)": [
        "gemm_sm80", "columns", "elementwise", "elementwise",
    ],
    "h = Conv(x, p) a = GlobalMaxPool(h) y = Conv(a, p)": ["gemm_sm80", "columns", "gemm_sm80"],
    "h = Conv(x, p) r = Relu(x) e = Conv(r, p) y = Concat<axis=1>(h, e)": [
        "gemm_sm80", "elementwise", "gemm_sm80", "concat",
    ],
}  # fmt: skip


@pytest.mark.parametrize("body", FORMS)
def test_models_of_onnx(body: str) -> None:
    """Each operator means what ONNX says, and these kernels compute it."""
    made, x = model(body), draw(1, 4, 6, 7)
    (expected,) = reference.ReferenceEvaluator(made).run(None, {"x": x})
    function = kf.from_onnx(made)
    np.testing.assert_allclose(function(x), expected, rtol=2e-5, atol=1e-5)
    assert [call.name for call in function.plan(x).calls] == FORMS[body]


def test_one_dimension() -> None:
    """Conv of sequences, with its bias and a residual, is one kernel, that reads any strides."""
    body = "h = Conv<pads=[1,1]>(x, w, b) y = Add(h, x)"
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
        net (float[N, 4, L] x) => (float[N, 4, L] y) {{ {body} }}"""
    made, x = onnx.parser.parse_model(text), draw(2, 4, 9)
    held = {"w": draw(4, 4, 3), "b": draw(4)}
    made.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in held.items())
    (expected,) = reference.ReferenceEvaluator(made).run(None, {"x": x})
    function = kf.from_onnx(made)
    np.testing.assert_allclose(function(x), expected, rtol=1e-5, atol=1e-5)
    assert [call.name for call in function.plan(x).calls] == ["conv_direct"]


@pytest.mark.parametrize(
    "body",
    [
        'y = Resize<mode="linear">(x, , zoom)',
        'y = Resize<coordinate_transformation_mode="align_corners">(x, , zoom)',
        'y = Resize<mode="nearest">(x, , half)',
        "y = AveragePool<kernel_shape=[2,2], ceil_mode=1>(x)",
        'y = ConvTranspose<auto_pad="SAME_UPPER", strides=[2,2]>(x, t)',
        "y = ConvTranspose<output_shape=[12, 14], strides=[2,2]>(x, t)",
    ],
)
def test_other_forms_are_refused(body: str) -> None:
    """A form that kdsl lacks is K985 at the node."""
    with pytest.raises(FusionError, match="→ y") as caught:
        kf.from_onnx(model(body)).plan(draw(2, 4, 6, 7))
    assert caught.value.code == "K985"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test compiles anew, with known random numbers."""
    torch._dynamo.reset()
    torch.manual_seed(3)
    with torch.no_grad():
        yield


def kernels(function: Any, *args: Any) -> list[str]:
    """Run through kdsl in the simulator and in torch; the kernels of all regions."""
    compiled = torch.compile(function, backend="kdsl", fullgraph=True, options={"simulate": True})
    expected, got = function(*args), compiled(*args)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    graph = kf.compiled_graphs()[-1]
    stayed = [target for name, target, _ in graph.nodes if name in graph.reasons]
    assert not [target for target in stayed if "convolution" in target]
    return [call.name for region in graph.regions for plan in region.plans.values()
            for call in plan.calls]  # fmt: skip


class Block(nn.Module):
    """An inverted residual of MobileNet with its stem and its head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.depthwise = nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False)
        self.pointwise = nn.Conv2d(8, 8, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))
        for norm in self.norms:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Any) -> Any:
        """Three convolutions, each with its norm, and a residual."""
        x = F.relu6(self.norms[0](self.stem(x)))
        y = F.hardswish(self.norms[1](self.depthwise(x)))
        return F.silu(self.norms[2](self.pointwise(y)) + x)


@pytest.mark.parametrize("memory", ["contiguous_format", "channels_last"])
def test_a_block_of_torch_is_a_kernel_each(memory: str) -> None:
    """Norms, activations and residual ride along, in both memory formats."""
    form = getattr(torch, memory)
    block = Block().eval().to(memory_format=form)
    x = torch.randn(2, 3, 9, 11).to(memory_format=form)
    assert kernels(block, x) == ["conv_sm80", "conv_depthwise", "gemm_sm80"]


def test_pools_and_more_of_torch() -> None:
    """What stands between convolutions runs on kdsl, too."""
    first, second = nn.Conv2d(4, 6, 3, padding=1), nn.ConvTranspose2d(6, 4, 2, 2)

    def network(x: Any) -> Any:
        y = F.max_pool2d(F.gelu(first(x)), 3, 2, 1)
        y = F.avg_pool2d(y, 3, 1, 1, count_include_pad=False)
        z = second(y)
        return torch.cat([z, F.adaptive_avg_pool2d(z, 1).expand_as(z)], 1)

    found = kernels(network, torch.randn(1, 4, 8, 10))
    assert found == ["conv_sm80", "windows", "windows", "conv_direct", "columns", "concat"]


def test_a_classifier_of_torch() -> None:
    """Images that are flattened for a linear layer are copied by a kernel of the same region."""
    conv, linear = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 6 * 5, 7)

    def network(x: Any) -> Any:
        return linear(torch.flatten(F.relu(conv(x)), 1))

    assert kernels(network, torch.randn(2, 3, 6, 5)) == ["conv_sm80", "elementwise", "gemm_sm80"]


def test_images_of_a_batch_in_nchw() -> None:
    """Pixels of several images are no rows of one matrix there: no product takes them."""
    made, x = model("y = Conv(x, p)"), draw(2, 4, 6, 7)
    (expected,) = reference.ReferenceEvaluator(made).run(None, {"x": x})
    function = kf.from_onnx(made)
    np.testing.assert_allclose(function(x), expected, rtol=2e-5, atol=1e-5)
    assert [call.name for call in function.plan(x).calls] == ["conv_sm80"]


def test_sequences_of_torch() -> None:
    """conv1d in groups, with stride and dilation."""
    conv = nn.Conv1d(6, 9, 3, stride=2, padding=2, dilation=2, groups=3)
    assert kernels(lambda x: F.relu(conv(x)), torch.randn(2, 6, 15)) == ["conv_direct"]
