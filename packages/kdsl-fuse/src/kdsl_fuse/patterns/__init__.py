"""The patterns, in the order in which they are tried."""

from __future__ import annotations

from kdsl_fuse.patterns.attention import FlashAttention
from kdsl_fuse.patterns.base import Example, Match, Options, Pattern
from kdsl_fuse.patterns.columns import Columns
from kdsl_fuse.patterns.concat import Concat
from kdsl_fuse.patterns.conv_dense import ConvDense
from kdsl_fuse.patterns.conv_depthwise import ConvDepthwise
from kdsl_fuse.patterns.conv_direct import ConvDirect
from kdsl_fuse.patterns.conv_grouped import ConvGrouped
from kdsl_fuse.patterns.conv_norm import ConvNorm
from kdsl_fuse.patterns.conv_pointwise import ConvPointwise
from kdsl_fuse.patterns.conv_separable import ConvSeparable
from kdsl_fuse.patterns.copy import Copy
from kdsl_fuse.patterns.custom import CustomKernel
from kdsl_fuse.patterns.elementwise import Elementwise
from kdsl_fuse.patterns.gated_pair import GatedPair
from kdsl_fuse.patterns.gemm_epilogue import GemmEpilogue
from kdsl_fuse.patterns.gemm_rows import GemmRows
from kdsl_fuse.patterns.registered import REGISTERED
from kdsl_fuse.patterns.rows import Rows
from kdsl_fuse.patterns.windows import Windows

ALL_PATTERNS: tuple[Pattern, ...] = (
    CustomKernel(),
    GatedPair(),
    GemmEpilogue(),
    ConvPointwise(),
    ConvNorm(),
    ConvSeparable(),
    ConvDepthwise(),
    ConvGrouped(),
    ConvDense(),
    ConvDirect(),
    FlashAttention(),
    Windows(),
    GemmRows(),
    Rows(),
    Columns(),
    Concat(),
    Elementwise(),
    Copy(),
)


def patterns_in_order() -> tuple[Pattern, ...]:
    """Those that the caller registered, the last one first, then all of kdsl's."""
    return (*reversed(REGISTERED), *ALL_PATTERNS)


__all__ = ["ALL_PATTERNS", "Example", "Match", "Options", "Pattern", "patterns_in_order"]
