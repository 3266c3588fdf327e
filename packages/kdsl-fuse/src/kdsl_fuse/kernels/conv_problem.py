"""Sizes of a 2-D convolution, as every kernel for one takes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConvProblem:
    """A convolution of NHWC images: y[n, p, q, k] = Σ x[n, p·stride + r·dilation − pad, …] · w.

    `channels` are of the input and `filters` of the output; both are split evenly into `groups`.
    Filters are stored as (filters, R, S, channels / groups). `kernel`, `stride`, `padding` and
    `dilation` are pairs along (height, width), `padding` the same before and behind.
    """

    batch: int
    height: int
    width: int
    channels: int
    filters: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def output(self) -> tuple[int, int]:
        """Rows and columns of a result."""
        sizes = zip(
            (self.height, self.width), self.kernel, self.stride, self.padding, self.dilation,
            strict=True,
        )  # fmt: skip
        p, q = ((n + 2 * pad - (taps - 1) * d - 1) // step + 1 for n, taps, step, pad, d in sizes)
        return p, q

    @property
    def depthwise(self) -> bool:
        """Whether each channel is a group of its own."""
        return self.groups == self.channels

    @property
    def flops(self) -> int:
        """Multiplications and additions, those with padding included."""
        rows, columns = self.output
        taps = self.kernel[0] * self.kernel[1] * self.channels // self.groups
        return 2 * self.batch * rows * columns * self.filters * taps

    def moved_bytes(self, element_bytes: int) -> int:
        """Bytes that input, filters and output have, each counted once."""
        rows, columns = self.output
        taps = self.kernel[0] * self.kernel[1] * self.channels // self.groups
        images = self.height * self.width * self.channels + rows * columns * self.filters
        return (self.batch * images + self.filters * taps) * element_bytes
