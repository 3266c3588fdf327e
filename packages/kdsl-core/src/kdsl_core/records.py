"""`dataclass` for kdsl's own classes: what Python's gives, made in a tenth of the time.

Python's writes and compiles six methods for each frozen class, which takes half a millisecond or
more. A process that finds its kernel in the cache makes forty such classes before its first launch,
and one that compiles it 120. Here all classes share their methods, and those of a number of fields
the bytecode of `__init__`, in which only names differ.

Differences: nobody may set any attribute of an instance of a frozen class, also of a subclass that
is no dataclass; `dataclasses` takes the class for one that is not frozen, so all of a family are
made here; and `order`, `unsafe_hash` and `InitVar` are not to be had.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

_NONE = dataclasses.MISSING  # no default
_MADE = object()  # the default of a parameter whose field is made when it is not given

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # type checkers know what it does
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, kw_only=False, slots=False):
        """`dataclasses.dataclass`; only classes with slots are made in another way."""

        def made(cls):
            if slots:
                options = {"eq": eq, "repr": repr, "kw_only": kw_only, "slots": True}
                return dataclasses.dataclass(frozen=frozen, **options)(cls)
            return _made(cls, frozen=frozen, eq=eq, shown=repr, kw_only=kw_only)

        return made if cls is None else made(cls)


def _made(cls: type[Any], *, frozen: bool, eq: bool, shown: bool, kw_only: bool) -> type[Any]:
    made = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    fields = dataclasses.fields(made)
    methods: dict[str, Any] = {"__init__": _init(made, fields, frozen)}
    if frozen:
        methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
    if shown:
        methods["__repr__"] = _repr
    if eq:
        methods["__eq__"], by_content = _comparison(fields)
        methods["__hash__"] = by_content if frozen else None
    own = dict(vars(made))
    for name, method in methods.items():
        if own.get(name) is None:  # as is `__hash__` of a class with an `__eq__` of its own
            setattr(made, name, method)
    return made


def _init(
    made: type[Any], fields: Sequence[dataclasses.Field[Any]], frozen: bool
) -> Callable[..., None]:
    """`__init__`: the code that all classes of so many fields share, with the names of these."""
    for field in fields:
        if not field.init:
            raise TypeError(f"{made.__qualname__}.{field.name}: __init__ sets every field")
    by_place = [field for field in fields if not field.kw_only]
    by_name = [field for field in fields if field.kw_only]
    parameters = [*by_place, *by_name]
    makers = tuple([field.default_factory is not _NONE for field in parameters])
    names = {f"p{at}": field.name for at, field in enumerate(parameters)}
    template = _template(makers, frozen, hasattr(made, "__post_init__"))
    code = template.replace(
        co_argcount=1 + len(by_place),
        co_kwonlyargcount=len(by_name),
        co_varnames=_renamed(template.co_varnames, names),
        co_names=_renamed(template.co_names, names),
        co_consts=_renamed(template.co_consts, names),
        co_qualname=f"{made.__qualname__}.__init__",
    )
    space = {"__name__": made.__module__, "_set": object.__setattr__, "_missing": _MADE}
    space |= {f"make{at}": field.default_factory for at, field in enumerate(parameters)}
    written = FunctionType(code, space)
    written.__defaults__ = tuple(_defaults(made, by_place).values())
    written.__kwdefaults__ = {f.name: _default(f) for f in by_name if _default(f) is not _NONE}
    return written


@cache
def _template(makers: tuple[bool, ...], frozen: bool, post: bool) -> CodeType:
    """The code of an `__init__` with a parameter p0, p1, … for each of `makers`.

    One that is made has `_missing` for its default, and is then made by make0, make1, ….
    """
    body = ["self.__post_init__()"] if post else ["pass"]
    for at, made in reversed([*enumerate(makers)]):
        value = f"make{at}() if p{at} is _missing else p{at}" if made else f"p{at}"
        body.insert(0, f"_set(self, 'p{at}', {value})" if frozen else f"self.p{at} = {value}")
    parameters = ", ".join(["self", *(f"p{at}" for at in range(len(makers)))])
    space: dict[str, Any] = {}
    exec(f"def __init__({parameters}):\n " + "\n ".join(body), space)
    code: CodeType = space["__init__"].__code__
    return code


def _renamed(parts: tuple[Any, ...], names: Mapping[str, str]) -> tuple[Any, ...]:
    """Parts of a code with the names of the fields."""
    return tuple([names.get(part, part) for part in parts])


def _defaults(made: type[Any], fields: Sequence[dataclasses.Field[Any]]) -> dict[str, Any]:
    """The defaults of fields that are given by their place: of the last ones."""
    found: dict[str, Any] = {}
    for field in fields:
        default = _default(field)
        if default is not _NONE:
            found[field.name] = default
        elif found:
            raise TypeError(f"{made.__qualname__}.{field.name}: without a default behind one")
    return found


def _default(field: dataclasses.Field[Any]) -> Any:
    """What stands for a field that is not given; `_NONE` when it has to be."""
    if field.default_factory is not _NONE:
        return _MADE
    return field.default


def _comparison(
    fields: Sequence[dataclasses.Field[Any]],
) -> tuple[Callable[..., Any], Callable[[Any], int]]:
    """`__eq__` and `__hash__` by the fields that are to be compared."""
    names = [field.name for field in fields if field.compare]

    def one_by_one(self: Any) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in names])

    values: Callable[[Any], Any] = attrgetter(*names) if len(names) > 1 else one_by_one

    def __eq__(self: Any, other: Any) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __eq__, __hash__


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    each = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(each)})"


def _refuse_to_set(self: Any, name: str, value: Any) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
