"""Products of the windows of a strip of pixels with the weights of a warp's filters."""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.conv_grouped_config import OCTET, PAIRED
from kdsl_fuse.kernels.conv_grouped_weights import Tap, Weights


class Window:
    """Reads 16 pixels by one or two octets of channels at a time, and multiplies.

    What is read at a row of the input serves every row of the kernel that reaches it.
    """

    def __init__(self, config: Any, raw: Any, weights: Weights) -> None:
        self.config, self.raw, self.weights = config, raw, weights
        lane = kd.lane_idx()
        self.row, self.half, second = lane % 8, lane // 8 % 2, lane // 16
        self.pitch = config.width * config.line
        self.apart = config.units * config.stride[0] if config.paired == "rows" else 0
        self.places = []
        for step in weights.steps:
            places = [self._place(tap) for tap in step]
            place = places[0] if len(step) == 1 else kd.where(second == 0, *places)
            self.places.append(place.assume_divisible(OCTET))

    def _place(self, tap: Tap) -> Any:
        """Where the lane's row of a matrix starts, for the first strip and row."""
        c, (s, octet) = self.config, tap
        column = s * c.dilation[1]
        pixel = self.row + column // c.stride[1]
        if c.paired == "columns":
            pixel = pixel + self.half * OCTET
        bits = c.swizzle_bits[0]
        key = pixel // (1 << (3 - bits)) % (1 << bits)
        across = (self.weights.octet + octet ^ key) * OCTET
        plane = c.planes.index(column % c.stride[1]) * c.plane * c.images
        apart = c.plane if c.paired == "images" else self.apart * self.pitch
        return pixel * c.line + across + self.half * apart + plane

    def multiply(self, starts: list[Any], strip: Any) -> list[Any]:
        """The sums of a strip, for each unit (16, filters)."""
        c, mma = self.config, self.weights.mma
        acc = [mma[1].make_fragment_C((16, OCTET * c.octets)).fill(0.0) for _ in range(c.units)]
        moved = strip * (PAIRED[c.paired][1] * c.line)
        for step, taps in enumerate(self.weights.steps):
            found: dict[tuple[int, int], Any] = {}
            weights = [self.weights.at(r, step) for r in range(c.kernel[0])]
            for h, users in self._rows().items():
                slabs = h // c.slab, (h + self.apart) // c.slab
                if slabs not in found:
                    found[slabs] = self.places[step] + self._start(starts, *slabs) + moved
                a = mma[len(taps) - 1].make_fragment_A((16, OCTET * len(taps)))
                at = found[slabs] + h * self.pitch
                source = self.raw.with_layout(kd.Layout(OCTET), at)
                kd.copy(source, a, atom=kd.atoms.ldmatrix(2 * len(taps)))
                for unit, r in users:
                    kd.gemm(mma[len(taps) - 1], a, weights[r], acc[unit])
        return acc

    def _start(self, starts: list[Any], first: int, second: int) -> Any:
        """Where the slab lies that the lane's half reads."""
        if first == second:
            return starts[first]
        return kd.where(self.half == 0, starts[first], starts[second]).assume_divisible(OCTET)

    def _rows(self) -> dict[int, list[tuple[int, int]]]:
        """Row of the window ↦ (unit, row of the kernel) that multiply it."""
        c = self.config
        found: dict[int, list[tuple[int, int]]] = {}
        for unit in range(c.units):
            for r in range(c.kernel[0]):
                h = c.unread + unit * c.stride[0] + r * c.dilation[0]
                found.setdefault(h, []).append((unit, r))
        return dict(sorted(found.items()))
