"""Launches like those before: a written-out look at the arguments, and straight to the driver.

The first call of a kernel goes the long way, through every check. What it found out holds for each
later call whose arguments have the same facts: types, dtypes, shapes, strides, devices, alignment
and trace-time values. For each way to write the call, one Python function is generated that reads
these facts, looks them up, and hands the driver what varies: addresses and numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kdsl_core.lang import watch
from kdsl_core.lang.arguments import Bound, by_name
from kdsl_core.lang.kernel import KernelFunction
from kdsl_core.lang.launch import Launch, Place, Ready, kinds_of
from kdsl_core.lang.nested_types import PLAIN
from kdsl_core.lang.signature import Parameter
from kdsl_runtime.array_readers import Reader, reader_of, stream_reader
from kdsl_runtime.parameters import is_converted
from kdsl_runtime.ready import submission

_MOST_PLANS = 1024
_NUMBERS = (int, float, bool)
_MISFITS = (struct.error, OverflowError)


class Plan(NamedTuple):
    """What is done for arguments with known facts.

    `pins` keeps alive what is looked up by identity.
    """

    submit: Callable[..., None]
    unchanged: Callable[[], bool]
    ready: Ready
    pins: tuple[Any, ...]


class _Word(str):
    """The name of a call's argument in the generated function."""


class _Unknown(Exception):
    """A call that generated code cannot make."""


class CallForm:
    """One way to write a kernel's call: which argument is where, and of what type.

    `call(launch, *args, **kwargs)` launches and gives True when it knows such arguments; `key`
    gives that under which `plans` has what is known.
    Threads: safe.
    """

    def __init__(
        self, kernel: KernelFunction, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        words = [_Word(f"__a{i}") for i in range(len(args))]
        named = {name: _Word(name) for name in kwargs}
        self._types = {word: type(arg) for word, arg in zip(words, args, strict=True)}
        self._types |= {named[name]: type(arg) for name, arg in kwargs.items()}
        self._given = [*words, *(["*", *named] if named else [])]
        self._passed = [*words, *(f"{name}={name}" for name in named)]
        self._defaults: dict[str, Any] = {}
        self._readers: list[Reader] = []
        self._reads: list[str] = []
        self._facts: list[str] = []
        self._pointers: list[str] = []
        self._numbers: list[str] = []
        met = by_name(kernel.signature, list(words), dict(named))
        for parameter in kernel.signature.parameters:
            self._add(parameter, met[parameter.name])
        self.plans: dict[tuple[Any, ...], Plan] = {}
        self.key, self.call = self._generated(kernel)

    def _add(self, parameter: Parameter, word: Any) -> None:
        if parameter.kind == "tensor":
            for item in word if parameter.variadic else (word,):
                self._add_array(item)
        elif parameter.kind == "scalar":
            self._add_number(parameter, word)
        elif isinstance(word, _Word):  # while a default is what it is
            self._facts.append(word if self._types[word] in PLAIN else f"id({word})")

    def _add_array(self, word: Any) -> None:
        reader = reader_of(self._types.get(word, type(word)))
        if reader is None:
            raise _Unknown
        pointer = f"__p{len(self._readers)}"
        self._readers.append(reader)
        self._reads.append(f"{pointer} = {reader.pointer.format(word)}")
        self._facts += [reader.facts.format(word), f"{pointer} & 15"]
        self._pointers.append(pointer)

    def _add_number(self, parameter: Parameter, word: Any) -> None:
        kind = self._types[word] if isinstance(word, _Word) else type(word)
        if kind not in _NUMBERS or is_converted(parameter.dtype):
            raise _Unknown
        if not isinstance(word, _Word):
            self._defaults[f"__d{len(self._defaults)}"] = word
            word = [*self._defaults][-1]
        self._numbers.append(word)

    def _generated(self, kernel: KernelFunction) -> tuple[Callable[..., Any], Callable[..., bool]]:
        source = _SOURCE.format(
            defaults=", ".join(self._defaults),
            given=", ".join(["", *self._given]),
            passed=", ".join(self._passed),
            reads="; ".join(self._reads) or "pass",
            facts=", ".join([*self._facts, ""]).lstrip(", "),
            values=", ".join(["", *self._pointers, *self._numbers]),
        )
        space: dict[str, Any] = {}
        exec(source, space)
        key, call = space["make"](
            self.plans, [(None, None)], watch, stream_reader(self._readers), kernel, _MISFITS,
            *self._defaults.values(),
        )  # fmt: skip
        return key, call


# The latest plan is compared with before the others are looked up: that spares hashing the facts.
_SOURCE = """
def make(plans, last, watch, current, kernel, misfits, {defaults}):
    def key(__place{given}):
        {reads}
        return (__place, {facts})

    def call(__launch{given}):
        {reads}
        __found = (__launch._place or __launch.place({passed}), {facts})
        __known, __plan = last[0]
        if __found != __known:
            __plan = plans.get(__found)
            if __plan is None:
                return False
            last[0] = __found, __plan
        __submit, __unchanged, __ready, __pins = __plan
        if not __unchanged():
            return False
        __stream = __launch.stream
        if __stream is None:
            __stream = current(__ready.device)
        try:
            __submit(__stream{values})
        except misfits:
            return False
        for __watcher in watch.watchers:
            __watcher.launched(kernel, __ready.needed)
        return True

    return key, call
"""


def remember(
    launch: Launch,
    place: Place,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    bound: Bound,
    ready: Ready,
) -> None:
    """Have later calls like this one made by generated code, where that can make them."""
    kernel, kinds = launch.kernel, kinds_of(args, kwargs)
    form = kernel.calls.get(kinds)
    if not isinstance(form, CallForm):
        try:
            form = CallForm(kernel, args, kwargs)
        except _Unknown:
            return
    submit = submission(place, bound, ready).submit
    plan = Plan(submit, ready.dependencies.unchanged, ready, tuple(bound.statics.values()))
    if len(form.plans) >= _MOST_PLANS:
        form.plans.clear()
    form.plans[form.key(place, *args, **kwargs)] = plan
    kernel.calls[kinds] = form
