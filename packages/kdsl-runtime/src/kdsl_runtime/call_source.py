"""The text of the Python functions that make one way to write a kernel's call.

It is written out because a star in a call, a loop over arguments or a helper for each array costs
as much as reading an attribute. Names of the author's are in none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import indent
from typing import NamedTuple

from kdsl_runtime.array_readers import Reader
from kdsl_runtime.submission import Submission


class Words(NamedTuple):
    """What a call consists of, by the names that the functions have for it.

    `types` is that of each argument, first those by position; `named` the others by their own
    names; `outer` are the names of what the functions are made with, beside types.
    """

    types: Mapping[str, type]
    named: Mapping[str, str]
    arrays: Sequence[tuple[str, Reader]]
    statics: Sequence[str]
    numbers: Sequence[str]
    outer: Sequence[str]


def source_of(words: Words) -> str:
    """A function `make`, which gives `key` and `call`."""
    return _SOURCE.format(**_pieces(words))


def planned_source_of(words: Words, submission: Submission) -> str:
    """A function `make`, which gives `planned` for submissions with the text of this one."""
    pieces = _pieces(words)
    values = [*(f"p{i}" for i in range(len(words.arrays))), *words.numbers]
    launched = _LAUNCHED.format(submitted=indent(submission.text(values), " " * 4).lstrip())
    check = f"if {pieces['unaligned']}:\n    append(held)\n    return False"
    guarded = _LAUNCHED.format(submitted=indent(submission.text(values, check), " " * 4).lstrip())
    return _PLANNED.format(
        **pieces,
        means=", ".join(submission.means),
        run=indent(launched, " " * 12).lstrip(),
        guarded=indent(guarded, " " * 16).lstrip(),
        launched=indent(launched, " " * 16).lstrip(),
    )


def _pieces(words: Words) -> dict[str, str]:
    read = {f"p{i}": reader.pointer.format(w) for i, (w, reader) in enumerate(words.arrays)}
    facts = [reader.facts.format(word) for word, reader in words.arrays]
    facts += [f"{pointer} & 15" for pointer in read]
    arrays = [word for word, _ in words.arrays]
    placed = [word for word in words.types if word not in words.named.values()]
    refused = ["kernel.calls is not calls"]
    refused.append(f"len(kwargs) != {len(words.named)}" if words.named else "kwargs")
    if not placed:
        refused.append("args")
    others = {word: f"type({word}) is not t{word}" for word in words.types}
    beside = [test for word, test in others.items() if word not in arrays]
    values = "".join(f", {word}" for word in [*read, *words.numbers])
    unequal = f" or ({_each(words.statics)}) != statics" if words.statics else ""
    return {
        "outer": ", ".join([*words.outer, *(f"t{word}" for word in words.types)]),
        "unpack": "; ".join(
            [f"{_each(placed)} = args"] * bool(placed)
            + [f"{word} = kwargs[{name!r}]" for name, word in words.named.items()]
        )
        or "pass",
        "read": "; ".join(f"{pointer} = {text}" for pointer, text in read.items()) or "pass",
        "facts": _each([*facts, *words.statics]),
        "values": values,
        "arrays": _each(arrays),
        "statics": _each(words.statics),
        "compared": "*args" if arrays == placed else _each(arrays),
        "beside": " or ".join([*refused, *beside]),
        "types": " or ".join([*refused, *others.values()]),
        "unequal": unequal,
        "unaligned": f"({' | '.join(read) or 0}) & 15",
    }


def _each(words: Sequence[str]) -> str:
    """With a comma after each, so that it is a tuple in parentheses, and arguments in a call."""
    return "".join(f"{word}, " for word in words)


_LAUNCHED = """\
if not dependencies.unchanged():
    return False
if stream is None:
    stream = current(device)
try:
    {submitted}
except misfits:
    return False
if watched:
    tell(kernel, needed)
return True"""

_SOURCE = """
def make(plans, {outer}):
    def key(place, args, kwargs):
        {unpack}
        {read}
        return (place, {facts})

    def call(launch, args, kwargs):
        {unpack}
        {read}
        plan = plans.get((launch._place or launch.place(*args, **kwargs), {facts}))
        if plan is None or not plan.run(launch.stream{values}):
            return False
        if launch._place is not None:
            launch.again = plan.again(launch.again, ({arrays}), ({statics}))
        return True

    return key, call
"""

_PLANNED = """
def make(watched, tell, current, kernel, misfits, {outer}):
    def planned(ready, calls, {means}):
        dependencies, device, needed = ready.dependencies, ready.device, ready.needed

        def run(stream{values}):
            {run}

        def guarded(same, statics):
            def again(launch, args, kwargs):
                try:
                    {unpack}
                except (KeyError, ValueError):
                    return False
                if {beside} or not same({compared}){unequal}:
                    return False
                {read}
                stream = launch.stream
                {guarded}

            return again

        def compared(known):
            def again(launch, args, kwargs):
                try:
                    {unpack}
                except (KeyError, ValueError):
                    return False
                if {types}:
                    return False
                {read}
                if ({facts}) != known:
                    return False
                stream = launch.stream
                {launched}

            return again

        return run, guarded, compared

    return planned
"""
