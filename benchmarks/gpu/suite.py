"""What `run.py` measures: groups of shapes, the script of each, and how its results are read.

A new kernel needs a `Group` here, once its script writes the JSON of `sides.run`; everything behind
(records, dashboard, gate) knows kernels and programs only by the names in the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from records import Shape

Result = dict[str, Any]

# Programs by how the scripts name their sides; the first prefix that fits counts.
PROGRAMS = (
    ("kdsl", "kdsl"),
    ("cuBLASLt", "cuBLASLt"),
    ("cuBLAS", "cuBLAS"),
    ("torch._", "cuBLAS"),
    ("torch cuDNN", "cuDNN"),
    ("cuDNN", "cuDNN"),
    ("torch flash", "flash attention"),
    ("torch.compile", "torch.compile"),
    ("compile", "torch.compile"),
    ("torch", "torch eager"),
    ("eager", "torch eager"),
    ("Triton", "Triton"),
)


@dataclass(frozen=True)
class Group:
    """Shapes that one call of a script measures; `weight` is their part of the time."""

    name: str
    script: str
    words: tuple[str, ...]
    json: str
    read: Callable[[Result], Shape]
    weight: float = 1.0

    @property
    def exists(self) -> bool:
        """Whether this checkout has the script."""
        return Path(__file__).with_name(self.script).exists()


def program_of(side: str, owner: str = "") -> str | None:
    """The program of a side, None for variants of ours that users do not get unasked."""
    if owner == "kdsl":
        return "kdsl"
    return next((program for prefix, program in PROGRAMS if side.startswith(prefix)), None)


def timed(result: Result) -> dict[str, dict[str, Any]]:
    """Each program's fastest timed side; of ours the one that is chosen unasked, where that is
    said. Units: µs."""
    found: dict[str, dict[str, Any]] = {}
    for name, side in result.get("sides", {}).items():
        program = program_of(name, side.get("owner", ""))
        others = result.get("chosen", name) != name if program == "kdsl" else False
        if program is None or "median" not in side or others:
            continue
        us, spread = 1e6 * side["median"], 1e6 * (side["high"] - side["low"])
        if program not in found or us < found[program]["us"]:
            found[program] = {"us": round(us, 3), "spread_us": round(spread, 3), "variant": name}
            if "error" in side:
                found[program]["error"] = side["error"]
    return found


def _shape(kernel: str, shape: str, result: Result) -> Shape:
    """The record of one shape."""
    facts = {name: result[name] for name in ("flops", "bytes") if name in result}
    problems = {name: str(text)[:200] for name, text in result.get("failures", {}).items()}
    if "error" in result:
        problems["kdsl"] = str(result["error"])[:200]
    return {
        "kernel": kernel, "shape": shape, **facts, "sides": timed(result), "failures": problems,
    }  # fmt: skip


def of_gemm(result: Result) -> Shape:
    """A result of gemm.py; the set is part of the kernel's name."""
    set_name, shape = result["name"].split(" ", 1)
    return _shape(f"gemm {set_name}", shape, result)


def of_rows(result: Result) -> Shape:
    """A result of rows.py."""
    sizes = f"{result['rows']}x{result['columns']} {result.get('dtype', '')}".strip()
    return _shape(f"rows {result['op']}", sizes, result)


def of_sides(kernel: str) -> Callable[[Result], Shape]:
    """Results of a script that ends in `sides.run`."""
    return lambda result: _shape(kernel, result["name"], result)


PER_SHAPE = ("--seconds-per-shape", "0.25")


def _gemm(name: str, sets: str, weight: float) -> Group:
    """Sets of products: of ours what is chosen, of cuBLASLt the fastest of all it offers."""
    words = ("--sets", *sets.split(), *PER_SHAPE, "--keep", "1", "--candidates", "1")
    return Group(name, "gemm.py", words, "gemm.json", of_gemm, weight)


GROUPS = (  # weights are about the seconds that all shapes of a group take
    _gemm("small", "decode fused skinny tails unaligned", 55),
    _gemm("large", "square prefill fp8 int8", 55),
    Group("gated", "mlp.py", ("--candidates", "0", *PER_SHAPE), "mlp.json",
          of_sides("gated mlp"), 35),
    Group("attention", "attention.py", ("--only-chosen", *PER_SHAPE), "attention.json",
          of_sides("attention"), 40),
    Group("conv", "conv.py", ("--most", "1", *PER_SHAPE), "conv.json",
          of_sides("conv dense"), 35),
    Group("conv fused", "conv.py", ("--fused", "--most", "1", *PER_SHAPE), "conv-fused.json",
          of_sides("conv dense fused"), 40),
    Group("conv grouped", "conv_grouped.py", PER_SHAPE, "conv_grouped.json",
          of_sides("conv grouped"), 20),
    Group("conv depthwise", "conv_depthwise.py", PER_SHAPE, "conv_depthwise.json",
          of_sides("conv depthwise"), 40),
    Group("conv separable", "conv_separable.py", PER_SHAPE, "conv_separable.json",
          of_sides("conv separable"), 30),
    Group("rows", "rows.py", (), "rows.json", of_rows, 110),
)  # fmt: skip
"""In the order in which they are measured."""


def shapes_of(group: Group, record: dict[str, Any]) -> Iterator[Shape]:
    """The records in a script's JSON."""
    yield from map(group.read, record.get("results", ()))
