"""What a kernel's parameters may be, as its annotations say."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.dtypes import BY_NAME, DType
from kdsl_core.errors import KdslError, StagingError
from kdsl_core.records import dataclass

_EMPTY = inspect.Parameter.empty


class Static:
    """Annotation of a trace-time argument: a hashable Python value, part of the specialisation."""


@dataclass(frozen=True)
class TensorType:
    """Annotation of a tensor argument.

    Shapes: `dims` holds a size (int) or its name for each mode; None accepts any rank.
    `dtypes` lists the element types allowed; None accepts any; `like` names the argument whose
    type it must have.
    """

    dtypes: tuple[DType, ...] | None = None
    dims: tuple[str | int, ...] | None = None
    like: str | None = None

    @classmethod
    def parse(cls, item: Any) -> TensorType:
        """The meaning of what stands in `kd.Tensor[…]`.

        Raises: StagingError K341 for an unknown type, K342 for a bad list of sizes.
        """
        spelled, dims = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
        modes = None if dims is None else _modes(dims)
        if isinstance(spelled, DType):
            return cls((spelled,), modes)
        if isinstance(spelled, str) and spelled.startswith("="):
            return cls(None, modes, spelled[1:].strip())
        if spelled == "*":
            return cls(None, modes)
        words = [word.strip() for word in spelled.split("|")] if isinstance(spelled, str) else []
        if not words or any(word not in BY_NAME for word in words):
            raise StagingError(
                f"{spelled!r} names no element type",
                code="K341",
                fix='write kd.Tensor["f16|bf16", "m n"], kd.Tensor["=x", "m n"] or kd.Tensor',
            )
        return cls(tuple(BY_NAME[word] for word in words), modes)

    def __str__(self) -> str:
        kinds = "any type" if self.dtypes is None else "|".join(map(str, self.dtypes))
        kinds = f"the type of {self.like}" if self.like else kinds
        return kinds if self.dims is None else f"{kinds} ({', '.join(map(str, self.dims))})"


def _modes(dims: Any) -> tuple[str | int, ...]:
    words = dims.split() if isinstance(dims, str) else list(dims)
    modes: list[str | int] = []
    for word in words:
        text = str(word)
        if text.isdigit():
            modes.append(int(text))
        elif text.isidentifier():
            modes.append(text)
        else:
            raise StagingError(
                f"{dims!r} is no list of sizes: {text!r} is neither a name nor a number",
                code="K342",
                fix='separate names and numbers by spaces: "m n", "m 128"',
            )
    return tuple(modes)


class _FrontPage:
    """`kd` inside an annotation: `kd.Tensor[…]` needs nothing of what tensors can do."""

    class Tensor:
        """Stands for `kd.Tensor`, whose module knows the instructions of memory."""

        __class_getitem__ = staticmethod(TensorType.parse)

    def __init__(self, page: ModuleType) -> None:
        self._page = page

    def __getattr__(self, name: str) -> Any:
        return getattr(self._page, name)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: `kind` is "tensor", "scalar" or "static"."""

    name: str
    kind: str
    tensor: TensorType = TensorType()
    dtype: DType = dt.f32
    default: Any = _EMPTY
    variadic: bool = False
    keyword: bool = False


class Signature:
    """The parameters of a kernel in order, and how a call's arguments meet them."""

    def __init__(self, function: FunctionType, name: str | None = None) -> None:
        self.name = name or function.__name__
        lookup = _lookup(function)
        found = inspect.signature(function).parameters.values()
        try:
            self.parameters = tuple(_parameter(p, lookup, function) for p in found)
        except KdslError as error:
            from kdsl_core.loc import Loc  # not needed where there are no errors

            error.loc = error.loc or Loc(((function.__code__, 0),))
            raise
        self.by_name = {p.name: p for p in self.parameters}


def _parameter(
    p: inspect.Parameter, lookup: Callable[[Any], Any], function: FunctionType
) -> Parameter:
    if p.kind is inspect.Parameter.VAR_KEYWORD:
        raise _not_understood(function, p.name, "**keywords")
    try:
        annotation = lookup(p.annotation)
    except NameError as problem:
        raise _not_understood(function, p.name, f"{p.annotation!r} ({problem})") from problem
    common: dict[str, Any] = {
        "name": p.name,
        "default": p.default,
        "variadic": p.kind is inspect.Parameter.VAR_POSITIONAL,
        "keyword": p.kind is inspect.Parameter.KEYWORD_ONLY,
    }
    if annotation is Static:
        return Parameter(kind="static", **common)
    if isinstance(annotation, DType):
        return Parameter(kind="scalar", dtype=annotation, **common)
    if isinstance(annotation, TensorType):
        return Parameter(kind="tensor", tensor=annotation, **common)
    if annotation is _EMPTY or getattr(annotation, "__name__", "") == "Tensor":
        return Parameter(kind="tensor", **common)
    raise _not_understood(function, p.name, repr(annotation))


def _not_understood(function: FunctionType, name: str, annotation: str) -> StagingError:
    return StagingError(
        f"{function.__qualname__}: the parameter {name} is annotated {annotation}, which is no "
        "kind of kernel argument",
        code="K343",
        fix='annotate with kd.Tensor["f32", "m n"], a number type such as kd.f32, or kd.Static',
    )


def _lookup(function: FunctionType) -> Callable[[Any], Any]:
    """Evaluates an annotation that `from __future__ import annotations` left as text."""
    page = sys.modules["kdsl_core"]
    names: dict[str, Any] = {
        name: _FrontPage(page) for name, v in function.__globals__.items() if v is page
    }
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            names[name] = cell.cell_contents
        except ValueError:
            continue

    def lookup(annotation: Any) -> Any:
        if not isinstance(annotation, str):
            return annotation
        return eval(annotation, function.__globals__, names)

    return lookup
