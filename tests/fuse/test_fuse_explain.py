"""What a plan says about itself."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np

import kdsl_fuse as kf
from fuse.numpy_kernel import NumpyGemm
from kdsl_fuse.reasons import CODES

F32 = np.float32


def _rows(text: str) -> dict[str, list[str]]:
    lines = text.splitlines()
    assert set(lines[1]) == {"-"}
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
    return {row[0]: row[1:] for row in cells if row}


def test_explain_names_kernel_code_and_savings(gemm: NumpyGemm) -> None:
    """Each operator has its kernel or its code, the bytes and launches saved, and a sentence."""

    @kf.fuse(gemm=gemm, fallback="numpy")
    def layer(x: Any, w: Any, b: Any) -> Any:
        y = kf.relu(x @ w + kf.exp(b))
        return y, kf.tanh(y).T

    args = [np.ones(shape, F32) for shape in ((4, 3), (3, 5), (5,))]
    text = layer.plan(*args).explain()
    rows = _rows(text)
    line = layer.function.__code__.co_firstlineno + 2
    here = f"test_fuse_explain.py:{line}"
    last = f"test_fuse_explain.py:{line + 1}"
    kernel = "call 0: gemm_sm80"
    assert rows["matmul0"] == [
        "MatMul", here, kernel, "160", "1", "gemm_epilogue: f32 [4, 3] @ [3, 5]",
    ]  # fmt: skip
    assert rows["add0"] == ["Add", here, kernel, "160", "1", "in the epilogue of matmul0"]
    assert rows["exp0"][2:] == ["call 0", "40", "1", "recomputed for each element in call 0"]
    assert rows["relu0"][2:] == [kernel, "in the epilogue of matmul0, stored as f32"]
    assert rows["tanh0"][2:] == [
        "call 1: elementwise",
        "elementwise: f32 [4, 5]; apart by KF-ESCAPES: "
        f"relu0 ({here}) is also returned, and the kernel stores one value",
    ]
    assert rows["transpose0"][1:] == [last, "layout", "read through its strides"]
    assert text.splitlines()[-2] == "planned for target sm_80, products of f32 in ieee"
    assert text.splitlines()[-1] == (
        "kernels: 2, NumPy steps: 0; saved: 360 bytes of memory traffic, 3 launches"
    )


def test_every_code_in_the_sources_is_documented() -> None:
    """Reasons use the codes of the table, and the table has no others."""
    import re
    from pathlib import Path

    folder = Path(str(kf.__file__)).parent
    used = {
        code
        for path in folder.rglob("*.py")
        if path.name != "reasons.py"
        for code in re.findall(r'"(KF-[A-Z]+)"', path.read_text())
    }
    assert used == set(CODES)


def test_plan_prints_its_steps(gemm: NumpyGemm) -> None:
    """str(plan) lists launches and NumPy steps in order."""
    rows = np.arange(8, dtype=np.int32) % 4
    layer = kf.fuse(gemm=gemm, fallback="numpy")(lambda x, w: kf.take(x, rows) @ w)
    lines = str(layer.plan(np.ones((4, 3), F32), np.ones((3, 5), F32))).splitlines()
    assert lines[0] == "gather0: f32[8, 3] = numpy Gather axis=0 (KF-PATTERN)"
    assert lines[1].startswith("matmul0: f32[8, 5] = gemm_sm80[grid (1, 1), block (128,)](gather0")


def test_import_is_lazy() -> None:
    """`import kdsl_fuse` loads neither networkx nor anything of CUDA."""
    code = (
        "import sys, kdsl_fuse; kdsl_fuse.fuse; bad = {'networkx', 'cuda', 'torch'} & "
        "set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pictures_have_a_box_for_each_value() -> None:
    """plan.draw() is well-formed SVG: a colour for each kernel, a dashed edge where there is none,
    and what `explain` says of each operator."""
    from xml.etree import ElementTree

    def layer(x: Any, w: Any) -> Any:
        return kf.relu(x @ w + 1) @ w, kf.take(x, np.zeros(2, np.int32))

    args = [np.ones((4, 4), F32)] * 2
    plan = kf.fuse(fallback="numpy")(layer).plan(*args)
    root = ElementTree.fromstring(plan.draw())
    space = "{http://www.w3.org/2000/svg}"
    boxes = {group[0].text.split()[0]: group for group in root.iter(f"{space}g")}
    assert set(boxes) == {node.name for node in plan.graph}
    assert len(list(root.iter(f"{space}path"))) == plan.graph.net.number_of_edges()
    fill = {name: group[1].get("fill") for name, group in boxes.items()}
    assert fill["matmul0"] == fill["relu0"] != fill["matmul1"]
    assert boxes["gather0"][1].get("stroke-dasharray")
    assert "KF-PATTERN" in (boxes["gather0"][0].text or "")
    assert "in the epilogue of matmul0" in (boxes["relu0"][0].text or "")
    plain = ElementTree.fromstring(plan.graph.draw())
    assert len(list(plain.iter(f"{space}rect"))) == len(plan.graph)
