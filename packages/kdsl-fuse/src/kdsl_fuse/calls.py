"""One launch of a plan: an ordinary kdsl_core kernel, its operands as views, its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, eq=False)
class KernelCall:
    """A kernel with everything that a launch needs but the arrays.

    `operands` are the kernel's array arguments before the output, `extras` those after it;
    `statics` are its trace-time arguments (`epilogue`, `config`).
    """

    name: str
    kernel: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    operands: tuple[Operand, ...]
    extras: tuple[Operand, ...]
    output: Node
    statics: Mapping[str, Any] = field(default_factory=dict)

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

    def arguments(self, values: Mapping[str, Any], output: Any) -> list[Any]:
        """The kernel's array arguments, in order."""
        before = [read.view(values) for read in self.operands]
        return [*before, output, *(read.view(values) for read in self.extras)]

    def run(self, values: Mapping[str, Any]) -> Any:
        """Launch on arrays by value name; returns the output, a new array of the same library."""
        like = values[self.reads[0]]
        output = arrays.empty(self.output.shape, self.output.dtype, like)
        self.kernel[self.grid, self.block](*self.arguments(values, output), **self.statics)
        return output

    def simulate(self, values: Mapping[str, Any], **options: Any) -> Any:
        """Run in the simulator with its checks; `options` and result as `kd.simulate`."""
        import kdsl_core as kd

        like = values[self.reads[0]]
        output = arrays.empty(self.output.shape, self.output.dtype, like)
        args = tuple(self.arguments(values, output))
        return kd.simulate(
            self.kernel,
            grid=self.grid,
            block=self.block,
            args=args,
            kwargs=dict(self.statics),
            **options,
        )

    def ptx(self, target: str) -> str:
        """The kernel's PTX for these shapes; no GPU and no arrays are needed."""
        return str(self.module(target).text)

    def module(self, target: str) -> Any:
        """The kernel's `kdsl_core.ptx.PtxModule` for these shapes."""
        return self.kernel.module(*self.specs(), target=target, block=self.block, **self.statics)

    def specs(self) -> Sequence[Any]:
        """The kernel's array arguments as `kd.spec`s."""
        import kdsl_core as kd

        output = Operand(
            self.output.name,
            self.output.dtype,
            self.output.shape,
            row_major(self.output.shape),
        )
        reads = (*self.operands, output, *self.extras)
        return [kd.spec(read.dtype, read.shape, strides=read.strides) for read in reads]

    def __str__(self) -> str:
        reads = ", ".join(map(str, (*self.operands, *self.extras)))
        lines = [
            f"{self.output} = {self.name}[grid {self.grid}, block {self.block}]({reads})",
            f"config {self.config}",
            str(self.epilogue),
        ]
        return "\n    ".join("\n".join(lines).splitlines())
