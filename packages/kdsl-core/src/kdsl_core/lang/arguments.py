"""A call's arguments: bound to parameters, checked, and sorted into classes that share code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kdsl_core import dtypes as dt
from kdsl_core.dtypes import DType, dtype_of
from kdsl_core.errors import ArgumentError
from kdsl_core.lang.host import runtime
from kdsl_core.lang.signature import Parameter, Signature, TensorType
from kdsl_core.lang.spec import ArraySpec
from kdsl_core.lang.tensor_class import TensorClass
from kdsl_core.records import dataclass

if TYPE_CHECKING:
    from kdsl_core.layout import SymInt

_EMPTY = Parameter("", "static").default
_WIDEST_BYTES = 16
_LARGEST_I32 = 2**31 - 1


class ArrayFacts(Protocol):
    """What is known of an array argument; strides in elements."""

    @property
    def pointer(self) -> int:
        """Address of element 0."""

    @property
    def dtype(self) -> DType:
        """Element type."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Steps, in elements."""

    @property
    def device(self) -> tuple[str, int]:
        """("cpu", 0), ("cuda", index) or ("spec", 0)."""

    @property
    def owner(self) -> Any:
        """What keeps the memory alive."""


@dataclass(frozen=True)
class Bound:
    """Arguments by name: arrays with their facts, run-time numbers, and trace-time values."""

    arrays: dict[str, ArrayFacts]
    scalars: dict[str, Any]
    statics: dict[str, Any]


def bind(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    """The arguments of a call, by kind; variadic tensors are numbered.

    Raises: ArgumentError K603 (missing or unknown), K604 and on where a value does not fit.
    """
    given = by_name(signature, list(args), dict(kwargs))
    bound = Bound({}, {}, {})
    for parameter in signature.parameters:
        value = given[parameter.name]
        if parameter.kind == "static":
            bound.statics[parameter.name] = _hashable(parameter.name, value)
        elif parameter.kind == "scalar":
            bound.scalars[parameter.name] = _number(parameter, value)
        elif parameter.variadic:
            for i, item in enumerate(value):
                bound.arrays[f"{parameter.name}_{i}"] = facts_of(item, f"{parameter.name}[{i}]")
        else:
            bound.arrays[parameter.name] = facts_of(value, parameter.name)
    return bound


def by_name(signature: Signature, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What each parameter gets: an argument, a tuple of those that are left, or its default.

    Raises: ArgumentError K603 for one that is missing, unknown or given twice.
    """
    given: dict[str, Any] = {}
    for parameter in signature.parameters:
        if parameter.variadic:
            given[parameter.name], args = tuple(args), []
        elif args and not parameter.keyword:
            given[parameter.name] = args.pop(0)
        elif parameter.name in kwargs:
            given[parameter.name] = kwargs.pop(parameter.name)
        elif parameter.default is not _EMPTY:
            given[parameter.name] = parameter.default
        else:
            raise _wrong_call(signature, f"{parameter.name} is missing")
    if args or kwargs:
        extra = [*map(repr, args), *kwargs][0]
        raise _wrong_call(signature, f"{extra[:60]} is one too many or given twice")
    return given


def _wrong_call(signature: Signature, what: str) -> ArgumentError:
    names = ", ".join(("*" if p.variadic else "") + p.name for p in signature.parameters)
    return ArgumentError(
        f"{signature.name}: {what}",
        code="K603",
        fix=f"call it as {signature.name}[grid, block]({names})",
    )


def wrong_arrays(kernel: str, bound: Mapping[str, Any], arrays: Sequence[Any]) -> ArgumentError:
    """The error of a bound launch that is given other arrays than those it was bound with."""
    kinds = ", ".join(type(array).__name__ for array in arrays)
    listed = ", ".join(f"{n}: {f.dtype} {f.shape}" for n, f in bound.items())
    return ArgumentError(
        f"{kernel} was bound for the arrays ({listed}), got ({kinds})",
        code="K624",
        fix="pass arrays of these types, shapes and strides by position, or call the kernel itself",
    )


def facts_of(value: Any, name: str) -> ArrayFacts:
    """What is known of an array or of a spec; NumPy arrays need no runtime.

    Raises: ArgumentError K604 when it is no array, K650 and on from the runtime.
    """
    if isinstance(value, ArraySpec):
        return value
    if isinstance(value, np.ndarray):
        return _numpy_facts(value, name)
    if value is None or isinstance(value, (int, float, str, tuple, list, dict)):
        raise ArgumentError(
            f"{name}: expected an array, got {type(value).__name__} {repr(value)[:60]}",
            code="K604",
            fix="pass an array; numbers need an annotation such as kd.f32 or kd.Static",
        )
    facts: ArrayFacts = runtime(f"the argument {name} of type {type(value).__name__}").describe(
        value, name
    )
    return facts


def _numpy_facts(array: np.ndarray[Any, Any], name: str) -> ArrayFacts:
    item = array.itemsize
    if any(step % item for step in array.strides):
        raise ArgumentError(
            f"{name}: strides of {array.strides} bytes are no whole number of elements of {item} "
            "bytes",
            code="K605",
            fix="pass a contiguous copy",
        )
    steps = tuple(step // item for step in array.strides)
    return ArraySpec(
        dtype_of(array.dtype), array.shape, steps, array.ctypes.data, ("cpu", 0), array
    )


def _hashable(name: str, value: Any) -> Any:
    try:
        hash(value)
    except TypeError as problem:
        raise ArgumentError(
            f"{name}: a kd.Static argument is part of the specialisation and must be hashable, got "
            f"{type(value).__name__} {repr(value)[:60]}",
            code="K606",
            fix="pass a tuple instead of a list, a frozen dataclass instead of a dict",
        ) from problem
    return value


def _number(parameter: Parameter, value: Any) -> Any:
    number = value.item() if isinstance(value, np.generic) else value
    dtype = parameter.dtype
    if isinstance(number, bool):
        fits = dtype is dt.boolean
    elif isinstance(number, int):
        fits = dtype.is_float or (
            dtype.is_int and dt_range(dtype)[0] <= number <= dt_range(dtype)[1]
        )
    else:
        fits = isinstance(number, float) and dtype.is_float
    if not fits:
        raise ArgumentError(
            f"{parameter.name}: expected a number that fits {dtype}, got "
            f"{type(value).__name__} {repr(value)[:60]}",
            code="K607",
            fix="convert it before the call",
        )
    return float(number) if dtype.is_float else number


def dt_range(dtype: DType) -> tuple[int, int]:
    """The least and the largest value of an integer type."""
    if dtype.kind == "i":
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


# -- checks and classes ------------------------------------------------------------------------
def classify(signature: Signature, arrays: Mapping[str, ArrayFacts]) -> tuple[TensorClass, ...]:
    """The classes of the tensor arguments, once every check of the signature has passed.

    Raises: ArgumentError K608 (dtype), K609 (rank), K610 (fixed size), K611 (names that differ),
    K612 (alignment).
    """
    sizes: dict[str, tuple[str, int]] = {}
    smallest = min((facts.dtype.bytes for facts in arrays.values()), default=1)
    classes = []
    for name, facts in arrays.items():
        kind = _type_of(signature, name)
        _check_dtype(name, facts, kind, arrays)
        _check_sizes(name, facts, kind, sizes)
        classes.append(_class(name, facts, kind, smallest))
    return tuple(classes)


def _type_of(signature: Signature, name: str) -> TensorType:
    parameter = signature.by_name.get(name) or signature.by_name[name.rpartition("_")[0]]
    return parameter.tensor


def _check_dtype(
    name: str, facts: ArrayFacts, kind: TensorType, arrays: Mapping[str, ArrayFacts]
) -> None:
    wanted = kind.dtypes
    why = ""
    if kind.like is not None:
        if kind.like not in arrays:
            raise ArgumentError(
                f"{name}: its type is that of {kind.like!r}, which is no tensor argument",
                code="K613",
                fix="name another tensor parameter after the =",
            )
        wanted, why = (arrays[kind.like].dtype,), f", as {kind.like}"
    if wanted is not None and facts.dtype not in wanted:
        raise ArgumentError(
            f"{name}: expected elements of type {' or '.join(map(str, wanted))}{why}, got "
            f"{facts.dtype}",
            code="K608",
            fix="convert the array before the call",
        )
    if facts.pointer % facts.dtype.bytes:
        raise ArgumentError(
            f"{name}: its address {facts.pointer:#x} is no multiple of its elements' "
            f"{facts.dtype.bytes} bytes",
            code="K612",
            fix="pass an aligned copy",
        )


def _check_sizes(
    name: str, facts: ArrayFacts, kind: TensorType, sizes: dict[str, tuple[str, int]]
) -> None:
    if kind.dims is None:
        return
    if len(kind.dims) != len(facts.shape):
        raise ArgumentError(
            f"{name}: expected {len(kind.dims)} modes {kind.dims}, got shape {facts.shape}",
            code="K609",
            fix="reshape the array before the call",
        )
    for dim, size in zip(kind.dims, facts.shape, strict=True):
        if isinstance(dim, int):
            if dim != size:
                raise ArgumentError(
                    f"{name}: expected the sizes {kind.dims}, got {facts.shape}",
                    code="K610",
                    fix=f"the size {dim} is fixed by the kernel's signature",
                )
        elif dim != "_" and sizes.setdefault(dim, (name, size))[1] != size:
            first, other = sizes[dim]
            raise ArgumentError(
                f"{dim} is {other} in {first} and {size} in {name} of shape {facts.shape}",
                code="K611",
                fix="sizes of one name must be equal in all arguments",
            )


def _class(name: str, facts: ArrayFacts, kind: TensorType, smallest: int) -> TensorClass:
    dims = kind.dims or tuple("_" for _ in facts.shape)
    cap = _WIDEST_BYTES // facts.dtype.bytes or 1
    sizes = tuple(
        ("", dim)
        if isinstance(dim, int)
        else (f"{name}_size{i}" if dim == "_" else dim, _divisor(n, _WIDEST_BYTES // smallest or 1))
        for i, (dim, n) in enumerate(zip(dims, facts.shape, strict=True))
    )
    strides = tuple(_stride(step, cap) for step in facts.strides)
    return TensorClass(
        name,
        facts.dtype,
        sizes,
        strides,
        _divisor(facts.pointer, _WIDEST_BYTES),
        _reaches_far(facts),
        tuple(isinstance(n, int) and n > _LARGEST_I32 for n in facts.shape),
    )


def _reaches_far(facts: ArrayFacts) -> bool:
    """Whether offsets may need 64 bits: so when a symbolic size leaves it open."""
    if not all(isinstance(n, int) for n in (*facts.shape, *facts.strides)):
        return True
    pairs = zip(facts.shape, facts.strides, strict=True)
    return sum((n - 1) * abs(step) for n, step in pairs if n) > _LARGEST_I32


def _stride(step: int | SymInt, cap: int) -> tuple[str, int]:
    if isinstance(step, int) and step in (0, 1):
        return "", step
    return ("+" if step > 0 else "-"), _divisor(step, cap)


def _divisor(n: int | SymInt, cap: int) -> int:
    """The largest power of two up to `cap` that is known to divide n."""
    return math.gcd(n if isinstance(n, int) else n.divisible_by, cap)
