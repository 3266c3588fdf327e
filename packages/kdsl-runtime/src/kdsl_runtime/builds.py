"""From a PTX module to a cache entry."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kdsl_core.lang import watch
from kdsl_runtime.assemble import AssembleOptions, ResourceReport, assemble, surface
from kdsl_runtime.cache import Cache, Entry, content_key, default_cache, recipe_key
from kdsl_runtime.toolchain import Toolchain, default_toolchain

if TYPE_CHECKING:
    from kdsl_runtime.ptx_module import PtxModule

# Hashing the PTX takes longer than a launch, and the texts of a process's kernels are few.
_key = functools.cache(content_key)


class _Content(NamedTuple):
    """What a cubin was built from, in words; `ptx` is the key of the text."""

    target: str
    toolchain: str
    options: tuple[str, ...]
    ptx: str


_built: dict[str, set[_Content]] = {}


def build(
    module: PtxModule,
    *,
    toolchain: Toolchain | None = None,
    options: AssembleOptions | None = None,
    cache: Cache | None = None,
    origin: watch.Origin | None = None,
) -> Entry:
    """The cache entry of `module`, built when it is new; works without a GPU.

    `origin` is the kernel and the specialisation that it is the PTX of.

    Raises: BuildError, ResourceError.
    """
    toolchain = toolchain or default_toolchain()
    options = options or AssembleOptions()
    key = key_of(module, toolchain, options)
    content = _content(module, toolchain, options)
    fresh = False

    def assembled() -> Entry:
        nonlocal fresh
        fresh = True
        for watcher in watch.watchers:
            watcher.assembling(module.entry, origin, _differences(module.entry, content))
        return _assembled(module, toolchain, options)

    entry = (cache or default_cache()).get_or_build(key, assembled)
    _built.setdefault(module.entry, set()).add(content)
    if not fresh:
        report = ResourceReport.from_json(entry.metadata["report"])
        surface(report, module.entry, module.target)
    return entry


def recall(
    recipe: Mapping[str, Any],
    trace: Callable[[], tuple[str, dict[str, Any] | None]],
    holds: Callable[[dict[str, Any]], bool],
    *,
    cache: Cache | None = None,
) -> tuple[str, dict[str, Any]]:
    """The PTX that `recipe` became, with the facts of its launch; `trace` is called when it is new.

    `trace` gives the PTX and its facts as JSON values, or None for a result that no other process
    may use. `holds` says whether facts that were kept are true here, such as digests of files.

    Raises: whatever `trace` raises.
    """

    def traced() -> Entry:
        text, facts = trace()
        metadata = {"kind": "ptx", "facts": facts, "dependencies": recipe.get("dependencies", [])}
        return Entry(metadata, text.encode())

    entry = (cache or default_cache()).get_or_build(
        recipe_key(recipe),
        traced,
        accept=lambda entry: holds(entry.metadata["facts"]),
        keep=lambda entry: entry.metadata["facts"] is not None,
    )
    return entry.payload.decode(), entry.metadata["facts"]


def key_of(module: PtxModule, toolchain: Toolchain, options: AssembleOptions) -> str:
    """The content key of `module`."""
    return _key(module.text, module.target, toolchain.id, tuple(options.arguments()))


def _content(module: PtxModule, toolchain: Toolchain, options: AssembleOptions) -> _Content:
    given = tuple(options.arguments())
    return _Content(module.target, toolchain.version, given, _key(module.text, "", "", ()))


def _differences(entry: str, wanted: _Content) -> list[str]:
    """What of `wanted` is new, against the nearest that this process built of the same kernel."""
    every = [
        [
            f"{name}: {before} was built, got {after}"
            for name, before, after in zip(_Content._fields, known, wanted, strict=True)
            if before != after
        ]
        for known in sorted(_built.get(entry, ()))
    ]
    return min(every, key=len, default=[]) or ["no machine code of it was built in this process"]


def _assembled(module: PtxModule, toolchain: Toolchain, options: AssembleOptions) -> Entry:
    cubin = assemble(module, module.target, toolchain, options)
    metadata = {
        "kind": "cubin",
        "entry": module.entry,
        "target": module.target,
        "toolchain": toolchain.version,
        "options": options.arguments(),
        "report": cubin.report.as_json(),
    }
    return Entry(metadata, cubin.data)
