"""Weights of a warp's filters, as the fragments that matrix instructions take."""

from __future__ import annotations

import math
from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.conv_grouped_config import OCTET, WARP

Tap = tuple[int, int]  # column of the kernel, octet of the channels that the warp reads


class Weights:
    """For each row of the kernel and each step of the products the fragment B.

    A step has one or two taps, eight channels each. Where the eight channels belong to several
    groups, weights between channels and filters of different groups are zero. Weights of large
    kernels stay in shared memory, others in registers.
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
        self.held: dict[tuple[int, int], Any] = {}
        self.shared = None
        if config.weights == "shared":
            # Fragment after fragment: of each, lane after lane what it takes.
            shape = (self._elements(2) * WARP, config.kernel[0] * len(self.steps), config.parts)
            self.shared = kd.smem(w.dtype, kd.Layout(shape), name="weights")

    def load(self, team: Any, barrier: Any) -> None:
        """Read them all from global memory. Threads: those that compute."""
        if self.shared is not None:
            share(self, team)
            barrier.sync()
            return
        for r in range(self.config.kernel[0]):
            for step in range(len(self.steps)):
                self.held[r, step] = self.fragment(r, step)

    def at(self, r: int, step: Any) -> Any:
        """The fragment of a row of the kernel and a step, which the kernel may count."""
        if self.shared is None:
            return self.held[r, step]
        b, kept = self._empty(step), self.kept(r, step)
        kd.copy(kept, b.with_layout(kd.Layout(kept.shape)))
        return b

    def kept(self, r: int, step: Any) -> Any:
        """Where the lane's part of a fragment lies in shared memory: pieces of up to 16 bytes."""
        assert self.shared is not None
        elements = self._elements(self._taps(step))
        piece = math.gcd(elements, OCTET)
        at = self.shared.layout((0, r * len(self.steps) + step, self.part))
        layout = kd.Layout((piece, elements // piece), (1, WARP * piece))
        return self.shared.with_layout(layout, at + kd.lane_idx() * piece)

    def _taps(self, step: Any) -> int:
        return len(self.steps[step]) if isinstance(step, int) else 2

    def _elements(self, taps: int) -> int:
        """Elements of a fragment that a lane takes."""
        return 2 * taps * self.config.octets

    def _empty(self, step: Any) -> Any:
        taps = self._taps(step)
        return self.mma[taps - 1].make_fragment_B((OCTET * self.config.octets, OCTET * taps))

    def fragment(self, r: int, step: int) -> Any:
        """A fragment from global memory."""
        b, taps, columns = self._empty(step), self.steps[step], OCTET * self.config.octets
        lane = kd.lane_idx()
        for half, (s, octet) in enumerate(taps):
            channel = self.chunk * self.config.line + (self.octet + octet) * OCTET + 2 * (lane % 4)
            for j in range(self.config.octets):
                first = self.chunk * self.config.filters + self.part * columns
                place = ((None, half), j, 0) if len(taps) == 2 else (None, j, 0)
                self._load(b[place], first + j * OCTET + lane // 4, r, s, channel)
        return b

    def _load(self, pair: Any, filter_: Any, r: int, s: int, channel: Any) -> None:
        """Two neighbouring channels' weights of a filter."""
        channels, filters = self.config.group
        same = filter_ // filters == channel // channels
        inside = same & (filter_ < self.w.shape[0])
        at = self.w.layout((filter_, r, s, channel % channels))
        kd.copy(self.w.with_layout(kd.Layout(2), at), pair, pred=inside)


@kd.func
def share(weights, team):
    """Bring all fragments to shared memory: one warp for each part of the filters."""
    if team == 0:
        for r in range(weights.config.kernel[0]):
            for step in range(len(weights.steps)):
                b = weights.fragment(r, step)
                kept = weights.kept(r, step)
                kd.copy(b.with_layout(kd.Layout(kept.shape)), kept)
