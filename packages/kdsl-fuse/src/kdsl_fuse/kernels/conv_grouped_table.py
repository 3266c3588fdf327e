"""Plans of grouped convolutions in words, and those that were fastest when sizes were measured."""

from __future__ import annotations

from functools import cache

from kdsl_fuse.kernels.conv_grouped_config import PAIRED, GroupedConfig
from kdsl_fuse.kernels.conv_problem import ConvProblem

# Images, height, width, channels, filters, groups of 3 x 3 kernels with a padding of 1 ↦ the plan.
# NVIDIA H200, bf16, 2026-11-30: `python3 benchmarks/gpu/conv_grouped.py --space 8`.
MEASURED = {
    (256, 56, 56, 128, 128, 32): "4x64x32 n14 s9 o1 w8 columns t2 b3 x1",
    (256, 28, 28, 256, 256, 32): "6x32x64 n5 s5 o1 w16 columns t1 b3 x1",
    (256, 14, 14, 512, 512, 32): "14x16x32 n1 s7 o1 w12 rows t1 b4 x1",
    (256, 7, 7, 1024, 1024, 32): "7x8x64 n1 s5 o2 w4 images t1 b2 x1",
    (64, 56, 56, 256, 256, 32): "2x56x32 n14 s12 o1 w16 rows t2 b5 x1",
    (64, 56, 56, 64, 64, 2): "12x56x32 n1 s2 o1 w4 rows t1 b2 x1",
}
_FIELDS = {
    "n": "steps", "s": "stages", "o": "octets", "w": "warps", "t": "together", "b": "buffers",
    "x": "blocks_per_sm",
}  # fmt: skip


def words_of(config: GroupedConfig) -> str:
    """A configuration in words: rows x columns x channels of a step, and what else was chosen."""
    c = config
    words = [f"{c.rows}x{c.columns}x{c.line}", f"n{c.steps}", f"s{c.stages}", f"o{c.octets}"]
    words += [f"w{c.warps}", c.paired, f"t{c.together}", f"b{c.buffers}", f"x{c.blocks_per_sm}"]
    words += [c.weights] * (c.weights != "registers") + ["staged"] * (c.staged is not None)
    return " ".join(words + ["cp.async"] * (c.copies != "tma"))


def parse(words: str, problem: ConvProblem) -> GroupedConfig:
    """The configuration for a problem that such words mean, without what is staged."""
    tile, *rest = words.split()
    rows, columns, line = map(int, tile.split("x"))
    paired = next(word for word in rest if word in PAIRED)
    numbers = {_FIELDS[word[0]]: int(word[1:]) for word in rest if word[1:].isdigit()}
    p = problem
    return GroupedConfig(
        p.kernel, (p.channels // p.groups, p.filters // p.groups), p.stride, p.padding, p.dilation,
        line=line, rows=rows, columns=columns, paired=paired,
        copies="cp.async" if "cp.async" in rest else "tma",
        weights="shared" if "shared" in rest else "registers",
        **numbers,
    )  # fmt: skip


@cache
def find(problem: ConvProblem) -> GroupedConfig | None:
    """The configuration that was fastest for these sizes, if they were measured."""
    p = problem
    window = p.kernel, p.stride, p.padding, p.dilation
    words = MEASURED.get((p.batch, p.height, p.width, p.channels, p.filters, p.groups))
    if words is None or window != ((3, 3), (1, 1), (1, 1), (1, 1)):
        return None
    return parse(words, problem)
