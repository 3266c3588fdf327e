"""Arrays that record what is done with them."""

from __future__ import annotations

import numbers
from typing import Any, NoReturn

import numpy as np

from kdsl_core.dtypes import DType, boolean, dtype_of
from kdsl_core.errors import FusionError
from kdsl_core.loc import Loc
from kdsl_fuse import arrays
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.origin import author_loc
from kdsl_fuse.strided import Shape, row_major


class Trace:
    """One run of the author's function on traced arrays: the graph and the constants it met."""

    def __init__(self, name: str) -> None:
        self.graph = Graph(name)
        self._constants: dict[int, Node] = {}
        self._kept: list[Any] = []  # arrays that were met, so that their ids stay theirs

    def lift(self, value: Any, partner: DType | None, loc: Loc | None) -> Node:
        """The node that stands for an operand: a traced array, an array held, or a number.

        A Python number takes the dtype of the array it meets.
        """
        if isinstance(value, TracedArray):
            return value.node
        if isinstance(value, bool | numbers.Real) and not _is_typed(value):
            return self._number(value, partner, loc)
        if id(value) in self._constants:
            return self._constants[id(value)]
        spec = arrays.spec_of(value) if arrays.library(value) else None
        if spec is None:
            raise FusionError(
                f"an operand must be an array or a number, got {type(value).__name__}",
                code="K906",
                loc=loc,
                fix="pass arrays; compute other values before the call",
            )
        if spec.shape == ():
            return self.graph.constant(value.item(), (), spec.dtype, loc=loc)
        held, strides = value, spec.strides
        if arrays.library(value) == "numpy":  # what other libraries make of it is row-major too
            held, strides = np.ascontiguousarray(value), row_major(spec.shape)
        node = self.graph.constant(held, spec.shape, spec.dtype, strides=strides, loc=loc)
        self._constants[id(value)] = node
        self._kept.append(value)
        return node

    def _number(self, value: Any, partner: DType | None, loc: Loc | None) -> Node:
        if partner is None:
            raise _unfit(f"the number {value} meets no array whose dtype it could take", loc)
        if partner.is_float:
            return self.graph.constant(float(value), (), partner, loc=loc)
        if partner is boolean and isinstance(value, bool):
            return self.graph.constant(value, (), partner, loc=loc)
        if partner is boolean or not isinstance(value, numbers.Integral):
            raise _unfit(f"the number {value} does not fit an array of {partner}", loc)
        limits = np.iinfo(partner.numpy)
        if not limits.min <= int(value) <= limits.max:
            raise _unfit(f"{value} lies outside {partner}: {limits.min} to {limits.max}", loc)
        return self.graph.constant(int(value), (), partner, loc=loc)


def _unfit(message: str, loc: Loc | None) -> FusionError:
    fix = "cast the array to the dtype meant: kf.cast(x, 'f32')"
    return FusionError(message, code="K916", loc=loc, fix=fix)


def _is_typed(value: Any) -> bool:
    """NumPy's scalars keep their dtype, but np.float64 is a Python float and adapts like one."""
    return isinstance(value, np.generic) and not isinstance(value, np.float64)


def apply(name: str, *operands: Any, **attrs: Any) -> TracedArray:
    """Record an operator on operands of which at least one is traced.

    Raises: FusionError K920 outside a fused function; the operator's own errors.
    """
    loc = author_loc()
    trace = next((x.trace for x in operands if isinstance(x, TracedArray)), None)
    if trace is None:
        kinds = ", ".join(type(x).__name__ for x in operands)
        raise FusionError(
            f"{name} records array operations of a fused function, got {kinds}",
            code="K920",
            loc=loc,
            fix="call it inside a function decorated with @kf.fuse",
        )
    values = operands[_CONDITIONS.get(name, 0) :]
    partner = next((dtype for x in values if (dtype := _dtype(x)) is not None), None)
    nodes = [
        trace.lift(x, boolean if x is operands[0] and name in _CONDITIONS else partner, loc)
        for x in operands
    ]
    return TracedArray(trace, trace.graph.add(name, *nodes, loc=loc, **attrs))


_CONDITIONS = {"Where": 1}  # operators whose first operand is a condition, no number


def _dtype(value: Any) -> DType | None:
    if isinstance(value, TracedArray):
        return value.dtype
    spec = arrays.spec_of(value) if arrays.library(value) else None
    return None if spec is None or isinstance(value, np.float64) else spec.dtype


# The ufuncs that NumPy calls for an operator with its own array on the left.
_OPERATORS = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "matmul": "MatMul",
    "equal": "Equal",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "bitwise_and": "And",
    "bitwise_or": "Or",
    "bitwise_xor": "Xor",
}


class TracedArray:
    """A value of the graph that is being recorded; behaves like an array without numbers."""

    __slots__ = ("node", "trace")
    __hash__ = None  # type: ignore[assignment]  # == compares elements, as in NumPy

    def __init__(self, trace: Trace, node: Node) -> None:
        self.trace = trace
        self.node = node

    @property
    def shape(self) -> Shape:
        """The sizes of the axes."""
        return self.node.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.node.rank

    @property
    def dtype(self) -> DType:
        """The numeric type."""
        return self.node.dtype

    @property
    def T(self) -> TracedArray:
        """The axes in reverse order: a view, never a copy."""
        return apply("Transpose", self, perm=tuple(range(self.ndim))[::-1])

    def __repr__(self) -> str:
        return f"<traced {self.node}>"

    def astype(self, dtype: Any) -> TracedArray:
        """Round to `dtype` here: one of the stated casts of the function."""
        return apply("Cast", self, to=dtype_of(dtype).name)

    to = astype

    def __add__(self, other: Any) -> TracedArray:
        return apply("Add", self, other)

    def __radd__(self, other: Any) -> TracedArray:
        return apply("Add", other, self)

    def __sub__(self, other: Any) -> TracedArray:
        return apply("Sub", self, other)

    def __rsub__(self, other: Any) -> TracedArray:
        return apply("Sub", other, self)

    def __mul__(self, other: Any) -> TracedArray:
        return apply("Mul", self, other)

    def __rmul__(self, other: Any) -> TracedArray:
        return apply("Mul", other, self)

    def __truediv__(self, other: Any) -> TracedArray:
        return apply("Div", self, other)

    def __rtruediv__(self, other: Any) -> TracedArray:
        return apply("Div", other, self)

    def __matmul__(self, other: Any) -> TracedArray:
        return apply("MatMul", self, other)

    def __rmatmul__(self, other: Any) -> TracedArray:
        return apply("MatMul", other, self)

    def __pow__(self, exponent: Any) -> TracedArray:
        whole = isinstance(exponent, numbers.Integral)
        return apply("Pow", self, exponent=int(exponent) if whole else exponent)

    def __neg__(self) -> TracedArray:
        return apply("Neg", self)

    def __abs__(self) -> TracedArray:
        return apply("Abs", self)

    def __eq__(self, other: Any) -> TracedArray:  # type: ignore[override]  # as in NumPy
        return apply("Equal", self, other)

    def __ne__(self, other: Any) -> TracedArray:  # type: ignore[override]  # as in NumPy
        return apply("Not", apply("Equal", self, other))

    def __lt__(self, other: Any) -> TracedArray:
        return apply("Less", self, other)

    def __le__(self, other: Any) -> TracedArray:
        return apply("LessOrEqual", self, other)

    def __gt__(self, other: Any) -> TracedArray:
        return apply("Greater", self, other)

    def __ge__(self, other: Any) -> TracedArray:
        return apply("GreaterOrEqual", self, other)

    def __and__(self, other: Any) -> TracedArray:
        return apply("And", self, other)

    def __rand__(self, other: Any) -> TracedArray:
        return apply("And", other, self)

    def __or__(self, other: Any) -> TracedArray:
        return apply("Or", self, other)

    def __ror__(self, other: Any) -> TracedArray:
        return apply("Or", other, self)

    def __xor__(self, other: Any) -> TracedArray:
        return apply("Xor", self, other)

    def __rxor__(self, other: Any) -> TracedArray:
        return apply("Xor", other, self)

    def __invert__(self) -> TracedArray:
        return apply("Not", self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        name = _OPERATORS.get(ufunc.__name__)
        if name and method == "__call__" and not options:
            return apply(name, *inputs)
        if ufunc.__name__ == "not_equal" and method == "__call__" and not options:
            return inputs[1] != inputs[0]
        return self._refuse(
            f"numpy.{ufunc.__name__} on it", f"write kf.{ufunc.__name__}, if kf has it"
        )

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        self._refuse(f"numpy.{function.__name__} on it", "use kf.* functions and operators")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("turning it into a NumPy array", "use kf.* functions; NumPy needs the numbers")

    def __bool__(self) -> NoReturn:
        self._refuse(
            "deciding `if`, `while`, `and`, `or` or `not` by it",
            "kf.where(condition, a, b) chooses element by element; & | ~ combine conditions",
        )

    def __iter__(self) -> NoReturn:
        self._refuse("iterating over it", "apply the operation to the whole array")

    def __len__(self) -> int:
        return self.shape[0] if self.shape else self._refuse("len of a 0-d array", "use x.shape")

    def __getitem__(self, key: Any) -> TracedArray:
        from kdsl_fuse.frontends.functions_of_shapes import index

        return index(self, key)

    def reshape(self, *shape: Any) -> TracedArray:
        """The same elements in row-major order with other sizes."""
        from kdsl_fuse.frontends.functions_of_shapes import reshape

        return reshape(self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> TracedArray:
        """The axes in another order, reversed when none is given."""
        from kdsl_fuse.frontends.functions_of_shapes import transpose

        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return transpose(self, given or None)

    def __setitem__(self, *_: Any) -> NoReturn:
        self._refuse("assigning to its items", "build a new array: kf.where(mask, new, x)")

    def __float__(self) -> NoReturn:
        self._refuse("turning it into a Python number", "pass the number as its own argument")

    __int__ = __index__ = __complex__ = __float__

    def __rpow__(self, other: Any) -> NoReturn:
        self._refuse(f"{other!r} ** it", "kf.exp(x * math.log(base))")

    def __floordiv__(self, _: Any) -> NoReturn:
        self._refuse("// and %", "divide with /, then kf.cast")

    __rfloordiv__ = __mod__ = __rmod__ = __divmod__ = __floordiv__

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        self._refuse(f".{name}", "use operators, .T, .astype, .shape, .dtype and kf.* functions")

    def _refuse(self, what: str, fix: str) -> NoReturn:
        raise FusionError(
            f"a traced array has no numbers yet: {what} is not supported",
            code="K905",
            loc=author_loc(),
            notes=[self.node.note()],
            fix=fix,
        )
