"""Launches like those before: a written-out look at the arguments, and straight to the driver.

The first call of a kernel goes the long way, through every check. What it found out holds for each
later call whose arguments have the same facts: types, dtypes, shapes, strides, devices, alignment
and trace-time values. For each way to write the call, Python functions are generated: one reads
these facts and looks them up; another compares them with the latest ones alone, by torch's own
guards where it can. Both hand the driver what varies: addresses and numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kdsl_core.lang import watch
from kdsl_core.lang.arguments import Bound, by_name
from kdsl_core.lang.kernel import KernelFunction
from kdsl_core.lang.launch import KnownCall, Launch, Place, Ready, kinds_of
from kdsl_core.lang.nested_types import PLAIN
from kdsl_core.lang.signature import Parameter
from kdsl_runtime.array_readers import Reader, guard_of, reader_of, stream_reader
from kdsl_runtime.call_source import Words, planned_source_of, source_of
from kdsl_runtime.parameters import is_converted
from kdsl_runtime.ready import submission
from kdsl_runtime.submission import Submission

_MOST_PLANS = 1024
_NUMBERS = (int, float, bool)
_MISFITS = (struct.error, OverflowError)


Made = tuple[Callable[..., bool], Callable[..., KnownCall], Callable[..., KnownCall]]


class Plan:
    """What is done for arguments with known facts.

    `run(stream, *values)` launches, and gives True unless something that the trace read was bound
    anew or a number does not fit. `make` gives that, and what makes the functions that compare
    facts by a guard and one by one; it is asked at the second launch, for compiling them takes
    longer than all else of a first one. `pins` keeps alive what is looked up by identity.
    """

    def __init__(
        self, make: Callable[[], Made], ready: Ready, facts: tuple[Any, ...], bound: Bound
    ) -> None:
        self._make = make
        self.run: Callable[..., bool] = self._first_run
        self.ready = ready
        self._facts, self._pins = facts, tuple(bound.statics.values())
        self._aligned = not any(array.pointer & 15 for array in bound.arrays.values())
        self._again: KnownCall | None = None

    def _first_run(self, *given: Any) -> bool:
        self.run, self._guarded, self._compared = self._make()
        return self.run(*given)

    def again(
        self, refused: KnownCall | None, arrays: tuple[Any, ...], statics: tuple[Any, ...]
    ) -> KnownCall:
        """What makes calls like one with these arguments, which `refused` did not make.

        A guard also sees what no launch depends on, such as a mode of autograd: then it is made
        anew. It takes no array twice; and its function, no address that is aligned to less.
        """
        if self._again is None or self._again is refused:
            same = guard_of(arrays) if self._aligned else None
            made = self._compared(self._facts) if same is None else self._guarded(same, statics)
            self._again = made
        found: KnownCall = self._again
        return found


class _Word(str):
    """The name of a call's argument in the generated functions."""


class _Unknown(Exception):
    """A call that generated code cannot make."""


class CallForm:
    """One way to write a kernel's call: which argument is where, and of what type.

    `call(launch, args, kwargs)` launches and gives True when it knows such arguments;
    `key(place, args, kwargs)` gives that under which `plans` has what is known.
    Threads: safe.
    """

    def __init__(
        self, kernel: KernelFunction, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        words = [_Word(f"a{i}") for i in range(len(args))]
        named = {name: _Word(f"k{i}") for i, name in enumerate(kwargs)}
        kinds = map(type, (*args, *kwargs.values()))
        self._types: dict[str, type] = dict(zip([*words, *named.values()], kinds, strict=True))
        self._defaults: dict[str, Any] = {}
        self._arrays: list[tuple[str, Reader]] = []
        self._statics: list[str] = []
        self._numbers: list[str] = []
        met = by_name(kernel.signature, list(words), dict(named))
        for parameter in kernel.signature.parameters:
            self._add(parameter, met[parameter.name])
        self.plans: dict[tuple[Any, ...], Plan] = {}
        space: dict[str, Any] = {}
        outer = [*self._defaults]
        self._words = Words(self._types, named, self._arrays, self._statics, self._numbers, outer)
        self._outer = *self._defaults.values(), *self._types.values()
        exec(source_of(self._words), space)
        self.call: KnownCall
        self.key, self.call = space["make"](self.plans, *self._outer)
        self._planned: dict[str, Callable[..., Any]] = {}  # by their source

    def planned(
        self, kernel: KernelFunction, calls: Mapping[Any, Any], made: Submission, ready: Ready
    ) -> Made:
        """What a `Plan` is made with, for calls that `made` submits while `calls` are known."""
        source = planned_source_of(self._words, made)
        found = self._planned.get(source)
        if found is None:
            space: dict[str, Any] = {}
            exec(source, space)
            current = stream_reader(reader for _, reader in self._arrays)
            found = self._planned[source] = space["make"](
                watch.listed, watch.launched, current, kernel, _MISFITS, *self._outer
            )
        given: Made = found(ready, calls, *made.means.values())
        return given

    def _add(self, parameter: Parameter, word: Any) -> None:
        if parameter.kind == "tensor":
            for item in word if parameter.variadic else (word,):
                reader = reader_of(self._types.get(item, type(item)))
                if reader is None:
                    raise _Unknown
                self._arrays.append((item, reader))
        elif parameter.kind == "scalar":
            self._add_number(parameter, word)
        elif isinstance(word, _Word):  # while a default is what it is
            self._statics.append(word if self._types[word] in PLAIN else f"id({word})")

    def _add_number(self, parameter: Parameter, word: Any) -> None:
        kind = self._types[word] if isinstance(word, _Word) else type(word)
        if kind not in _NUMBERS or is_converted(parameter.dtype):
            raise _Unknown
        if not isinstance(word, _Word):
            self._defaults[f"d{len(self._defaults)}"] = word
            word = [*self._defaults][-1]
        self._numbers.append(word)


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
    calls = kernel.calls
    form = calls.get(kinds)
    if not isinstance(form, CallForm):
        try:
            form = CallForm(kernel, args, kwargs)
        except _Unknown:
            return
    made = submission(place, bound, ready)
    key = form.key(place, args, kwargs)
    if len(form.plans) >= _MOST_PLANS:
        form.plans.clear()
    make = partial(form.planned, kernel, calls, made, ready)
    form.plans[key] = Plan(make, ready, key[1:], bound)
    calls[kinds] = form
