"""Tensor maps whose sizes and strides are parameters times constants, as JSON.

Most maps are: strides are rows of an array in bytes. Such a map needs none of the instructions that
`map_json` knows, so a process that finds its kernels built need not import them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from kdsl_core import ir
from kdsl_core.dtypes import BY_NAME, DType, i32, i64, u32, u64
from kdsl_core.ir.tensor_map import Im2col, MapShape, TensorMapSpec
from kdsl_core.lang.parameter_values import ProductMap, Term

if TYPE_CHECKING:
    from kdsl_core.ir import Operand, Param

_LARGEST_FACTOR = 1 << 30  # times any 32-bit number it still fits the 64 bits of the program


class Unportable(Exception):
    """A program with an instruction that has no name outside of its process."""


def product_of(spec: TensorMapSpec, params: Sequence[Param]) -> ProductMap | None:
    """The same map without a program; None where its program does more than widen and multiply."""
    known: dict[Operand, Term | None] = {p.value: (i, 1) for i, p in enumerate(params)}
    exact: set[Operand] = {p.value for p in params if p.value.dtype in (i32, u32)}

    def term(x: Operand) -> Term | None:
        return (None, int(x.value)) if isinstance(x, ir.Const) else known.get(x)

    for op in spec.program:
        step = cast("Any", op)  # an InstructionOp; its module is what is spared
        first, *rest = step.operands
        before = known.get(first) if first in exact else None
        if before is not None and all(isinstance(x, ir.Const) for x in rest):
            numbers = [int(x.value) for x in rest]
            known[step.d] = _result(step.instruction.name, before, numbers, step.d.dtype)
            exact.add(step.d)
    terms = [term(x) for x in (spec.address, *spec.sizes, *spec.strides)]
    if None in terms:
        return None
    return ProductMap(spec.shape, spec.tensor, cast("list[Term]", terms), len(spec.sizes))


def product_to_json(product: ProductMap) -> dict[str, Any]:
    """The map as JSON values."""
    return {
        "shape": shape_to_json(product.shape),
        "tensor": product.tensor,
        "terms": [list(term) for term in product.terms],
        "rank": product.rank,
    }


def product_from_json(stated: dict[str, Any]) -> ProductMap:
    """The map that `product_to_json` stated."""
    terms = [(index, factor) for index, factor in stated["terms"]]
    return ProductMap(shape_from_json(stated["shape"]), stated["tensor"], terms, stated["rank"])


def _result(name: str, before: Term, numbers: Sequence[int], dtype: DType) -> Term | None:
    """A 32-bit parameter times constants, in 64 bits; None for anything else."""
    index, factor = before
    if dtype not in (i64, u64):
        return None
    if name == "shl" and 0 <= numbers[0] < 30:
        factor <<= numbers[0]
    elif name == "mul" and numbers[0] > 0:
        factor *= numbers[0]
    elif name != "to_i64":
        return None
    return (index, factor) if factor <= _LARGEST_FACTOR else None


def shape_to_json(shape: MapShape) -> dict[str, Any]:
    """The fixed part of a map as JSON values."""
    return {**asdict(shape), "dtype": shape.dtype.name}


def shape_from_json(stated: dict[str, Any]) -> MapShape:
    """What `shape_to_json` stated."""
    fields = _with_tuples(stated)
    walk = stated["im2col"]
    fields["dtype"] = BY_NAME[stated["dtype"]]
    fields["im2col"] = None if walk is None else Im2col(**_with_tuples(walk))
    return MapShape(**fields)


def _with_tuples(stated: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in stated.items()}
