"""One kernel in one specialisation for one target, in words that any process understands."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kdsl_core.errors import ArgumentError
from kdsl_core.ir import target_of
from kdsl_core.lang.kernel import KernelFunction
from kdsl_core.lang.specialisation import Specialisation
from kdsl_core.lang.tensor_class import TensorClass
from kdsl_core.ptx import PtxModule
from kdsl_runtime.manifest.value_text import from_text, to_text

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Sample:
    """What a kernel is run on to see its numbers: grid, sizes by name, and scalars by name.

    Sizes and scalars that are not stated get values made from the argument's class.
    """

    grid: tuple[int, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)

    def as_toml(self) -> dict[str, Any]:
        """The table of a manifest; empty parts are left out."""
        parts = {"grid": list(self.grid), "sizes": self.sizes, "scalars": self.scalars}
        return {name: part for name, part in parts.items() if part}


@dataclass(frozen=True, order=True)
class Variant:
    """A kernel, its specialisation and its target; `target` is empty where any will do.

    `kernel` is "module:name"; `arguments` are the classes of its tensors as `kernel.keys` prints
    them, `statics` the trace-time arguments as expressions. Two variants are equal when they are
    built from the same; `sample` makes no difference.
    """

    kernel: str
    target: str
    arguments: tuple[str, ...]
    statics: tuple[tuple[str, str], ...]
    block: Dim3
    cluster: tuple[int, ...] = ()
    sample: Sample = field(default=Sample(), compare=False)

    @classmethod
    def of(cls, kernel: KernelFunction, needed: Specialisation, target: str = "") -> Variant:
        """A kernel that this process holds, by its name.

        Raises: ArgumentError K732 for one that cannot be imported, K733 for a trace-time value
        without a text.
        """
        return cls(
            name_of(kernel),
            target,
            tuple(map(str, needed.classes)),
            tuple((name, to_text(value)) for name, _, value in needed.statics),
            needed.block,
            needed.cluster or (),
        )

    def at(self, target: str) -> Variant:
        """The same for another target."""
        return replace(self, target=str(target_of(target)))

    def function(self) -> KernelFunction:
        """The kernel, imported.

        Raises: ArgumentError K732.
        """
        return kernel_named(self.kernel)

    def specialisation(self) -> Specialisation:
        """What the words mean.

        Raises: ArgumentError K734 and K735 for words without a meaning.
        """
        classes = tuple(map(TensorClass.parse, self.arguments))
        statics = {name: from_text(text) for name, text in self.statics}
        cluster = _dim3(self.cluster) if self.cluster else None
        return Specialisation.of(classes, statics, self.block, cluster)

    def module(self) -> PtxModule:
        """The PTX; needs no GPU.

        Raises: ArgumentError K731 without a target; what tracing and emitting raise.
        """
        if not self.target:
            raise ArgumentError(
                f"{self.kernel}: no target is stated",
                code="K731",
                fix='write target = "sm_90a" into its entry, or pass --target',
            )
        return self.function().lowered(self.specialisation(), target_of(self.target)).module

    def __str__(self) -> str:
        statics = [f"{name} = {text}" for name, text in self.statics]
        cluster = f", cluster {self.cluster}" if self.cluster else ""
        facts = "; ".join((*self.arguments, *statics))
        return f"{self.kernel}[{self.block}{cluster}]({facts}) for {self.target or 'any target'}"

    def as_toml(self) -> dict[str, Any]:
        """The table of a manifest or lock; empty parts are left out."""
        parts = {
            "kernel": self.kernel,
            "target": self.target,
            "block": list(self.block),
            "cluster": list(self.cluster),
            "arguments": list(self.arguments),
            "statics": dict(self.statics),
            "sample": self.sample.as_toml(),
        }
        return {name: part for name, part in parts.items() if part}

    @classmethod
    def from_toml(cls, table: Mapping[str, Any]) -> Variant:
        """The variant that `as_toml` wrote, or that somebody wrote by hand.

        Raises: KeyError, TypeError, ValueError or AttributeError for a table that is none.
        """
        sample = table.get("sample", {})
        return cls(
            str(table["kernel"]),
            str(table.get("target", "")),
            tuple(map(str, table.get("arguments", ()))),
            tuple((name, str(text)) for name, text in table.get("statics", {}).items()),
            _dim3(table["block"]),
            tuple(map(int, table.get("cluster", ()))),
            Sample(
                tuple(sample.get("grid", ())), sample.get("sizes", {}), sample.get("scalars", {})
            ),
        )


def _dim3(sizes: int | Sequence[int]) -> Dim3:
    x, y, z = (*([sizes] if isinstance(sizes, int) else map(int, sizes)), 1, 1)[:3]
    return x, y, z


def name_of(kernel: KernelFunction) -> str:
    """The "module:name" by which any process finds a kernel: its function's name, or its own.

    Raises: ArgumentError K732 when there is none.
    """
    name = f"{kernel.__module__}:{kernel.__qualname__}"
    own = getattr(sys.modules.get(kernel.__module__), kernel.signature.name, None)
    if own is kernel:
        name = f"{kernel.__module__}:{kernel.signature.name}"
    if kernel.__module__ == "__main__":
        raise _not_found(name, "it is defined in the program's main file")
    if kernel_named(name) is not kernel:
        raise _not_found(name, "that is another kernel now")
    return name


def kernel_named(name: str) -> KernelFunction:
    """The kernel that "module:name" says.

    Raises: ArgumentError K732.
    """
    try:
        found = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise _not_found(name, str(problem)) from problem
    if not isinstance(found, KernelFunction):
        raise _not_found(name, f"it is a {type(found).__name__}")
    return found


def _not_found(name: str, why: str) -> ArgumentError:
    return ArgumentError(
        f"no kernel can be imported as {name}: {why}",
        code="K732",
        fix="define the kernel at the top of a module that can be imported, and name it "
        "package.module:kernel",
    )
