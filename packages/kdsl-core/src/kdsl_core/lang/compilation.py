"""A kernel in one specialisation: traced and optimised, then as PTX for a target."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kdsl_core.ir import Target
from kdsl_core.lang import dump
from kdsl_core.lang.specialisation import Specialisation
from kdsl_core.lang.traced import Traced, trace
from kdsl_core.passes import check_resources, check_target, optimise
from kdsl_core.ptx import PtxModule, emit

if TYPE_CHECKING:
    from kdsl_core.lang.kernel import KernelFunction


def optimised(
    kernel: KernelFunction, needed: Specialisation, within: AbstractContextManager[Any]
) -> Traced:
    """The IR after the passes; only the trace, which runs the author's code, is `within`."""
    min_blocks = kernel.min_blocks_per_sm
    with within:
        traced = trace(kernel.staged, kernel.signature, needed, min_blocks_per_sm=min_blocks)
    optimise(traced.kernel)
    if dump.wanted("ir"):
        from kdsl_core.ir.printer import print_kernel

        dump.write(kernel.__name__, "ir", print_kernel(traced.kernel))
    return traced


def emitted(kernel: KernelFunction, traced: Traced, target: Target, lines: bool) -> PtxModule:
    """The PTX of a trace.

    Raises: TargetError when the target lacks an instruction, ResourceError beyond its limits.
    """
    check_target(traced.kernel, target)
    check_resources(traced.kernel, target)
    module = emit(traced.kernel, target, lines=lines)
    if dump.wanted("ptx"):
        dump.write(f"{kernel.__name__}.{target}", "ptx", module.text)
    return module
