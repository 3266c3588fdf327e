"""Text detection and classification networks of the package rapidocr-onnxruntime, and a page."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

NEEDED = ("onnx", "onnxruntime", "PIL", "rapidocr_onnxruntime")
LINES = ("convolutions", "of images of words")
DETECTION, CLASSIFICATION = "ch_PP-OCRv4_det_infer", "ch_ppocr_mobile_v2.0_cls_infer"


def require() -> None:
    """Skip the module that calls this where a package is missing."""
    for package in NEEDED:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is missing: python3 dev.py extras", allow_module_level=True)


def path(name: str) -> Path:
    """The file of a network; the package itself is not imported, as it wants others."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "models" / f"{name}.onnx"


def page(height: int = 96, width: int = 320, size: int = 28) -> Any:
    """A picture of `LINES` in black on white: f32 [1, 3, height, width] from −1 to 1."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(LINES):
        draw.text((12, 8 + number * (size + 14)), line, "black", ImageFont.load_default(size))
    pixels = np.asarray(image, np.float32) / 255
    return np.ascontiguousarray((pixels * 2 - 1).transpose(2, 0, 1)[None])


def expected(model: Any, x: Any) -> Any:
    """What onnxruntime computes on the host."""
    import onnxruntime

    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2  # it would take one for each core of the host, ours or not
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def halved(name: str) -> Any:
    """A network with all numbers of f32 as f16; norms, whose variances f16 cannot hold, folded."""
    import onnx

    model = onnx.load(path(name))
    f32, f16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
    _fold_norms(model.graph)
    attributes = [a for node in model.graph.node for a in node.attribute]
    tensors = [*model.graph.initializer, *(a.t for a in attributes if a.name == "value")]
    for tensor in tensors:
        if tensor.data_type == f32:
            with np.errstate(over="ignore"):  # in variances that nothing reads any more
                held = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(held, tensor.name))
    for a in attributes:
        a.i = f16 if a.name == "to" and a.i == f32 else a.i
    for info in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if info.type.tensor_type.elem_type == f32:
            info.type.tensor_type.elem_type = f16
    return model


def _fold_norms(graph: Any) -> None:
    """A multiplication and an addition in place of each BatchNormalization."""
    import onnx

    tensors = {x.name: x for x in graph.initializer}
    tensors |= {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant"}
    nodes = []
    for node in graph.node:
        if node.op_type != "BatchNormalization":
            nodes.append(node)
            continue
        scale, bias, mean, variance = (
            onnx.numpy_helper.to_array(tensors[name]).astype(np.float64) for name in node.input[1:]
        )
        epsilon = next(a.f for a in node.attribute if a.name == "epsilon")
        factor = scale / np.sqrt(variance + epsilon)
        name, result = node.input[0], node.output[0]
        for word, held in (("factor", factor), ("shift", bias - mean * factor)):
            array = held.astype(np.float32)[:, None, None]
            graph.initializer.append(onnx.numpy_helper.from_array(array, f"{result}.{word}"))
        scaled, shift = f"{result}.scaled", f"{result}.shift"
        nodes.append(onnx.helper.make_node("Mul", [name, f"{result}.factor"], [scaled]))
        nodes.append(onnx.helper.make_node("Add", [scaled, shift], [result]))
    del graph.node[:]
    graph.node.extend(nodes)


def boxes(chances: Any, least: float = 0.3) -> list[tuple[int, int, int, int]]:
    """Rows and columns from and to of each connected area with a chance above `least`."""
    inside, found = np.array(chances[0, 0]) > least, []
    while inside.any():
        area, todo = [], [tuple(int(i) for i in np.argwhere(inside)[0])]
        while todo:
            row, column = todo.pop()
            within = 0 <= row < inside.shape[0] and 0 <= column < inside.shape[1]
            if within and inside[row, column]:
                inside[row, column] = False
                area.append((row, column))
                todo += [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
        places = np.array(area)
        low, high = places.min(0), places.max(0)
        found.append((int(low[0]), int(low[1]), int(high[0]), int(high[1])))
    return sorted(found)


def convolutions_apart(plan: Any) -> list[str]:
    """Convolutions that no kernel of the plan computes."""
    covered = {node.name for match in plan.cover.matches.values() for node in match.covered}
    return [node.name for node in plan.graph if "Conv" in node.op.name and node.name not in covered]
