"""Calls that make as many launches as they need: those of a kernel's own plan, or of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.lang.launch import extent
from kdsl_fuse import arrays
from kdsl_fuse.calls import VALUE_BYTES, KernelCall, Needed, Operand
from kdsl_fuse.strided import Strided
from kdsl_fuse.work import Work, work_of


@dataclass(eq=False)
class SeveralLaunches(KernelCall):
    """A call whose `run` makes launches of its own, as long as `makes_its_own` is true.

    `needs`, `module` and `simulate` know all launches by asking for them on arrays without data;
    one of them is of the call's `kernel`.
    """

    @property
    def makes_its_own(self) -> bool:
        """Whether it does, or is an ordinary launch of a kernel that replaced them."""
        return True

    def simulate(self, values: Mapping[str, Any], **options: Any) -> Any:
        """All launches in the simulator, with the findings of all."""
        if not self.makes_its_own:
            return super().simulate(values, **options)
        outputs = self.empty_outputs(values)
        works = work_of(partial(self.run, values, outputs))
        total, *others = (work.simulate(**options) for work in works)
        for other in others:
            total = total.followed_by(other)
        names = tuple(node.name for node in self.outputs)
        return replace(total, outputs=tuple(outputs), names=names)

    def launches(self) -> list[Work]:
        """All launches, for values at multiples of 16 bytes."""
        results = [unfilled(node.dtype, Strided.dense(node.shape)) for node in self.outputs]
        reads = sorted((*self.operands, *self.extras), key=lambda read: read.whole)
        values = {read.value: unfilled(read.dtype, _memory_of(read)) for read in reads}
        return work_of(partial(self.run, values, results))

    def needs(self) -> list[Needed]:
        """The kernels of all launches."""
        if not self.makes_its_own:
            return super().needs()
        return [work.needed for work in self.launches()]

    def module(self, target: str) -> Any:
        """The `kdsl_core.ptx.PtxModule` of the call's own kernel."""
        if not self.makes_its_own:
            return super().module(target)
        from kdsl_core.ir.target import target_of

        kernel, needed = next(pair for pair in self.needs() if pair[0] is self.kernel)
        return kernel.built(kernel.traced(needed), target_of(target))


@dataclass(eq=False)
class PlanCall(SeveralLaunches):
    """`plan.run(*operands, output, *extras, epilogue=…)`; the plan has a `launch` of its kernel.

    Operands may be copied first, by the plan or the preparation.
    """

    plan: Any = None

    @classmethod
    def of(cls, plan: Any, epilogue: Any, **words: Any) -> PlanCall:
        """The call of a plan, as its `launch` is configured; `words` say what it is for."""
        launch = plan.launch
        return cls(
            **{"name": launch.kernel.__name__, **words},
            kernel=launch.kernel,
            grid=extent(launch.grid, "grid"),
            block=extent(launch.block, "block"),
            cluster=launch.cluster,
            statics={"epilogue": epilogue, "config": plan.config},
            summary=str(plan),
            overlap=launch.overlap,
            plan=plan,
        )

    @property
    def makes_its_own(self) -> bool:
        """Whether there is a plan, and no kernel replaced it."""
        return self.plan is not None

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


def _memory_of(read: Operand) -> Strided:
    """A layout of the value itself where the view is all of it; no other view looks at one."""
    return read.layout if read.whole else Strided.dense((1,))


def unfilled(dtype: DType, layout: Strided) -> Any:
    """A view of memory that there is not, for who only looks at its shape, strides and address."""
    memory = np.empty(2 * VALUE_BYTES, np.uint8)
    start = -memory.ctypes.data % VALUE_BYTES
    return arrays.view(memory[start : start + VALUE_BYTES].view(dtype.numpy), layout)
