"""Plans of grouped convolutions in words, and those that were fastest when sizes were measured.

The package's, `tables/conv_grouped-<device>.json`, are written by benchmarks/make_conv_table.py,
the user's by `kdsl tune conv_grouped`.
"""

from __future__ import annotations

from typing import Any

from kdsl_core.ir.target import target_of
from kdsl_fuse.kernels.conv_grouped_config import PAIRED, GroupedConfig
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_tables import ConvTable

GIVEN = ("kernel", "group", "stride", "padding", "dilation", "staged")
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
    numbers = {_FIELDS[word[0]]: int(word[1:]) for word in rest if word[1:].isdigit()}
    return configured(
        problem, line=line, rows=rows, columns=columns,
        paired=next(word for word in rest if word in PAIRED),
        copies="cp.async" if "cp.async" in rest else "tma",
        weights="shared" if "shared" in rest else "registers",
        **numbers,
    )  # fmt: skip


def configured(problem: ConvProblem, **chosen: Any) -> GroupedConfig:
    """The configuration for a convolution with what was chosen."""
    p = problem
    group = p.channels // p.groups, p.filters // p.groups
    return GroupedConfig(p.kernel, group, p.stride, p.padding, p.dilation, **chosen)


def _overfull(config: GroupedConfig) -> str | None:
    return config.overfull(target_of("sm_90a"))


TABLE = ConvTable("conv_grouped", configured, GIVEN, _overfull)
