"""Products of the windows of a strip of pixels with the weights of a warp's filters."""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.conv_grouped_config import OCTET, PAIRED
from kdsl_fuse.kernels.conv_grouped_weights import Weights


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
        self.second = second
        self.places = []
        for step in () if config.looped else weights.steps:
            places = [self._place(*tap) for tap in step]
            place = places[0] if len(step) == 1 else kd.where(second == 0, *places)
            self.places.append(place.assume_divisible(OCTET))

    def _place(self, s: Any, octet: Any) -> Any:
        """Where the lane's row of a matrix of a tap starts, for the first strip and row."""
        c = self.config
        column = s * c.dilation[1]
        pixel = self.row + column // c.stride[1]
        if c.paired == "columns":
            pixel = pixel + self.half * OCTET
        bits = c.swizzle_bits[0]
        key = pixel // (1 << (3 - bits)) % (1 << bits)
        across = (self.weights.octet + octet ^ key) * OCTET
        first = column % c.stride[1]
        plane = (c.planes.index(first) if isinstance(s, int) else first) * (c.plane * c.images)
        apart = c.plane if c.paired == "images" else self.apart * self.pitch
        return pixel * c.line + across + self.half * apart + plane

    def place(self, step: Any) -> Any:
        """The same for both taps of a step that the kernel counts."""
        pairs = self.config.octets_read // 2
        return self._place(step // pairs, step % pairs * 2 + self.second).assume_divisible(OCTET)

    def multiply(self, starts: list[Any], strip: Any) -> list[Any]:
        """The sums of a strip, for each unit (16, filters)."""
        c, mma = self.config, self.weights.mma
        acc = [mma[1].make_fragment_C((16, OCTET * c.octets)).fill(0.0) for _ in range(c.units)]
        moved = strip * (PAIRED[c.paired][1] * c.line)
        if c.looped:
            add_steps(self, starts, moved, acc)
        else:
            for step, place in enumerate(self.places):
                self.add(step, place + moved, starts, acc)
        return acc

    def add(self, step: Any, place: Any, starts: list[Any], acc: list[Any]) -> None:
        """Add the products of a step to the sums of a strip."""
        c, taps = self.config, 2 if self.config.looped else len(self.weights.steps[step])
        mma, found = self.weights.mma[taps - 1], {}
        weights = [self.weights.at(r, step) for r in range(c.kernel[0])]
        for h, users in self._rows().items():
            slabs = h // c.slab, (h + self.apart) // c.slab
            if slabs not in found:
                found[slabs] = place + self._start(starts, *slabs)
            a = mma.make_fragment_A((16, OCTET * taps))
            source = self.raw.with_layout(kd.Layout(OCTET), found[slabs] + h * self.pitch)
            kd.copy(source, a, atom=kd.atoms.ldmatrix(2 * taps))
            for unit, r in users:
                kd.gemm(mma, a, weights[r], acc[unit])

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


@kd.func
def add_steps(window, starts, moved, acc):
    """Add the products of all steps, so many instructions at a time as one step has."""
    for step in kd.range(len(window.weights.steps)):
        window.add(step, window.place(step) + moved, starts, acc)
