"""Names and digests of what a trace depends on: equal in every process where the PTX is equal.

Comments, blank lines, paths, line numbers, modules' names, hash seeds and addresses are in none.
"""

from __future__ import annotations

import dataclasses
import re
import struct
import sys
from collections.abc import Callable, Iterator
from opcode import EXTENDED_ARG, hasconst
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from kdsl_core.digests import hash256
from kdsl_core.lang.dependencies import Dependencies, Fact
from kdsl_core.lang.origins import is_library, is_library_code, is_library_module
from kdsl_core.lang.values import (
    absent,
    bytes_of,
    is_buffer,
    is_container,
    items_of,
    slots_of,
    vars_of,
)

_DIGEST_DIGITS = 32
_DEPTH_LIMIT = 40
_LOADS_CONSTANT = frozenset(hasconst)
_NUMBERS: tuple[Any, ...] = (str, bytes, int, float, complex)  # a subclass is worth one of them
_Field: type = type(vars(Fact)["path"])  # of a named tuple; the class has no name in Python


class Unstated(Exception):
    """A value whose content no digest can state; the message is the path of names to it."""


def digests(dependencies: Dependencies) -> list[tuple[str, str]]:
    """(path of names, digest) of everything that was reached, in the order of the walk.

    Raises: Unstated for a value such as a lock, a generator or another library's object.
    """
    numbers = {id(fact.value): number for number, fact in enumerate(dependencies.facts)}
    speller = _Speller(numbers, doc="__doc__" in dependencies.mentioned)
    roots = [(f"argument {i}", _hash(speller.spell(v))) for i, v in enumerate(dependencies.roots)]
    return [*roots, *((fact.path, speller.digest(fact)) for fact in dependencies.facts)]


def digest(value: Any) -> str:
    """The digest of one value, such as a description of arguments.

    Raises: Unstated.
    """
    return _hash(_Speller({}, doc=True).spell(value))


def _hash(*texts: str) -> str:
    whole = hash256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)
    return whole.hexdigest()[:_DIGEST_DIGITS]


class _Speller:
    """Values as text: things that were reached by their number, all others by content."""

    def __init__(self, numbers: dict[int, int], *, doc: bool) -> None:
        self._numbers = numbers
        self._doc = doc
        self._depth = 0

    def digest(self, fact: Fact) -> str:
        """What a thing is and what its parts are."""
        texts = [fact.kind, self._head(fact)]
        parts = [(label, self._at(f"{fact.path}{label}", part)) for label, part in fact.parts]
        if isinstance(fact.value, set | frozenset):  # their order differs between processes
            parts = sorted(("", text) for _, text in parts)
        return _hash(*texts, *(text for part in parts for text in part))

    def _head(self, fact: Fact) -> str:
        if fact.kind == "staged":
            return str(fact.value.__kdsl_staged__.meaning())
        if fact.kind == "rewritten":
            return ""  # it is the text that counts
        if isinstance(fact.value, FunctionType):
            return self._code(fact.value.__code__)
        if isinstance(fact.value, ModuleType):
            return "module"
        if isinstance(fact.value, type):
            return fact.value.__qualname__
        numbers = [base.__repr__(fact.value) for base in _NUMBERS if isinstance(fact.value, base)]
        return " ".join([type(fact.value).__qualname__, *numbers])

    def _at(self, path: str, value: Any) -> str:
        try:
            return self.spell(value)
        except Unstated as problem:
            raise Unstated(f"{path} ({problem})") from None

    def spell(self, value: Any) -> str:
        """A text that tells the value from every other."""
        number = self._numbers.get(id(value))
        if number is not None:
            return f"#{number}"
        exact = _EXACT.get(type(value))
        if exact is not None:
            return f"{type(value).__name__} {exact(value)}"
        if _is_exact_number(value):
            return f"{type(value).__name__} {value!r}"
        for kinds, spelled in _SPELLINGS:
            if isinstance(value, kinds):
                return f"{type(value).__name__} {spelled(value)}"
        self._depth += 1
        try:
            if self._depth > _DEPTH_LIMIT:
                raise Unstated("it holds itself")
            return self._composite(value)
        finally:
            self._depth -= 1

    def _composite(self, value: Any) -> str:
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return f"type {_named(value)}"
        if _is_path(value):
            return f"{type(value).__name__} {value}"
        if is_container(value):
            texts = [self.spell(item) for item in items_of(value)]
            ordered = sorted(texts) if isinstance(value, set | frozenset) else texts
            return f"{type(value).__name__} {_hash(*ordered)}"
        if is_buffer(value):
            return f"{type(value).__name__} {_buffer(value)}"
        if _is_of_library(value):
            return f"function {_named(value)}"
        if type(value).__module__.startswith("kdsl_core."):
            return self._state(value)
        raise Unstated(f"a {type(value).__module__}.{type(value).__qualname__}")

    def _function(self, function: FunctionType) -> str:
        if is_library_code(function.__code__):
            captured = [self.spell(c.cell_contents) for c in function.__closure__ or ()]
            return f"function {_named(function)} {_hash(*captured)}"
        raise Unstated(f"the function {function.__qualname__}")

    def _state(self, value: Any) -> str:
        """An object of kdsl's own: its class and every attribute."""
        if dataclasses.is_dataclass(value):  # what else it holds is computed from the fields
            names = [field.name for field in dataclasses.fields(value)]
        else:
            names = [*vars_of(value), *getattr(slots_of(value), "keys", tuple)()]
        held = {name: getattr(value, name, absent) for name in names}
        texts = [f"{name}={self.spell(held[name])}" for name in sorted(held)]
        return f"{_named(type(value))} {_hash(*texts)}"

    def _code(self, code: CodeType) -> str:
        """All of a code object but where it was written, and a docstring that nothing loads."""
        raw, constants = bytearray(code.co_code), []
        for place, number in _loads(raw):
            constants.append(self._constant(code.co_consts[number]))
            raw[place] = 0  # the number: one more docstring changes it
        sizes = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        handlers = getattr(code, "co_exceptiontable", b"").hex()
        doc = repr(code.co_consts[:1]) if self._doc else ""
        return _hash(code.co_name, repr(sizes), repr(names), raw.hex(), handlers, doc, *constants)

    def _constant(self, value: Any) -> str:
        return self._code(value) if isinstance(value, CodeType) else self.spell(value)


def _is_exact_number(value: Any) -> bool:
    """Whether it is one of Python's decimals or fractions, whose modules few programs import."""
    homes = (("decimal", "Decimal"), ("fractions", "Fraction"))
    return any(type(value) is vars(sys.modules.get(m, sys)).get(name) for m, name in homes)


def _is_path(value: Any) -> bool:
    """Whether it is one of pathlib's, which takes a start some milliseconds to import."""
    paths = sys.modules.get("pathlib")
    return paths is not None and isinstance(value, paths.PurePath)


def _loads(raw: bytearray) -> Iterator[tuple[int, int]]:
    """Of each instruction that loads a constant: where its argument is, and the constant's number.

    `dis` gives names too, at ten times the cost.
    """
    before = 0  # what EXTENDED_ARG said in front of an instruction
    for at, instruction in enumerate(raw[::2]):
        place = 2 * at + 1
        if instruction in _LOADS_CONSTANT:
            yield place, before << 8 | raw[place]
        before = before << 8 | raw[place] if instruction == EXTENDED_ARG else 0


def _is_of_library(value: Any) -> bool:
    """Whether it is a function in C of Python or NumPy, or another callable with a name there."""
    named = callable(value) and isinstance(getattr(value, "__name__", None), str)
    home = getattr(value, "__module__", None)
    owner = getattr(value, "__self__", None)  # the module of a function, an object of a method
    if not named or not isinstance(home, str | None) or not is_library(type(value)):
        return False
    return isinstance(owner, ModuleType | type | None) and is_library_module(home or "")


def _named(value: Any) -> str:
    home = getattr(value, "__module__", None) or getattr(value, "__objclass__", None)
    return f"{home}.{getattr(value, '__qualname__', value.__name__)}"


def _buffer(value: Any) -> str:
    kind, shape = getattr(value, "dtype", ""), getattr(value, "shape", len(value))
    typecode = getattr(value, "typecode", "")
    return f"{kind}{typecode} {shape} {hash256(bytes_of(value)).hexdigest()}"


def _float(value: float) -> str:
    return struct.pack("<d", value).hex()


# Values that a short text states: of these very classes, for a subclass may hold more …
_EXACT: dict[type, Callable[[Any], str]] = {
    **dict.fromkeys((bool, int, str, bytes, type(None), type(...), range), repr),
    float: _float,
    complex: lambda v: _float(v.real) + _float(v.imag),
    slice: lambda v: repr((v.start, v.stop, v.step)),
    re.Pattern: lambda v: repr((v.pattern, v.flags)),
    type(absent): repr,
    _Field: lambda v: repr(v.__reduce__()[1]),
}
# … and of these with their subclasses.
_SPELLINGS: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    (np.generic, lambda v: f"{v.dtype} {v.tobytes().hex()}"),
    (np.dtype, lambda v: f"{v.str} {v.name} {v.descr if v.names else ''}"),
    (ModuleType, lambda v: v.__name__),
)
