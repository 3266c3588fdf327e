"""Writing a plan's kernels as files, and reading them back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdsl_core.errors import ArgumentError
from kdsl_core.lang.kernel import KernelFunction
from kdsl_core.lang.source_module import module_of_file
from kdsl_fuse.calls import KernelCall
from kdsl_fuse.ejection.arguments import Arguments, bracketed, quoted
from kdsl_fuse.ejection.closure import Closure
from kdsl_fuse.ejection.launched import Launched, View, launched_by
from kdsl_fuse.ejection.reference_text import Reference
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.strided import row_major
from kdsl_fuse.work import Work

if TYPE_CHECKING:
    from kdsl_fuse.plan import Plan

_PACKAGES = ("kdsl_fuse.kernels", "kdsl_fuse.patterns")
_FUTURE = "from __future__ import annotations"
_HARNESS = tuple(
    f"from kdsl_fuse.ejection.ejected import {name}"
    for name in ("Ejected", "EjectedLaunch", "View")
)
_TF32 = 2.0**-9  # of products whose operands are rounded to 10 bits of mantissa


def eject(plan: Plan, folder: str | Path, calls: Sequence[int] | None = None) -> list[Path]:
    """Write the kernels of `calls`, by number, or of all, to `folder`, a file for each call.

    A file holds the sources of the call's kernels with all that they use, pointwise functions as
    Python, the launches for the plan's shapes, a NumPy reference and a test; run it to check it,
    with `--time` to measure it on a GPU. Edit it and `load` it back.
    Raises: ArgumentError K967 for a call whose sources are not to be found.
    """
    chosen = range(len(plan.calls)) if calls is None else calls
    pages = {_path(folder, plan, index): page_of(plan, plan.calls[index]) for index in chosen}
    Path(folder).mkdir(parents=True, exist_ok=True)
    for path, page in pages.items():
        path.write_text(page, encoding="utf-8")
    return list(pages)


def load(plan: Plan, folder: str | Path) -> None:
    """Let the plan run the kernels of files that `eject` wrote, as they are now.

    Each call with a file gives way to one that makes the file's launches. Values that launches read
    must start at multiples of 16 bytes where the plan's own call would copy others first.
    Raises: ArgumentError K969 where there is no file for any of the calls.
    """
    from kdsl_fuse.ejection.loaded import LoadedCall

    paths = {index: _path(folder, plan, index) for index in range(len(plan.calls))}
    there = {index: path for index, path in paths.items() if path.exists()}
    if not there:
        raise ArgumentError(
            f"{folder} has none of {', '.join(path.name for path in paths.values())}",
            code="K969",
            fix="write them first: kf.eject(plan, folder)",
        )
    for index, path in there.items():
        made = module_of_file(path, path.stem).EJECTED
        plan.substitute(index, LoadedCall.of(plan.calls[index], made, path.name))


def _path(folder: str | Path, plan: Plan, index: int) -> Path:
    return Path(folder) / f"call_{index}_{plan.calls[index].name}.py"


def page_of(plan: Plan, call: KernelCall) -> str:
    """The file of one call."""
    launched = _launched(plan.graph, call)
    kernels = dict.fromkeys(work.launch.kernel for work, _ in launched.works)
    closure = Closure((*_PACKAGES, *(_home(call, kernel) for kernel in kernels)))
    arguments = Arguments(closure)
    entries = {kernel: _Entry.of(closure, kernel) for kernel in kernels}
    reference = Reference(plan.graph, call.reads, call.outputs)
    try:
        launches = [
            _launch(entries[work.launch.kernel].name, arguments, work, views)
            for work, views in launched.works
        ]
    except TypeError as problem:
        raise _cannot(call, f"its trace-time argument {problem}") from problem
    held = _ejected(plan, call, launched, launches)
    imports = {"import numpy as np", *_HARNESS, "import kdsl_core as kd"}
    imports |= closure.imports | reference.imports
    blocks = [f"{_title(plan, call)}\n\n{_FUTURE}\n\n{_sorted(imports)}"]
    blocks += [*closure.definitions(), *(entry.made for entry in entries.values() if entry.made)]
    blocks += [*arguments.functions, reference.text, held, _END]
    return "\n\n\n".join(block.strip("\n") for block in blocks) + "\n"


def _launched(graph: Graph, call: KernelCall) -> Launched:
    """The call's launches, of a kernel of the language whose result has a meaning."""
    if not isinstance(call.kernel, KernelFunction):
        raise _cannot(call, f"{call.kernel!r} is no kernel of the language")
    if any(node.op.name == "Custom" for node in call.outputs):
        raise _cannot(call, "what kf.custom runs is in a file of yours, and no operator says more")
    return launched_by(graph, call)


def _home(call: KernelCall, kernel: Any) -> str:
    """The module in whose file a kernel, or the function that it was made of, is defined."""
    function = kernel.staged.function
    module = sys.modules.get(function.__module__)
    if getattr(module, function.__name__, None) not in (kernel, function):
        raise _cannot(call, f"its kernel is no name of a module, but {function.__qualname__}")
    if getattr(module, "__file__", None) is None:
        raise _cannot(call, f"the source of {function.__qualname__} is in no file")
    return str(function.__module__)


@dataclass(frozen=True)
class _Entry:
    """A kernel in a file: what it is called there, and how it is made if nothing decorates it."""

    name: str
    made: str

    @classmethod
    def of(cls, closure: Closure, kernel: Any) -> _Entry:
        """Collect the kernel's function, and what it uses."""
        function = kernel.staged.function
        home = function.__module__, function.__name__
        closure.add(*home)
        called, entry = closure.called(*home), kernel.signature.name
        if getattr(sys.modules[home[0]], home[1]) is kernel:
            return cls(called, "")
        options = f'name="{entry}", min_blocks_per_sm={kernel.min_blocks_per_sm}'
        return cls(entry, f"{entry} = kd.kernel({options})({called})")


def _title(plan: Plan, call: KernelCall) -> str:
    made = ", ".join(map(str, call.outputs))
    reads = "\n".join(f"* reads {plan.graph[name]}" for name in call.reads)
    return (
        f'"""{made} by {call.name}, as `{plan.graph.name}` launches it.\n\n{reads}\n\n'
        "Edit it freely. Run it to check it, with --time to measure it; `kf.load` puts it back."
        '\n"""'
    )


def _sorted(imports: set[str]) -> str:
    """Python's own, NumPy, kdsl's; `import` before `from`, and one of these for each module."""
    names: dict[str, list[str]] = {}
    for line in sorted(imports):
        start, found, name = line.partition(" import ")
        names.setdefault(start if found else line, []).append(name)
    groups: list[list[str]] = [[], [], []]
    for start, told in sorted(
        names.items(), key=lambda item: (item[0].startswith("from"), item[0])
    ):
        line = f"{start} import {', '.join(told)}" if told[0] else start
        groups[2 if " kdsl" in line else 1 if " numpy" in line else 0].append(line)
    return "\n\n".join("\n".join(group) for group in groups if group)


def _launch(kernel: str, arguments: Arguments, work: Work, views: Sequence[View]) -> str:
    place = work.launch.place(*work.arrays, **work.statics)
    statics = [f'"{name}": {arguments.text(name, x, 16)}' for name, x in work.statics.items()]
    parts = [
        f"kernel={kernel}",
        f"grid={_extent(place.grid)}",
        f"block={_extent(place.block)}",
        *([f"cluster={_extent(place.cluster)}"] if place.cluster else []),
        *(["overlap=True"] if work.launch.overlap else []),
        f"arguments={bracketed('[', list(map(_view, views)), ']', 12)}",
        f"statics={bracketed('{', statics, '}', 12)}",
    ]
    return _lines("EjectedLaunch(", parts, ")", 8)


def _extent(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes without those behind the last one that is not 1."""
    count = max((i for i, size in enumerate(sizes) if size != 1), default=0) + 1
    return sizes[:count]


def _view(view: View) -> str:
    offset = f", offset={view.offset}" if view.offset else ""
    return f"View({quoted(view.value)}, {view.shape}, {view.strides}{offset})"


def _ejected(plan: Plan, call: KernelCall, launched: Launched, launches: Sequence[str]) -> str:
    reads = [_spec(plan.graph[name]) for name in call.reads]
    scratch = [f'"{n}": kd.spec("{t}", ({count},))' for n, (t, count) in launched.scratch.items()]
    parts = [
        f"launches={_lines('[', launches, ']', 4)}",
        f"reads={_lines('{', reads, '}', 4)}",
        f"writes={_lines('{', list(map(_spec, call.outputs)), '}', 4)}",
        *([f"scratch={_lines('{', scratch, '}', 4)}"] if scratch else []),
        "reference=reference",
    ]
    if plan.options.f32_precision == "tf32" and plan.graph[call.reads[0]].dtype.name == "f32":
        parts.append(f"tolerance={_TF32}")
    return f"EJECTED = {_lines('Ejected(', parts, ')', 0)}"


def _spec(node: Node) -> str:
    dense = not node.strides or node.strides == row_major(node.shape)
    strides = "" if dense else f", strides={tuple(node.strides or ())}"
    return f'{quoted(node.name)}: kd.spec("{node.dtype}", {tuple(node.shape)}{strides})'


def _lines(opening: str, parts: Sequence[str], closing: str, indent: int) -> str:
    """Parts in brackets, a line for each."""
    space = " " * (indent + 4)
    inner = "".join(f"{space}{part},\n" for part in parts)
    return f"{opening}\n{inner}{' ' * indent}{closing}"


_END = '''def test_kernel():
    """The kernel equals its reference."""
    EJECTED.check()


if __name__ == "__main__":
    EJECTED.main()'''


def _cannot(call: KernelCall, why: str) -> ArgumentError:
    return ArgumentError(
        f"{call.name} cannot be ejected: {why}",
        code="K967",
        fix="name the other calls: kf.eject(plan, folder, calls=[0, 2])",
    )
