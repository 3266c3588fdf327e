"""PTX from what it was made of: the recipe of a kernel, and whether an earlier process cooked it.

A recipe names everything that can change the PTX. The runtime keeps what it became; a hit means
that nothing is traced.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import CodeType
from typing import TYPE_CHECKING, Any

from kdsl_core.errors import StagingError
from kdsl_core.ir import Target
from kdsl_core.lang import dump
from kdsl_core.lang.authors_code import nested_codes
from kdsl_core.lang.dependencies import Dependencies
from kdsl_core.lang.file_states import library_digest, still
from kdsl_core.lang.fingerprint import Unstated, digests
from kdsl_core.lang.host import runtime
from kdsl_core.lang.lowered import Lowered
from kdsl_core.lang.origins import LIBRARIES, is_library_code
from kdsl_core.lang.signature import Signature

if TYPE_CHECKING:
    from kdsl_core.lang.functions import Staged
    from kdsl_core.lang.kernel import KernelFunction
    from kdsl_core.lang.observed import Observed
    from kdsl_core.lang.specialisation import Specialisation

_WRITTEN_BY_PYTHON = "<string>"


def obtain(
    kernel: KernelFunction, needed: Specialisation, target: Target
) -> tuple[Dependencies, Lowered]:
    """The PTX of a specialisation with what it depends on: kept by the runtime, or traced now."""
    function = kernel.staged.function
    statics = [value for _, _, value in needed.statics]
    before = Dependencies(function, statics)
    made: list[tuple[Dependencies, Lowered]] = []
    reads: dict[str, str] = {}

    def trace() -> tuple[str, dict[str, Any] | None]:
        from kdsl_core.lang.observed import Observed, observing  # nothing is traced on a hit

        _prepare(kernel, before)
        observed = Observed()
        dependencies, traced = kernel.traced_anew(needed, observing(observed))
        lowered = Lowered.of(kernel.built(traced, target), traced)
        made.append((dependencies, lowered))
        reads.update(observed.states())
        return lowered.module.text, _facts(kernel, lowered, before, observed)

    recipe = ingredients(kernel, needed, target, before)
    if recipe is None or dump.wanted("ir") or dump.wanted("ptx"):
        trace()
    else:
        host = runtime("building a kernel")
        text, facts = host.recall(recipe, trace, lambda facts: still(facts["reads"]))
        if not made:
            made.append((before, Lowered.from_facts(text, facts)))
            reads.update(facts["reads"])
    dependencies, lowered = made[0]
    if reads:
        dependencies.outside = lambda: still(reads)
    return dependencies, lowered


def _prepare(kernel: KernelFunction, dependencies: Dependencies) -> None:
    """Do now what takes up to four times as long under observation: rewriting, and imports."""
    for staged in _staged(kernel, dependencies):
        staged.rewritten()
    front = import_module(LIBRARIES[0])
    for word in sorted(dependencies.mentioned.intersection(dir(front))):
        getattr(front, word)  # imports the module that has it


def ingredients(
    kernel: KernelFunction, needed: Specialisation, target: Target, dependencies: Dependencies
) -> dict[str, Any] | None:
    """Everything that decides the PTX, as JSON values; None when something cannot be stated."""
    classes, statics, block, cluster, _ = needed
    kdsl = library_digest()
    try:
        read = digests(dependencies)
        text = kernel.staged.meaning()
    except (Unstated, StagingError):
        return None
    if kdsl is None or not dependencies.complete:
        return None
    return {
        "kdsl": kdsl,
        "python": [sys.implementation.cache_tag, sys.flags.optimize],
        "libraries": [import_module(name).__version__ for name in LIBRARIES[1:]],
        "text": text,
        "kernel": [*_declared(kernel.signature), kernel.min_blocks_per_sm],
        "classes": [[*_plain(item)] for item in classes],
        "statics": [[name, kind.__qualname__] for name, kind, _ in statics],
        "block": block,
        "cluster": cluster,
        "target": str(target),
        "dependencies": read,
    }


def _facts(
    kernel: KernelFunction, lowered: Lowered, before: Dependencies, observed: Observed
) -> dict[str, Any] | None:
    """What is kept of a trace; None when a later process could not tell whether it still holds."""
    facts = lowered.facts()
    if facts is None or observed.surprises or any(_unnamed(kernel, before, observed.codes)):
        return None
    return {**facts, "reads": observed.states()}


def _unnamed(
    kernel: KernelFunction, dependencies: Dependencies, ran: Iterable[CodeType]
) -> Iterator[CodeType]:
    """The author's code that ran although nothing names it."""
    named = set(dependencies.codes())
    for item in _staged(kernel, dependencies):
        named.update(nested_codes(item.rewritten().__code__))
    for code in ran:
        if code not in named and not is_library_code(code) and not _is_generated(code):
            yield code


def _staged(kernel: KernelFunction, dependencies: Dependencies) -> list[Staged]:
    """The kernel's function and the `@kd.func`s that it could reach."""
    reached = (fact.value for fact in dependencies.facts if fact.kind == "staged")
    return [kernel.staged, *(value.__kdsl_staged__ for value in reached)]


def _is_generated(code: CodeType) -> bool:
    """Whether `dataclass` or `namedtuple` wrote it, from fields that are known."""
    special = code.co_name.startswith("__") or code.co_name in ("<lambda>", "<module>")
    return special and code.co_filename == _WRITTEN_BY_PYTHON


def _declared(signature: Signature) -> list[Any]:
    return [
        signature.name,
        [
            [p.name, p.kind, str(p.tensor), p.dtype.name, p.variadic, p.keyword]
            for p in signature.parameters
        ],
    ]


def _plain(item: Any) -> Iterator[Any]:
    for name in item.__dataclass_fields__:
        value = getattr(item, name)
        yield value.name if name == "dtype" else value
