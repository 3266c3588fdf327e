"""Memory-bound kernels that are measured: their operands, our plan, and the same in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

import kdsl_core as kd
from kdsl_fuse.kernels import elementwise, row_ops, row_programs, rows_plan
from kdsl_fuse.kernels.columns import reduce_columns
from kdsl_fuse.kernels.elementwise import ElementwisePlan

functional = torch.nn.functional
EPS = 1e-5
IGNORED = -100


@dataclass(frozen=True)
class Operation:
    """One operation: outputs of `given(rows, columns, dtype)`, ours and PyTorch's.

    `given` makes (outputs, inputs) in our kernel's order. `traffic` is how many arrays of the full
    shape it must read and write; PyTorch's function takes the inputs and gives the outputs.
    `program` is that of a row-wise operation, in as many phases as rows that are held have.
    """

    name: str
    given: Callable[[int, int, Any], tuple[list[Any], list[Any]]]
    plan: Callable[[list[Any], list[Any]], Any]
    torch: Callable[..., Any]
    traffic: int
    program: Any = None


def row_wise(
    name: str, given: Any, program: Any, theirs: Any, traffic: int, plan: Any = None
) -> Operation:
    """An operation of `rows`; `plan` where it is not just the program's."""
    chosen = plan or (lambda outputs, inputs: rows_plan.choose(program, *outputs, *inputs))
    return Operation(name, given, chosen, theirs, traffic, program)


def layer_norm_case(name: str, theirs: Any, traffic: int, **options: bool) -> Operation:
    """LayerNorm with weight and bias, in one phase where rows are taken in turns."""
    held, in_turns = (
        row_programs.norm(EPS, centred=True, bias=True, online=online, **options)
        for online in (False, True)
    )

    def plan(outputs: list[Any], inputs: list[Any]) -> Any:
        return rows_plan.choose(held, *outputs, *inputs, in_turns=in_turns)

    given = with_weights(2, residual=bool(options))
    return row_wise(name, given, held, theirs, traffic, plan)


def full(rows: int, columns: int, dtype: Any) -> Any:
    """Random normal numbers."""
    return torch.randn(rows, columns, dtype=dtype, device="cuda")


def in_and_out(rows: int, columns: int, dtype: Any) -> tuple[list[Any], list[Any]]:
    """One input, one output."""
    x = full(rows, columns, dtype)
    return [torch.empty_like(x)], [x]


def with_weights(count: int, residual: bool = False) -> Callable[..., Any]:
    """Weights of the columns as well, perhaps a residual and an output for the sum."""

    def given(rows: int, columns: int, dtype: Any) -> tuple[list[Any], list[Any]]:
        inputs = [full(rows, columns, dtype) for _ in range(1 + residual)]
        weights = [torch.randn(columns, dtype=dtype, device="cuda") for _ in range(count)]
        return [torch.empty_like(x) for x in inputs], [*inputs, *weights]

    return given


def with_labels(rows: int, columns: int, dtype: Any) -> tuple[list[Any], list[Any]]:
    """Logits and labels, some of them ignored; a loss for each row."""
    labels = torch.randint(columns, (rows,), device="cuda")
    labels[::7] = IGNORED
    return [torch.empty(rows, dtype=torch.float32, device="cuda")], [
        3 * full(rows, columns, dtype), labels,
    ]  # fmt: skip


def row_numbers(rows: int, columns: int, dtype: Any) -> tuple[list[Any], list[Any]]:
    """One output a row."""
    return [torch.empty(rows, dtype=dtype, device="cuda")], [full(rows, columns, dtype)]


def column_numbers(rows: int, columns: int, dtype: Any) -> tuple[list[Any], list[Any]]:
    """One output a column."""
    return [torch.empty(columns, dtype=dtype, device="cuda")], [full(rows, columns, dtype)]


def three_inputs(rows: int, columns: int, dtype: Any) -> tuple[list[Any], list[Any]]:
    """Three inputs of the full shape."""
    inputs = [full(rows, columns, dtype) for _ in range(3)]
    return [torch.empty_like(inputs[0])], inputs


@dataclass(frozen=True)
class Pointwise:
    """An element-wise plan with its function, as the benchmark runs plans."""

    plan: ElementwisePlan
    function: Any

    @property
    def config(self) -> Any:
        """The plan's configuration."""
        return self.plan.config

    def run(self, *operands: Any) -> None:
        """Launch."""
        self.plan.run(self.function, *operands)


class ColumnSum:
    """The sum of each column, as the benchmark runs plans."""

    config = None

    def __init__(self, outputs: list[Any], inputs: list[Any]) -> None:
        pass

    def run(self, y: Any, x: Any) -> None:
        """Launch."""
        reduce_columns("sum", x, y)


def pointwise(function: Any) -> Callable[[list[Any], list[Any]], Pointwise]:
    """Our plan of a pointwise function."""
    return lambda outputs, inputs: Pointwise(elementwise.choose(outputs, inputs), function)


def with_config(plan: Any, config: Any) -> Any:
    """The same plan with another configuration."""
    if isinstance(plan, Pointwise):
        return replace(plan, plan=replace(plan.plan, config=config))
    return replace(plan, config=config)


def ten_operators(x: Any, y: Any, z: Any) -> Any:
    """Ten pointwise operators of three operands, in kdsl's words."""
    t = x * y + z
    gated = t * kd.sigmoid(t, approx=True)
    bounded = kd.maximum(gated - 0.5 * x, 0.1 * z)
    return bounded * y + abs(x)


def ten_in_torch(x: Any, y: Any, z: Any) -> Any:
    """The same in PyTorch's."""
    t = x * y + z
    gated = t * torch.sigmoid(t)
    bounded = torch.maximum(gated - 0.5 * x, 0.1 * z)
    return bounded * y + torch.abs(x)


def add_norm(x: Any, residual: Any, weight: Any) -> Any:
    """RMSNorm of a sum, and the sum."""
    total = x + residual
    return functional.rms_norm(total, total.shape[-1:], weight, EPS), total


def add_layer_norm(x: Any, residual: Any, weight: Any, bias: Any) -> Any:
    """LayerNorm of a sum, and the sum."""
    total = x + residual
    return functional.layer_norm(total, total.shape[-1:], weight, bias, EPS), total


def losses(logits: Any, labels: Any) -> Any:
    """Cross-entropy of each row."""
    return functional.cross_entropy(logits.float(), labels, reduction="none", ignore_index=IGNORED)


def copied(x: Any) -> Any:
    """The number itself."""
    return x


OPERATIONS = {
    op.name: op
    for op in (
        row_wise("softmax", in_and_out, row_programs.softmax(fast=True),
                 lambda x: torch.softmax(x, -1), 2,
                 lambda outputs, inputs: row_ops.softmax_plan(*inputs, *outputs)),
        row_wise("log_softmax", in_and_out, row_programs.log_softmax(fast=True),
                 lambda x: torch.log_softmax(x, -1), 2,
                 lambda outputs, inputs: row_ops.log_softmax_plan(*inputs, *outputs)),
        row_wise("rms_norm", with_weights(1), row_programs.norm(EPS, centred=False),
                 lambda x, w: functional.rms_norm(x, x.shape[-1:], w, EPS), 2),
        row_wise("add_rms_norm", with_weights(1, residual=True),
                 row_programs.norm(EPS, centred=False, residual=True, total=True), add_norm, 4),
        layer_norm_case(
            "layer_norm", lambda x, w, b: functional.layer_norm(x, x.shape[-1:], w, b, EPS), 2),
        layer_norm_case("add_layer_norm", add_layer_norm, 4, residual=True, total=True),
        row_wise("cross_entropy", with_labels,
                 row_programs.cross_entropy(fast=True, ignore_index=IGNORED), losses, 1,
                 lambda outputs, inputs: row_ops.cross_entropy_plan(*inputs, *outputs, IGNORED)),
        row_wise("sum", row_numbers, row_programs.reduction("sum"), lambda x: x.sum(-1), 1),
        row_wise("max", row_numbers, row_programs.reduction("max"), lambda x: x.amax(-1), 1),
        Operation("column_sum", column_numbers, ColumnSum, lambda x: x.sum(0), 1),
        Operation("pointwise10", three_inputs, pointwise(ten_operators), ten_in_torch, 4),
        Operation("copy", in_and_out, pointwise(copied), torch.clone, 2),
    )
}  # fmt: skip
