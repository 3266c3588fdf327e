"""The ported kernels print the layouts that CuTe C++ prints."""

from __future__ import annotations

import ast
import re
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import kdsl_core as kd
from house.census import ROOT
from porting import NAMES, Case, tiled_copy

CUTE = Path(__file__).parents[1] / "golden" / "porting" / "cute_layouts.txt"
KERNELS = [*product(("tiled_copy", *NAMES), ("TN", "NT"))]
OTHER = {  # fragments of swizzled tiles, parts of them in which C++ applies the swizzle early
    ("tiled_copy", "TN"): {"order of registers": 1},
    ("hgemm_sm80", "TN"): {"function": 4},
    ("hgemm_sm80", "NT"): {"function": 3, "order of registers": 2},
}
REGISTERS = re.compile(r"t[A-Z]r[A-Z]")
SWIZZLE = "Sw<3,3,3> o "


def cutes(kernel: str, majors: str) -> dict[str, str]:
    """C++'s layouts by name."""
    own = kernel.removesuffix("_tma")  # which has the tensors of the kernel that it changes
    rows = (line.split(" ", 3) for line in CUTE.read_text().splitlines())
    found = {name: text for of, how, name, text in rows if (of, how) == (own, majors)}
    return {name: text.replace(" o _0 o ", " o ") for name, text in found.items()}


def kdsls(kernel: str, majors: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The layouts that a kernel prints while it is traced, run-time numbers as "?"."""
    if kernel == "tiled_copy":
        source, target = tiled_copy.matrices(132, 67)
        source = source if majors == "NT" else np.ascontiguousarray(source)
        traced, args, block, statics = tiled_copy.tiled_copy, (source, target), 256, {}
    else:
        case = Case(kernel, majors, 256, 256, 192)
        launch = case.launch(*case.arrays)
        traced, args, block, statics = case.kernel, *map(launch.get, ("args", "block", "kwargs"))
    capsys.readouterr()
    traced.ir(*args, **statics, shown=True, block=block)
    lines = re.sub(r"<run-time[^>]*>", "?", capsys.readouterr().out).splitlines()
    return dict(line.split(" ", 1) for line in lines)


def form(text: str) -> str:
    """A layout of C++ as kdsl writes it: no underscores, run-time numbers as "?"."""
    swizzle, sign, layout = text.rpartition(" o ")
    return swizzle + sign + re.sub(r"(?<![\w@])\d+", "?", layout).replace("_", "")


def values(text: str) -> list[int]:
    """What a layout of static numbers gives at each index, its swizzle applied."""
    shape, stride = text.replace("_", "").removeprefix(SWIZZLE).split(":")
    layout = kd.Layout(ast.literal_eval(shape), ast.literal_eval(stride))
    offsets = map(layout, range(kd.size(layout)))
    return [*map(kd.Swizzle(3, 3, 3), offsets)] if text.startswith(SWIZZLE) else [*offsets]


def extents(text: str) -> list[int]:
    """The sizes of a layout's modes."""
    return [kd.size(mode) for mode in ast.literal_eval(text.replace("_", "").split(":")[0])]


def relation(name: str, ours: str, cute: str) -> str:
    """How two layouts stand to each other."""
    # C++ keeps the swizzle of its Hopper layouts in the pointer.
    if form(cute) in (ours, ours.removeprefix(SWIZZLE)):
        return "form"
    if values(ours) == values(cute):
        return "function"
    assert REGISTERS.fullmatch(name), (name, ours, cute)
    assert extents(ours) == extents(cute) and sorted(values(ours)) == sorted(values(cute))
    return "order of registers"


@pytest.mark.parametrize(("kernel", "majors"), KERNELS)
def test_layouts_are_cutes(kernel: str, majors: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Shapes and strides on the way have CuTe's form, or give the same places.

    Where C++ orders registers by the strides of what they are to hold, kdsl has the same sizes.
    """
    ours, cute = kdsls(kernel, majors, capsys), cutes(kernel, majors)
    assert ours.keys() <= cute.keys()
    kinds = Counter(relation(name, ours[name], cute[name]) for name in ours)
    other = {k: count for k, count in kinds.items() if k != "form"}
    assert other == OTHER.get((kernel, majors), {})


def test_concepts_have_every_word_of_cute() -> None:
    """Each public function of CuTe's headers stands in the tables, between backticks."""
    page = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    named = {word for text in re.findall(r"`([^`]+)`", page) for word in re.findall(r"\w+", text)}
    words = CUTE.with_name("cute_words.txt").read_text().split()
    assert len(words) > 150
    assert [word for word in words if word not in named] == []


def test_rows_of_concepts_have_a_kind() -> None:
    """Every row says same, renamed, different, not needed or not there."""
    page = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    rows = [row.split(" | ") for row in page.splitlines() if re.match(r"\| `", row)]
    kinds = Counter(row[1] for row in rows if len(row) == 4)
    assert kinds.keys() == {"same", "renamed", "different", "not needed", "not there"}
