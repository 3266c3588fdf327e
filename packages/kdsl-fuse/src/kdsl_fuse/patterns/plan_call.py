"""A call that runs a kernel's own plan, however many launches that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.lang.arguments import Bound
from kdsl_core.lang.launch import Place
from kdsl_core.lang.simulate import launches_go_to, simulate_bound
from kdsl_fuse import arrays
from kdsl_fuse.calls import KernelCall, Needed
from kdsl_fuse.strided import Strided

_VALUE_BYTES = 16  # what addresses of values are multiples of


@dataclass(frozen=True, eq=False)
class Launched:
    """A launch that was asked for."""

    kernel: Any
    place: Place
    bound: Bound


@dataclass(eq=False)
class PlanCall(KernelCall):
    """`plan.run(*operands, output, *extras, epilogue=…)`; the plan has a `launch` of its kernel.

    Operands may be copied first, by the plan or the preparation; `needs`, `module` and `simulate`
    know all launches by asking for them on arrays without data.
    """

    plan: Any = None

    def run(self, values: Mapping[str, Any], outputs: Sequence[Any] | None = None) -> Any:
        """All launches on arrays by value name; returns the output."""
        if self.plan is None:
            return super().run(values, outputs)
        (output,) = self.empty_outputs(values) if outputs is None else outputs
        self.plan.run(*self.arguments(values, output), epilogue=self.epilogue)
        return output

    def replace(self, kernel: Any, **changes: Any) -> KernelCall:
        """Take another kernel in the plan's place, for images, filters, the output and extras."""
        super().replace(kernel, **changes)
        self.plan = None
        return self

    def simulate(self, values: Mapping[str, Any], **options: Any) -> Any:
        """All launches in the simulator, with the findings of all."""
        if self.plan is None:
            return super().simulate(values, **options)
        found: list[Any] = []

        def simulated(kernel: Any, place: Place, bound: Bound) -> None:
            found.append(
                simulate_bound(kernel, place.grid, place.block, bound, options, place.cluster)
            )

        outputs = self.empty_outputs(values)
        with launches_go_to(simulated):
            self.run(values, outputs)
        total, *others = found
        for other in others:
            total = total.followed_by(other)
        return replace(total, outputs=tuple(outputs), names=(self.output.name,))

    def launches(self) -> list[Launched]:
        """All launches, for values at multiples of 16 bytes."""
        found: list[Launched] = []

        def noted(kernel: Any, place: Place, bound: Bound) -> None:
            found.append(Launched(kernel, place, bound))

        result = unfilled(self.output.dtype, Strided.dense(self.output.shape))
        reads, extras = (
            [unfilled(read.dtype, read.layout) for read in group]
            for group in (self.operands, self.extras)
        )
        with launches_go_to(noted):
            operands = self.preparation.operands(reads)
            self.plan.run(*operands, result, *extras, epilogue=self.epilogue)
        return found

    def needs(self) -> list[Needed]:
        """The kernels of all launches."""
        if self.plan is None:
            return super().needs()
        return [
            (x.kernel, x.kernel.specialised(x.bound, x.place.block, x.place.cluster))
            for x in self.launches()
        ]

    def module(self, target: str) -> Any:
        """The `kdsl_core.ptx.PtxModule` of the plan's own kernel."""
        if self.plan is None:
            return super().module(target)
        from kdsl_core.ir.target import target_of

        kernel, needed = next(pair for pair in self.needs() if pair[0] is self.kernel)
        return kernel.built(kernel.traced(needed), target_of(target))


def unfilled(dtype: DType, layout: Strided) -> Any:
    """A view of memory that there is not, for who only looks at its shape, strides and address."""
    memory = np.empty(2 * _VALUE_BYTES, np.uint8)
    start = -memory.ctypes.data % _VALUE_BYTES
    return arrays.view(memory[start : start + _VALUE_BYTES].view(dtype.numpy), layout)
