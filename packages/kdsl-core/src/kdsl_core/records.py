"""`dataclass` for kdsl's own classes: what Python's gives, made in a sixth of the time.

Python's writes and compiles six methods for each frozen class, which takes half a millisecond or
more. A process that finds its kernel in the cache makes forty such classes before its first launch,
and one that compiles it 120. Here only `__init__` is written for each class, the others are shared.

Differences: nobody may set any attribute of an instance, also of a subclass that is no dataclass;
`dataclasses` takes the class for one that is not frozen, so all of a family are made here; and
`order`, `unsafe_hash` and `InitVar` are not to be had.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # type checkers know what it does
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, kw_only=False, slots=False):
        """`dataclasses.dataclass`; only frozen classes without slots are made in another way."""

        def made(cls):
            if frozen and not slots:
                return _frozen(cls, eq=eq, shown=repr, kw_only=kw_only)
            options = {"frozen": frozen, "eq": eq, "repr": repr, "kw_only": kw_only, "slots": slots}
            return dataclasses.dataclass(**options)(cls)

        return made if cls is None else made(cls)


def _frozen(cls: type[Any], *, eq: bool, shown: bool, kw_only: bool) -> type[Any]:
    made = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    fields = dataclasses.fields(made)
    methods: dict[str, Any] = {
        "__init__": _init(made, fields),
        "__setattr__": _refuse_to_set,
        "__delattr__": _refuse_to_delete,
    }
    if shown:
        methods["__repr__"] = _repr
    if eq:
        methods["__eq__"], methods["__hash__"] = _comparison(fields)
    own = dict(vars(made))
    for name, method in methods.items():
        if own.get(name) is None:  # as is `__hash__` of a class with an `__eq__` of its own
            setattr(made, name, method)
    return made


def _init(made: type[Any], fields: Sequence[dataclasses.Field[Any]]) -> Callable[..., None]:
    """`__init__`, compiled from a text as Python's own is."""
    held: dict[str, Any] = {"_set": object.__setattr__, "_missing": dataclasses.MISSING}
    parameters = {False: ["self"], True: ["*"]}
    body = []
    for field in fields:
        if not field.init:
            raise TypeError(f"{made.__qualname__}.{field.name}: a frozen class sets every field")
        name = value = field.name
        default = ""
        if field.default_factory is not dataclasses.MISSING:
            held[f"_make_{name}"] = field.default_factory
            value, default = f"_make_{name}() if {name} is _missing else {name}", "=_missing"
        elif field.default is not dataclasses.MISSING:
            held[f"_default_{name}"] = field.default
            default = f"=_default_{name}"
        parameters[bool(field.kw_only)].append(f"{name}{default}")
        body.append(f"_set(self, {name!r}, {value})")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    given = [*parameters[False], *(parameters[True] if len(parameters[True]) > 1 else [])]
    space: dict[str, Any] = {"__name__": made.__module__}
    exec(
        f"def make({', '.join(held)}):\n def __init__({', '.join(given)}):\n  "
        + ("\n  ".join(body) or "pass")
        + "\n return __init__",
        space,
    )
    written: Callable[..., None] = space["make"](**held)
    written.__qualname__ = f"{made.__qualname__}.__init__"
    return written


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
