"""What benchmarks of convolutions share: the shapes, numbers, and results in f64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kdsl_fuse.kernels.conv_problem import ConvProblem


def problem_of(row: Sequence[int]) -> ConvProblem:
    """From [images, height, width, channels, filters, kernel, stride, groups], padding half."""
    n, h, w, c, k, r, step, groups = row
    half = (r // 2, r // 2)
    return ConvProblem(n, h, w, c, k, (r, r), (step, step), half, groups=groups)


@dataclass(frozen=True)
class Case:
    """A convolution, alone or `fused` with what stands behind it: a residual and ReLU, at least."""

    problem: ConvProblem
    fused: bool = False

    @classmethod
    def of(cls, row: Sequence[int], fused: bool) -> Case:
        """From a row of benchmarks/shapes.toml."""
        return cls(problem_of(row), fused)

    @property
    def name(self) -> str:
        """One of a kind."""
        p = self.problem
        words = [f"{p.batch}x{p.height}x{p.width}x{p.channels}->{p.filters}"]
        words += [f"{p.kernel[0]}x{p.kernel[1]}/{p.stride[0]}", *[f"g{p.groups}"] * (p.groups > 1)]
        return " ".join([*words, *["fused"] * self.fused])

    @property
    def bytes(self) -> int:
        """Input, filters, result and residual."""
        (p, q), b = self.problem.output, self.problem.batch
        residual = 2 * b * p * q * self.problem.filters if self.fused else 0
        return self.problem.moved_bytes(2) + residual


def normal(*shape: int) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def exact(x: Any, w: Any, problem: ConvProblem) -> torch.Tensor:
    """The convolution in f64, NHWC, by another library than cuDNN."""
    p = problem
    images, filters = (a.double().permute(0, 3, 1, 2) for a in (x, w))
    with torch.backends.cudnn.flags(enabled=False):
        y = torch.nn.functional.conv2d(
            images, filters, None, p.stride, p.padding, p.dilation, p.groups
        )
    return y.permute(0, 2, 3, 1)
