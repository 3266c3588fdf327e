"""From a kernel function and classes of arguments to IR: parameters, tensors, and the trace."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.authors import chains_kept
from kdsl_core.dtypes import DType
from kdsl_core.errors import KdslError, StagingError
from kdsl_core.ir import Kernel, Param, Target, Value
from kdsl_core.lang.arguments import Bound
from kdsl_core.lang.functions import Staged
from kdsl_core.lang.parameter_values import MapEvaluator, Origin, values_of
from kdsl_core.lang.regions import KERNEL_WHILES, Retrace
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.signature import Parameter, Signature
from kdsl_core.lang.specialisation import Specialisation
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.tensor_class import TensorClass
from kdsl_core.lang.tracer import Tracer, tracing
from kdsl_core.layout import Layout
from kdsl_core.loc import Loc, raised_at
from kdsl_core.records import dataclass

_MOST_RETRACES = 64


@dataclass(eq=False)
class Traced:
    """A traced kernel, where its parameters' values come from, and what was built of it.

    `modules` holds PTX by target; `maps` computes the tensor maps, which are the last parameters,
    from the others.
    """

    kernel: Kernel
    specialisation: Specialisation
    origins: list[Origin] = field(default_factory=list)
    modules: dict[Any, Any] = field(default_factory=dict)
    maps: list[MapEvaluator] = field(default_factory=list)

    def values(self, bound: Bound, addresses: Mapping[str, int] | None = None) -> list[Any]:
        """The parameters' values for a call: numbers, then `ir.TensorMap`s.

        `addresses` says where the arrays are for the simulator.
        Raises: ArgumentError K630 … K635 for arrays that the TMA unit cannot describe.
        """
        return values_of(self.origins, self.maps, bound, addresses)

    def add_maps(self) -> None:
        """Note the tensor maps that the trace asked for."""
        params = self.kernel.params
        for param in params[len(self.origins) :]:
            assert param.map is not None
            self.origins.append(("tensor_map",))
            self.maps.append(MapEvaluator(param.map, params))


def trace(
    staged: Staged,
    signature: Signature,
    needed: Specialisation,
    *,
    target: Target | None = None,
    min_blocks_per_sm: int | None = None,
) -> Traced:
    """Trace a kernel in one specialisation."""
    classes, items, block, cluster, _ = needed
    statics = {name: value for name, _, value in items}
    whiles: set[str] = set()
    for _ in range(_MOST_RETRACES):
        kernel = Kernel(
            signature.name, block, cluster_dim=cluster, min_blocks_per_sm=min_blocks_per_sm
        )
        traced = Traced(kernel, needed)
        tracer = Tracer(kernel, target, {KERNEL_WHILES: whiles})
        try:
            with tracing(tracer), chains_kept():
                __kdsl_trace_root__(traced, staged, signature, classes, statics)
        except Retrace as again:
            whiles.add(again.site)
            continue
        traced.add_maps()
        return traced
    raise StagingError(
        f"{signature.name} has more than {_MOST_RETRACES} `while` loops whose tests become values "
        "of the kernel late",
        code="K344",
        loc=location_of(staged),
        fix="start the loops' variables with kernel values",
    )


def __kdsl_trace_root__(
    traced: Traced,
    staged: Staged,
    signature: Signature,
    classes: Sequence[TensorClass],
    statics: dict[str, Any],
) -> None:
    """Locations end here: what called the kernel is not part of it."""
    tensors = _tensors(traced, classes, {*signature.by_name, *(item.name for item in classes)})
    args, kwargs = _arguments(traced, signature, tensors, statics)
    try:
        staged(*args, **kwargs)
    except RecursionError as problem:
        raise StagingError(
            f"{staged.function.__qualname__} calls itself without an end that Python can decide",
            code="K345",
            loc=location_of(staged),
            fix="recurse on Python values only; use a loop for values of the kernel",
        ) from problem
    except KdslError as error:  # layouts and atoms know nothing of kernels and their lines
        error.loc = error.loc or raised_at(error.__traceback__)
        raise


def _parameter(
    traced: Traced, name: str, dtype: DType, origin: Origin, tensor: Any = None
) -> Value:
    value = Value(dtype, None, name)
    traced.kernel.params.append(Param(name, value, tensor))
    traced.origins.append(origin)
    return value


def _tensors(
    traced: Traced, classes: Sequence[TensorClass], arguments: Collection[str]
) -> dict[str, Tensor]:
    """The tensor arguments; sizes of one name share a parameter, which is none of `arguments`."""
    sizes: dict[str, Scalar] = {}
    tensors = {}
    for item in classes:
        pointer = _parameter(
            traced, item.name, dt.u64, ("pointer", item.name), (item.name, item.dtype)
        )
        shape = tuple(
            _size(traced, item, mode, sizes, arguments) for mode in range(len(item.sizes))
        )
        strides = tuple(_stride(traced, item, mode) for mode in range(len(item.strides)))
        tensors[item.name] = Tensor.from_pointer(
            pointer, Layout(shape, strides), item.dtype, align=item.align, name=item.name
        )
    return tensors


def _size(
    traced: Traced,
    item: TensorClass,
    mode: int,
    sizes: dict[str, Scalar],
    arguments: Collection[str],
) -> Any:
    name, number = item.sizes[mode]
    if not name:
        return number
    if name not in sizes:
        dtype = dt.i64 if item.long[mode] else dt.i32
        own = f"{item.name}_size{mode}" if name in arguments else name
        value = _parameter(traced, own, dtype, ("size", item.name, mode))
        sizes[name] = Scalar(value, divisor=number, nonneg=True)
    return sizes[name]


def _stride(traced: Traced, item: TensorClass, mode: int) -> Any:
    kind, number = item.strides[mode]
    if not kind:
        return number
    dtype = dt.i64 if item.wide else dt.i32
    name = f"{item.name}_stride{mode}"
    value = _parameter(traced, name, dtype, ("stride", item.name, mode))
    return Scalar(value, divisor=number, nonneg=kind == "+")


def _arguments(
    traced: Traced, signature: Signature, tensors: dict[str, Tensor], statics: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter in signature.parameters:
        if parameter.variadic:
            prefix = f"{parameter.name}_"
            args += [t for name, t in tensors.items() if name.startswith(prefix)]
            continue
        if parameter.kind == "static":
            value = statics[parameter.name]
        elif parameter.kind == "scalar":
            value = _scalar(traced, parameter)
        else:
            value = tensors[parameter.name]
        if parameter.keyword:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    return args, kwargs


def _scalar(traced: Traced, parameter: Parameter) -> Scalar:
    """A number; a truth value travels as a byte, for PTX has no predicate parameters."""
    truth = parameter.dtype is dt.boolean
    dtype = dt.u8 if truth else parameter.dtype
    value = _parameter(traced, parameter.name, dtype, ("scalar", parameter.name))
    return Scalar(value).to(dt.u32) != 0 if truth else Scalar(value)


def location_of(staged: Staged) -> Loc:
    """The line of a kernel's definition."""
    return Loc(((staged.function.__code__, 0),))
