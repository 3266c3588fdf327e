"""A whole plan as one CUDA graph."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from kdsl_core.errors import FusionError
from kdsl_fuse import arrays

if TYPE_CHECKING:
    from kdsl_fuse.plan import Plan


class Captured:
    """A plan recorded once for torch tensors on a GPU; a call is one launch of the graph.

    `inputs` are the tensors that the graph reads and `result` what it writes, at the same addresses
    each time: a result lives until the next call, unless it is copied.
    Memory: all on the caller's current stream; nothing is waited for.
    """

    def __init__(self, plan: Plan, given: tuple[Any, ...]) -> None:
        torch = _torch(given)
        self.plan = plan
        self.inputs = [_like(torch, x) for x in given]
        plan.run(*self.inputs)  # builds, loads and encodes what a capture must not
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = plan.run(*self.inputs)

    def __call__(self, *inputs: Any) -> Any:
        """Copy `inputs` to where the graph reads them, and run it."""
        self.plan.values(*inputs)  # checks them as a run does
        for held, x in zip(self.inputs, inputs, strict=True):
            if held is not x:
                held.copy_(x)
        return self.replay()

    def replay(self) -> Any:
        """Run on what `inputs` hold now."""
        self.graph.replay()
        return self.result


def _torch(given: tuple[Any, ...]) -> Any:
    like = arrays.common_place(given)
    if arrays.library(like) != "torch":
        raise FusionError(
            f"a plan is captured with torch tensors on a GPU, got {arrays.place(like)}",
            code="K966",
            fix="move the arguments to torch: torch.as_tensor(x, device='cuda')",
        )
    for x in given:
        if any(step == 0 and size > 1 for size, step in zip(x.shape, x.stride(), strict=True)):
            raise FusionError(
                f"a capture copies its inputs, and one of shape {tuple(x.shape)} repeats memory",
                code="K966",
                fix="pass it whole: x.contiguous()",
            )
    return sys.modules["torch"]


def _like(torch: Any, x: Any) -> Any:
    """A copy with the same strides."""
    held = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return held.copy_(x)
