"""Kernels of the caller's own among the functions of `@kf.fuse`."""

from __future__ import annotations

from typing import Any

from kdsl_core.errors import FusionError
from kdsl_fuse.frontends.traced import TracedArray, apply
from kdsl_fuse.ops.custom import Launch
from kdsl_fuse.origin import author_loc


def custom(launch: Launch, *arrays: Any) -> TracedArray:
    """The array that `launch` computes from `arrays`; other kernels are fused around it.

    The kernel is called as kernel(*arrays, output, **statics).
    Raises: FusionError K965 for a Python number among the arrays.
    """
    if any(isinstance(x, bool | int | float) for x in arrays):
        raise FusionError(
            f"{launch} takes arrays in memory, got {', '.join(map(repr, arrays))}",
            code="K965",
            loc=author_loc(),
            fix="pass numbers as statics of the kf.Launch",
        )
    return apply("Custom", *arrays, launch=launch)
