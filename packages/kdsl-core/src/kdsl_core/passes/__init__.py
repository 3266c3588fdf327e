"""Passes over the IR, one a file; `optimise` runs those that every kernel goes through."""

from kdsl_core.passes.check_resources import check_resources
from kdsl_core.passes.check_target import check_target
from kdsl_core.passes.check_wgmma import check_wgmma
from kdsl_core.passes.forward_reads import forward_reads
from kdsl_core.passes.pipeline import PIPELINE, optimise
from kdsl_core.passes.remove_dead_code import remove_dead_code
from kdsl_core.passes.verify import verify

__all__ = [
    "PIPELINE",
    "check_resources",
    "check_target",
    "check_wgmma",
    "forward_reads",
    "optimise",
    "remove_dead_code",
    "verify",
]
