"""Convolutions and pools on a GPU, through `kf.conv2d` and torch.compile, against torch in f64."""

from __future__ import annotations

from typing import Any

import pytest

import kdsl_fuse as kf
from kdsl_fuse.frontends.torch.backend import kdsl

pytestmark = pytest.mark.gpu
TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "stem": ((4, 3, 65, 63), (32, 3, 7, 7), {"stride": 2, "padding": 3}),
    "dense": ((2, 64, 28, 28), (96, 64, 3, 3), {"padding": 1}),
    "strided": ((2, 64, 28, 28), (64, 64, 3, 3), {"padding": 1, "stride": 2}),
    "dilated": ((1, 32, 20, 24), (40, 32, 3, 3), {"padding": 2, "dilation": 2}),
    "pointwise": ((2, 64, 14, 14), (128, 64, 1, 1), {}),
    "grouped": ((2, 64, 28, 28), (64, 4, 3, 3), {"padding": 1, "groups": 16}),
    "odd groups": ((2, 30, 15, 15), (20, 6, 3, 3), {"padding": 1, "groups": 5}),
    "depthwise": ((2, 96, 28, 28), (96, 1, 7, 7), {"padding": 3, "groups": 96}),
    "strided depthwise": (
        (2, 40, 29, 28), (40, 1, 5, 5), {"padding": 2, "groups": 40, "stride": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("memory", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("name", CASES)
def test_convolutions(torch: Any, name: str, memory: str, dtype: str) -> None:
    """A bias, an activation and a residual in one kernel, in both memory formats."""
    images, filters, options = CASES[name]
    kind, form = getattr(torch, dtype), getattr(torch, memory)
    depth = filters[1] * filters[2] * filters[3]
    x, w = (torch.randn(s, device="cuda", dtype=kind).to(memory_format=form)
            for s in (images, filters))  # fmt: skip
    w, b = w * depth**-0.5, torch.randn(filters[0], device="cuda", dtype=kind)
    want = torch.nn.functional.conv2d(x.double(), w.double(), b.double(), **options)
    rest = torch.randn_like(want).to(kind).to(memory_format=form)
    fused = kf.fuse(lambda x, w, b, r: kf.relu(kf.conv2d(x, w, b, layout="NCHW", **options)) + r)
    assert len(fused.plan(x, w, b, rest).calls) == 1
    got = fused(x, w, b, rest)
    want = torch.relu(want) + rest.double()
    torch.testing.assert_close(got.double(), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("channels", [96, 192, 768])
def test_a_norm_in_the_same_kernel(torch: Any, channels: int) -> None:
    """The head of a ConvNeXt block: 7×7, a bias, LayerNorm over channels."""
    x = torch.randn(4, 14, 14, channels, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(channels, 7, 7, 1, device="cuda", dtype=torch.bfloat16) / 7
    b, s, t = torch.randn(3, channels, device="cuda", dtype=torch.bfloat16)

    @kf.fuse
    def head(x: Any, w: Any, b: Any, s: Any, t: Any) -> Any:
        return kf.layer_norm(kf.conv2d(x, w, b, padding=3, groups=channels), s, t, epsilon=1e-6)

    assert [call.name for call in head.plan(x, w, b, s, t).calls] == ["conv_depthwise_norm"]
    f = torch.nn.functional
    images, filters = (a.double().permute(0, 3, 1, 2) for a in (x, w))
    sums = f.conv2d(images, filters, b.double(), padding=3, groups=channels).permute(0, 2, 3, 1)
    want = f.layer_norm(sums, (channels,), s.double(), t.double(), 1e-6)
    got = head(x, w, b, s, t).double()
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_windows_and_concat(torch: Any, dtype: str) -> None:
    """Pools, larger images and what joins them."""
    f, kind = torch.nn.functional, getattr(torch, dtype)
    x = torch.randn(2, 24, 30, 41, device="cuda", dtype=kind).to(memory_format=torch.channels_last)

    @kf.fuse
    def pools(x: Any) -> Any:
        top = kf.max_pool2d(x, 3, 2, 1, layout="NCHW")
        mean = kf.avg_pool2d(x, 3, 2, 1, count_padding=False, layout="NCHW")
        return kf.upsample2d(kf.concatenate([top, mean], 1), 2, "NCHW") * 0.5

    want = torch.cat([f.max_pool2d(x.double(), 3, 2, 1),
                      f.avg_pool2d(x.double(), 3, 2, 1, count_include_pad=False)], 1)  # fmt: skip
    want = f.interpolate(want, scale_factor=2) * 0.5
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(pools(x).double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_network_of_torch(torch: Any, dtype: str) -> None:
    """Inverted residuals through torch.compile: a kernel for each convolution."""
    nn = torch.nn
    kind = getattr(torch, dtype)

    class Block(nn.Module):  # type: ignore[misc,name-defined]  # torch is known at run time only
        """Up, depthwise, down, and the residual."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(16, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU6(),
                nn.Conv2d(64, 64, 3, 1, 1, groups=64, bias=False), nn.BatchNorm2d(64), nn.SiLU(),
                nn.Conv2d(64, 16, 1, bias=False), nn.BatchNorm2d(16),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            """One block."""
            return x + self.layers(x)

    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), Block(), Block()).eval().cuda().to(kind)
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 64, 64, device="cuda", dtype=kind)
    x = x.to(memory_format=torch.channels_last)
    compiled = torch.compile(model, backend=kdsl, fullgraph=True)
    with torch.inference_mode():
        got, want = compiled(x), model.double()(x.double())
    tolerance = 10 * TOLERANCE[dtype]
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)
    (region,) = kf.compiled_graphs()[-1].regions
    (plan,) = region.plans.values()
    assert len(plan.calls) == 7
