"""A call that runs a kernel's own plan, however many launches that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_fuse import arrays
from kdsl_fuse.calls import VALUE_BYTES, KernelCall, Needed
from kdsl_fuse.strided import Strided
from kdsl_fuse.work import Work, work_of


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
        outputs = self.empty_outputs(values)
        works = work_of(partial(self.run, values, outputs))
        total, *others = (work.simulate(**options) for work in works)
        for other in others:
            total = total.followed_by(other)
        return replace(total, outputs=tuple(outputs), names=(self.output.name,))

    def launches(self) -> list[Work]:
        """All launches, for values at multiples of 16 bytes."""
        result = unfilled(self.output.dtype, Strided.dense(self.output.shape))
        reads, extras = (
            [unfilled(read.dtype, read.layout) for read in group]
            for group in (self.operands, self.extras)
        )

        def asked_for() -> None:
            operands = self.preparation.operands(reads)
            self.plan.run(*operands, result, *extras, epilogue=self.epilogue)

        return work_of(asked_for)

    def needs(self) -> list[Needed]:
        """The kernels of all launches."""
        if self.plan is None:
            return super().needs()
        return [work.needed for work in self.launches()]

    def module(self, target: str) -> Any:
        """The `kdsl_core.ptx.PtxModule` of the plan's own kernel."""
        if self.plan is None:
            return super().module(target)
        from kdsl_core.ir.target import target_of

        kernel, needed = next(pair for pair in self.needs() if pair[0] is self.kernel)
        return kernel.built(kernel.traced(needed), target_of(target))


def unfilled(dtype: DType, layout: Strided) -> Any:
    """A view of memory that there is not, for who only looks at its shape, strides and address."""
    memory = np.empty(2 * VALUE_BYTES, np.uint8)
    start = -memory.ctypes.data % VALUE_BYTES
    return arrays.view(memory[start : start + VALUE_BYTES].view(dtype.numpy), layout)
