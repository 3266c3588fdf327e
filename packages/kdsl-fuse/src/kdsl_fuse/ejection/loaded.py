"""A call of a plan that runs a file's launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from kdsl_fuse.calls import KernelCall
from kdsl_fuse.ejection.ejected import Ejected, EjectedLaunch
from kdsl_fuse.patterns.plan_call import SeveralLaunches


@dataclass(eq=False)
class LoadedCall(SeveralLaunches):
    """What `made` launches, in place of the call that the file was written for."""

    made: Ejected | None = None

    @classmethod
    def of(cls, call: KernelCall, made: Ejected, file: str) -> LoadedCall:
        """The call with the launches of a file, told by the one that is most like its own."""
        kept = {field.name: getattr(call, field.name) for field in fields(KernelCall)}
        main = _main(call, made.launches)
        kept |= {
            "name": main.kernel.__name__,
            "kernel": main.kernel,
            "grid": main.grid,
            "block": main.block,
            "cluster": main.cluster,
            "overlap": main.overlap,
            "statics": dict(main.statics),
            "summary": f"as {file} states it",
        }
        return cls(**kept, made=made)

    @property
    def makes_its_own(self) -> bool:
        """Whether the file's launches are still what it runs."""
        return self.made is not None

    def run(self, values: Mapping[str, Any], outputs: Sequence[Any] | None = None) -> Any:
        """The file's launches on arrays by value name; the output, or a tuple of several."""
        if self.made is None:
            return super().run(values, outputs)
        outputs = self.empty_outputs(values) if outputs is None else outputs
        written = {node.name: x for node, x in zip(self.outputs, outputs, strict=True)}
        read = {name: values[name] for name in self.made.reads}
        self.made.run(read | written)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def replace(self, kernel: Any, **changes: Any) -> KernelCall:
        """Take another kernel in the file's place, for operands, outputs and extras."""
        super().replace(kernel, **changes)
        self.made = None
        return self


def _main(call: KernelCall, launches: Sequence[EjectedLaunch]) -> EjectedLaunch:
    """The launch of the kernel that the call had, else the last one."""
    alike = (x for x in launches if x.kernel.__name__ == call.kernel.__name__)
    return next(alike, launches[-1])
