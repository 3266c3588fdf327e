"""The compiler as a list that is read from top to bottom."""

from __future__ import annotations

from collections.abc import Callable

from kdsl_core.ir import Kernel
from kdsl_core.passes.check_wgmma import check_wgmma
from kdsl_core.passes.forward_reads import forward_reads
from kdsl_core.passes.remove_dead_code import remove_dead_code
from kdsl_core.passes.verify import verify

PIPELINE: tuple[Callable[[Kernel], None], ...] = (
    verify,
    forward_reads,
    remove_dead_code,
    check_wgmma,
    verify,
)


def optimise(kernel: Kernel) -> Kernel:
    """Run every pass on the kernel in place; returns the same kernel.

    Raises: VerifyError, TypeMismatch or ResourceError when the kernel breaks a rule of the IR.
    """
    for step in PIPELINE:
        step(kernel)
    return kernel
