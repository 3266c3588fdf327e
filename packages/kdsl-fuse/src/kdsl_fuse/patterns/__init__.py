"""The patterns, in the order in which they are tried."""

from __future__ import annotations

from kdsl_fuse.patterns.base import Match, Options, Pattern
from kdsl_fuse.patterns.gemm_epilogue import GemmEpilogue

ALL_PATTERNS: tuple[Pattern, ...] = (GemmEpilogue(),)

__all__ = ["ALL_PATTERNS", "Match", "Options", "Pattern"]
