"""One launch of a plan: an ordinary kdsl_core kernel, its operands as views, its configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kdsl_core.dtypes import DType
from kdsl_core.errors import ArgumentError
from kdsl_fuse import arrays
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.ops import op_named
from kdsl_fuse.strided import Shape, Strided, row_major

VALUE_BYTES = 16  # what addresses of values are multiples of


@dataclass(frozen=True)
class Operand:
    """A stored value, viewed as a kernel reads it; `whole` says that the view is the value."""

    value: str
    dtype: DType
    layout: Strided
    whole: bool = False

    @property
    def shape(self) -> Shape:
        """Sizes of the view."""
        return self.layout.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the view, in elements."""
        return self.layout.strides

    @property
    def align(self) -> int:
        """What the view's address is a multiple of, in bytes, where the value's is one of 16."""
        return math.gcd(VALUE_BYTES, self.layout.offset * self.dtype.bytes)

    def view(self, values: Mapping[str, Any]) -> Any:
        """The view itself."""
        array = values[self.value]
        return array if self.whole else arrays.view(array, self.layout)

    def seen_as(self, layout: Strided) -> Operand:
        """Another view of the same value."""
        return Operand(self.value, self.dtype, layout, self.whole and layout == self.layout)

    def __str__(self) -> str:
        return f"{self.value}{self.layout}"


def stored(graph: Graph, node: Node) -> tuple[Node, Strided]:
    """The node in memory that `node` is a view of, and the view.

    A view that needs strides which there are not is a value of its own, to be copied.
    """
    views: list[Node] = []
    while op_named(node.op.name).view is not None:
        views.append(node)
        (node,) = graph.operands(node)
    layout = Strided(node.shape, node.strides or row_major(node.shape))
    for step in reversed(views):
        rule = op_named(step.op.name).view
        assert rule is not None, f"{step} is a view"
        found = rule(layout, step.op, step.shape)
        node, layout = (node, found) if found else (step, Strided.dense(step.shape))
    return node, layout


def operand(graph: Graph, node: Node) -> Operand:
    """The Operand that reads `node`, with views in the graph followed."""
    base, layout = stored(graph, node)
    whole = layout == Strided(base.shape, base.strides or row_major(base.shape))
    return Operand(base.name, base.dtype, layout, whole)


Needed = tuple[Any, Any]
"""A kernel and the specialisation of it that a launch needs."""


class Preparation:
    """What a kernel needs besides its launch: nothing, unless a kernel's own class says otherwise.

    `operands` is for a launch, `spec` describes what it gives.
    """

    def operands(self, views: Sequence[Any]) -> Sequence[Any]:
        """The operands that the kernel is to read, `views` themselves or copies of them."""
        return views

    def spec(self, read: Operand) -> Any:
        """An operand as the kernel finds it."""
        import kdsl_core as kd

        return kd.spec(read.dtype, read.shape, strides=read.strides, align=read.align)

    def needs(self, reads: Sequence[Operand]) -> list[Needed]:
        """What `operands` launches, for values at multiples of 16 bytes."""
        return []


@dataclass(eq=False)
class KernelCall:
    """A kernel with everything that a launch needs but the arrays.

    The kernel's array arguments are `operands`, `outputs` and `extras`; `seen` are the shapes in
    which it sees outputs, or views of them, where they are not their own. A `transposed` call
    computes transposes of the outputs from those of the extras. `statics` are its trace-time
    arguments (`epilogue`, `config`), and `summary` tells the configuration in few words. `overlap`
    says that the kernel itself waits for the launch before.
    """

    name: str
    kernel: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    operands: tuple[Operand, ...]
    extras: tuple[Operand, ...]
    outputs: tuple[Node, ...]
    statics: Mapping[str, Any]
    summary: str
    cluster: tuple[int, ...] | None = None
    overlap: bool = False
    transposed: bool = False
    preparation: Preparation = field(default_factory=Preparation)
    seen: tuple[Shape | Strided, ...] = ()

    @property
    def output(self) -> Node:
        """The first value that it stores."""
        return self.outputs[0]

    @property
    def epilogue(self) -> Any:
        """The pointwise function applied to each accumulator."""
        return self.statics.get("epilogue")

    @property
    def config(self) -> Any:
        """The kernel's tile sizes and pipeline depth."""
        return self.statics.get("config")

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the values that must be in memory before the launch."""
        return tuple(dict.fromkeys(read.value for read in (*self.operands, *self.extras)))

    @cached_property
    def launch(self) -> Any:
        """The kernel with grid, block and cluster, waiting for arguments."""
        return self.kernel.configure(
            grid=self.grid, block=self.block, cluster=self.cluster, overlap=self.overlap
        )

    def replace(self, kernel: Any, **changes: Any) -> KernelCall:
        """Take another kernel here, and other fields by name (`grid`, `block`, `statics`, …).

        The kernel gets the same array arguments and, unless stated, the same `statics`. The plan
        that the call belongs to runs it from now on.
        Raises: ArgumentError K963 for a field that there is not.
        """
        fields = {"grid", "block", "cluster", "statics", "summary", "name", "overlap"}
        if unknown := sorted(set(changes) - fields):
            raise ArgumentError(
                f"a call has no {', '.join(unknown)} to replace",
                code="K963",
                fix=f"change one of {', '.join(sorted(fields))}",
            )
        told = str(getattr(kernel, "__name__", type(kernel).__name__))
        for name, value in ({"kernel": kernel, "name": told} | changes).items():
            setattr(self, name, value)
        self.__dict__.pop("launch", None)
        return self

    def arguments(self, values: Mapping[str, Any], *outputs: Any) -> list[Any]:
        """The kernel's array arguments, in order."""
        operands = self.preparation.operands([read.view(values) for read in self.operands])
        seen = list(outputs)
        if self.seen:
            pairs = zip(outputs, self._layouts(), strict=True)
            seen = [arrays.view(x, layout) for x, layout in pairs]
        others = [*seen, *(read.view(values) for read in self.extras)]
        return [*operands, *(map(arrays.transposed, others) if self.transposed else others)]

    def run(self, values: Mapping[str, Any], outputs: Sequence[Any] | None = None) -> Any:
        """Launch on arrays by value name, into `outputs` or new arrays of the same library.

        Returns the output, or a tuple of several.
        """
        outputs = self.empty_outputs(values) if outputs is None else outputs
        self.launch(*self.arguments(values, *outputs), **self.statics)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def simulate(self, values: Mapping[str, Any], **options: Any) -> Any:
        """Run in the simulator with its checks; `options` and result as `kd.simulate`."""
        import kdsl_core as kd

        return kd.simulate(
            self.kernel,
            grid=self.grid,
            block=self.block,
            cluster=self.cluster,
            args=tuple(self.arguments(values, *self.empty_outputs(values))),
            kwargs=dict(self.statics),
            **options,
        )

    def empty_outputs(self, values: Mapping[str, Any]) -> list[Any]:
        """New arrays for the outputs, of the library and on the device of what is read."""
        like = values[self.reads[0]]
        return [arrays.empty(node.shape, node.dtype, like) for node in self.outputs]

    def ptx(self, target: str) -> str:
        """The kernel's PTX for these shapes; no GPU and no arrays are needed."""
        return str(self.module(target).text)

    def module(self, target: str) -> Any:
        """The kernel's `kdsl_core.ptx.PtxModule` for these shapes."""
        return self.kernel.module(
            *self.specs(), target=target, block=self.block, cluster=self.cluster, **self.statics
        )

    def specs(self) -> Sequence[Any]:
        """The kernel's array arguments as `kd.spec`s."""
        import kdsl_core as kd

        operands = [self.preparation.spec(read) for read in self.operands]
        stores = [
            Operand(node.name, node.dtype, layout)
            for node, layout in zip(self.outputs, self._layouts(), strict=True)
        ]
        turn = -1 if self.transposed else 1
        others = [
            kd.spec(x.dtype, x.shape[::turn], strides=x.strides[::turn], align=x.align)
            for x in (*stores, *self.extras)
        ]
        return [*operands, *others]

    def _layouts(self) -> list[Strided]:
        """The outputs as the kernel sees them."""
        seen = self.seen or [node.shape for node in self.outputs]
        return [x if isinstance(x, Strided) else Strided.dense(x) for x in seen]

    def needs(self) -> list[Needed]:
        """The kernels of all launches that `run` makes, for arrays at multiples of 16 bytes."""
        own = self.kernel.specialisation(
            *self.specs(), block=self.block, cluster=self.cluster, **self.statics
        )
        return [*self.preparation.needs(self.operands), (self.kernel, own)]

    @property
    def header(self) -> str:
        """The kernel with the blocks that it is launched on."""
        cluster = f", cluster {self.cluster}" if self.cluster else ""
        return f"{self.name}[grid {self.grid}, block {self.block}{cluster}]"

    def __str__(self) -> str:
        reads = ", ".join(map(str, (*self.operands, *self.extras)))
        stores = ", ".join(map(str, self.outputs))
        lines = [f"{stores} = {self.header}({reads})", f"config {self.summary}"]
        functions = (self.epilogue, self.statics.get("function"))
        tail = [str(function) for function in functions if function is not None]
        return "\n    ".join("\n".join([*lines, *tail]).splitlines())
