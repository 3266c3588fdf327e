"""Weights of a warp's filters, as the fragments that matrix instructions take."""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.conv_grouped_config import OCTET

Tap = tuple[int, int]  # column of the kernel, octet of the channels that the warp reads


class Weights:
    """For each row of the kernel and each step of the products the fragment B.

    A step has one or two taps, eight channels each. Where the eight channels belong to several
    groups, weights between channels and filters of different groups are zero.
    """

    def __init__(self, config: Any, w: Any, chunk: Any, part: Any) -> None:
        self.config, self.w, self.chunk, self.part = config, w, chunk, part
        channels, filters = config.group
        taps = [(s, o) for s in range(config.kernel[1]) for o in range(config.octets_read)]
        self.steps: list[list[Tap]] = [taps[i : i + 2] for i in range(0, len(taps), 2)]
        first = part * (OCTET * config.octets) // filters * channels // OCTET
        self.octet = kd.minimum(first, config.line // OCTET - config.octets_read)
        kind = "BF16BF16" if w.dtype is kd.bf16 else "F16F16"
        self.mma = [
            kd.tiled_mma(getattr(kd.atoms, f"SM80_16x8x{depth}_F32{kind}F32_TN"))
            for depth in (8, 16)
        ]
        self.held: list[list[Any]] = []

    def load(self) -> None:
        """Read them all from global memory."""
        rows = range(self.config.kernel[0])
        self.held = [[self._fragment(r, step) for step in self.steps] for r in rows]

    def at(self, r: int, step: int) -> Any:
        """The fragment of a row of the kernel and a step."""
        return self.held[r][step]

    def _fragment(self, r: int, step: list[Tap]) -> Any:
        mma = self.mma[len(step) - 1]
        columns = OCTET * self.config.octets
        b = mma.make_fragment_B((columns, OCTET * len(step)))
        lane = kd.lane_idx()
        for half, (s, octet) in enumerate(step):
            channel = self.chunk * self.config.line + (self.octet + octet) * OCTET + 2 * (lane % 4)
            for j in range(self.config.octets):
                first = self.chunk * self.config.filters + self.part * columns
                place = ((None, half), j, 0) if len(step) == 2 else (None, j, 0)
                self._load(b[place], first + j * OCTET + lane // 4, r, s, channel)
        return b

    def _load(self, pair: Any, filter_: Any, r: int, s: int, channel: Any) -> None:
        """Two neighbouring channels' weights of a filter."""
        channels, filters = self.config.group
        same = filter_ // filters == channel // channels
        inside = same & (filter_ < self.w.shape[0])
        at = self.w.layout((filter_, r, s, channel % channels))
        kd.copy(self.w.with_layout(kd.Layout(2), at), pair, pred=inside)
