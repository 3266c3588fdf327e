"""One launch of a plan: an ordinary kdsl_core kernel, its operands as views, its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kdsl_core.dtypes import DType
from kdsl_fuse import arrays
from kdsl_fuse.graph import Graph, Node, Shape, row_major


@dataclass(frozen=True)
class Operand:
    """A view of a stored value, as a kernel reads it: transposed first, then broadcast.

    `shape` and `strides` (in elements) are those of the view.
    """

    value: str
    dtype: DType
    shape: Shape
    strides: tuple[int, ...]
    transpose: bool = False

    def view(self, values: Mapping[str, Any]) -> Any:
        """The view itself."""
        array = values[self.value]
        return arrays.broadcast(arrays.transposed(array) if self.transpose else array, self.shape)

    def __str__(self) -> str:
        strides = ", ".join(map(str, self.strides))
        return f"{self.value}{'.T' if self.transpose else ''}{list(self.shape)}:({strides})"


def stored(graph: Graph, node: Node) -> tuple[Node, bool]:
    """The node in memory that `node` is a view of, and whether the view is transposed."""
    transpose = False
    while node.op.name == "Transpose":
        (node,) = graph.operands(node)
        transpose = not transpose
    return node, transpose


def operand(graph: Graph, node: Node, *, transpose: bool = False) -> Operand:
    """The Operand that reads `node`, or its transpose, with transposes in the graph followed."""
    base, turned = stored(graph, node)
    strides = base.strides or row_major(base.shape)
    flip = turned != transpose
    shape = base.shape[::-1] if flip else base.shape
    return Operand(base.name, base.dtype, shape, strides[::-1] if flip else strides, flip)


def broadcast(read: Operand, shape: Shape) -> Operand:
    """`read` repeated to `shape`, with stride 0 on the repeated axes."""
    strides = arrays.broadcast_strides(read.shape, read.strides, shape)
    return Operand(read.value, read.dtype, shape, strides, read.transpose)


Needed = tuple[Any, Any]
"""A kernel and the specialisation of it that a launch needs."""


class Preparation:
    """What a kernel needs besides its launch: nothing, unless a kernel's own class says otherwise.

    `operands` is for a launch, `strides` describes what it gives.
    """

    def operands(self, views: Sequence[Any]) -> Sequence[Any]:
        """The operands that the kernel is to read, `views` themselves or copies of them."""
        return views

    def strides(self, read: Operand) -> tuple[int, ...]:
        """The strides in which the kernel finds an operand."""
        return read.strides

    def needs(self, reads: Sequence[Operand]) -> list[Needed]:
        """What `operands` launches, for operands at multiples of 16 bytes."""
        return []


@dataclass(frozen=True, eq=False)
class KernelCall:
    """A kernel with everything that a launch needs but the arrays.

    The kernel's array arguments are `operands`, the output and `extras`; a `transposed` call
    computes the transpose of the output from those of the extras. `statics` are its trace-time
    arguments (`epilogue`, `config`), and `summary` tells the configuration in few words. `overlap`
    says that the kernel itself waits for the launch before.
    """

    name: str
    kernel: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    operands: tuple[Operand, ...]
    extras: tuple[Operand, ...]
    output: Node
    statics: Mapping[str, Any]
    summary: str
    cluster: tuple[int, ...] | None = None
    overlap: bool = False
    transposed: bool = False
    preparation: Preparation = field(default_factory=Preparation)

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

    def arguments(self, values: Mapping[str, Any], output: Any) -> list[Any]:
        """The kernel's array arguments, in order."""
        operands = self.preparation.operands([read.view(values) for read in self.operands])
        output, *extras = (output, *(read.view(values) for read in self.extras))
        if self.transposed:
            output, *extras = (arrays.transposed(x) for x in (output, *extras))
        return [*operands, output, *extras]

    def run(self, values: Mapping[str, Any]) -> Any:
        """Launch on arrays by value name; returns the output, a new array of the same library."""
        output = self._output(values)
        self.launch(*self.arguments(values, output), **self.statics)
        return output

    def simulate(self, values: Mapping[str, Any], **options: Any) -> Any:
        """Run in the simulator with its checks; `options` and result as `kd.simulate`."""
        import kdsl_core as kd

        return kd.simulate(
            self.kernel,
            grid=self.grid,
            block=self.block,
            cluster=self.cluster,
            args=tuple(self.arguments(values, self._output(values))),
            kwargs=dict(self.statics),
            **options,
        )

    def _output(self, values: Mapping[str, Any]) -> Any:
        like = values[self.reads[0]]
        return arrays.empty(self.output.shape, self.output.dtype, like)

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

        shape = self.output.shape
        output = Operand(self.output.name, self.output.dtype, shape, row_major(shape))
        operands = [
            kd.spec(read.dtype, read.shape, strides=self.preparation.strides(read))
            for read in self.operands
        ]
        turn = -1 if self.transposed else 1
        output_spec, *extras = (
            kd.spec(x.dtype, x.shape[::turn], strides=x.strides[::turn])
            for x in (output, *self.extras)
        )
        return [*operands, output_spec, *extras]

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
        lines = [f"{self.output} = {self.header}({reads})", f"config {self.summary}"]
        return "\n    ".join("\n".join([*lines, str(self.epilogue)]).splitlines())
