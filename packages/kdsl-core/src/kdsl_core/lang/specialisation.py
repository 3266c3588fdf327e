"""What decides a kernel's code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kdsl_core.lang.launch import Dim3
from kdsl_core.lang.nested_types import nested_types
from kdsl_core.lang.tensor_class import TensorClass

if TYPE_CHECKING:
    from kdsl_core.lang.differences import Difference


class Specialisation(NamedTuple):
    """The classes of the tensors, the trace-time arguments with their types, block and cluster.

    Two calls with equal specialisations share the code, as long as what the kernel reads besides
    stays what it is. `nested` has the types within the trace-time arguments.
    """

    classes: tuple[TensorClass, ...]
    statics: tuple[tuple[str, type, Any], ...]
    block: Dim3
    cluster: Dim3 | None = None
    nested: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls,
        classes: tuple[TensorClass, ...],
        statics: dict[str, Any],
        block: Dim3,
        cluster: Dim3 | None,
    ) -> Specialisation:
        """The specialisation with these values for the trace-time arguments."""
        # 1, 1.0 and True are equal keys of a dict, and different code.
        items = tuple([(name, type(value), value) for name, value in statics.items()])
        nested = tuple(map(nested_types, statics.values()))
        # The class's own constructor costs as much as all the rest.
        return tuple.__new__(cls, (classes, items, block, cluster, nested))

    def __str__(self) -> str:
        parts = [str(item) for item in self.classes]
        parts += [f"{name} = {kind.__name__} {value!r}" for name, kind, value in self.statics]
        cluster = "" if self.cluster is None else f", cluster {self.cluster}"
        return f"[{self.block}{cluster}]({'; '.join(parts)})"

    def differences(self, other: Specialisation) -> list[Difference]:
        """Every fact that is different in `other`."""
        from kdsl_core.lang.differences import between  # for reports and errors alone

        return between(self, other)

    def nearest(self, known: Sequence[Specialisation]) -> list[Difference]:
        """What differs from the one of `known` that differs least; nothing when none is known."""
        every = [other.differences(self) for other in known]
        return min(every, key=len, default=[])
