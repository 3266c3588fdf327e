"""Networks that read text on a GPU, whole pages of them, against onnxruntime on the host.

They are files of the PyPI package rapidocr-onnxruntime, which only has to lie on the path:
pip install --no-deps --target FOLDER rapidocr-onnxruntime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kdsl_fuse as kf
from fuse import ocr

ocr.require()
pytestmark = pytest.mark.gpu


def on_gpu(torch: Any, function: Any, x: Any) -> Any:
    """The function of an array, computed on the GPU; its plan has a kernel for all operators."""
    there = torch.from_numpy(x).cuda()
    plan = function.plan(there)
    assert ocr.convolutions_apart(plan) == [] and len(plan.calls) == len(plan.steps)
    return function(there).cpu().numpy()


def detects(torch: Any, *sizes: int) -> None:
    """Chances of f32 are onnxruntime's, and boxes are the same in f16."""
    x, path = ocr.page(*sizes), ocr.path(ocr.DETECTION)
    want = ocr.expected(path, x)
    got = on_gpu(torch, kf.from_onnx(path), x)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    assert ocr.boxes(got) == ocr.boxes(want) and len(ocr.boxes(want)) >= len(ocr.LINES)
    half = on_gpu(torch, kf.from_onnx(ocr.halved(ocr.DETECTION)), x.astype(np.float16))
    assert ocr.boxes(half) == ocr.boxes(want)


def test_detection(torch: Any) -> None:
    """A small page."""
    detects(torch, 96, 320, 28)


def test_classification(torch: Any) -> None:
    """Chances of both directions are onnxruntime's; f16 finds the same one."""
    x, path = ocr.page(48, 192), ocr.path(ocr.CLASSIFICATION)
    x = np.concatenate([x, x[:, :, ::-1, ::-1]])  # as it is, and upside down
    want = ocr.expected(path, x)
    got = on_gpu(torch, kf.from_onnx(path), x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    half = on_gpu(torch, kf.from_onnx(ocr.halved(ocr.CLASSIFICATION)), x.astype(np.float16))
    np.testing.assert_allclose(half.astype(np.float32), want, atol=2e-2)
    assert (half.argmax(-1) == want.argmax(-1)).all()


def test_detection_of_a_larger_page(torch: Any) -> None:
    """Tiles of which blocks take several."""
    detects(torch, 320, 640, 48)
