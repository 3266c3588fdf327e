"""Check that the target has every instruction of a kernel."""

from __future__ import annotations

from kdsl_core.errors import TargetError
from kdsl_core.ir import Kernel, Need, Target

_CLUSTERS = Need(sm=90)


def check_target(kernel: Kernel, target: Target) -> None:
    """Raise TargetError at the author's line of the first operation that the target lacks."""
    for op in kernel.body.walk():
        why = op.need.missing(target)
        if why:
            raise TargetError(
                f"{op.name} does not exist on {target}: {why}",
                code="K402",
                loc=op.loc,
                fix="build for a newer target, or use an instruction that this one has",
            )
    why = _CLUSTERS.missing(target) if kernel.cluster_dim else None
    if why:
        raise TargetError(
            f"block clusters do not exist on {target}: {why}",
            code="K403",
            loc=kernel.loc,
            fix="leave out cluster=",
        )
