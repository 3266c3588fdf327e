"""The configurations of the Hopper depthwise convolution that were fastest when measured.

The package's is written by benchmarks/make_conv_table.py, the user's by `kdsl tune conv_depthwise`.
Other sizes get what `conv_depthwise_space.first` finds.
"""

from __future__ import annotations

from typing import Any

from kdsl_fuse.kernels.conv_depthwise_config import DepthwiseConfig
from kdsl_fuse.kernels.conv_depthwise_space import overfull
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_tables import ConvTable

GIVEN = ("kernel", "stride", "padding", "dilation")


def configured(problem: ConvProblem, **chosen: Any) -> DepthwiseConfig:
    """The configuration for a convolution with what was chosen."""
    return DepthwiseConfig(**{name: getattr(problem, name) for name in GIVEN}, **chosen)


TABLE = ConvTable("conv_depthwise", configured, GIVEN, overfull)
