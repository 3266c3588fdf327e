"""Writing a plan's kernels as files, and reading them back."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdsl_core.errors import ArgumentError
from kdsl_fuse.calls import KernelCall
from kdsl_fuse.ejection.closure import Closure
from kdsl_fuse.ejection.text import KERNEL, NUMPY, function_text
from kdsl_fuse.tail import Tail

if TYPE_CHECKING:
    from kdsl_fuse.plan import Plan

_PACKAGE = "kdsl_fuse.kernels"
_FUTURE = "from __future__ import annotations"
_HARNESS = "from kdsl_fuse.ejection.ejected import Ejected"


def eject(plan: Plan, folder: str | Path, calls: Sequence[int] | None = None) -> list[Path]:
    """Write the kernels of `calls`, by number, or of all, to `folder`, a file for each.

    A file holds the kernel's source with all that it uses, the tail as a function, the launch for
    the plan's shapes, a NumPy reference and a test; run it to check it, with `--time` to measure it
    on a GPU. Edit it and `load` it back.
    Raises: ArgumentError K967 for a call that no file can hold.
    """
    chosen = range(len(plan.calls)) if calls is None else calls
    pages = {_path(folder, plan, index): page_of(plan, plan.calls[index]) for index in chosen}
    Path(folder).mkdir(parents=True, exist_ok=True)
    for path, page in pages.items():
        path.write_text(page, encoding="utf-8")
    return list(pages)


def load(plan: Plan, folder: str | Path) -> None:
    """Let the plan's calls run the kernels of files that `eject` wrote, as they are now.

    Raises: ArgumentError K969 where there is no file for any of the calls.
    """
    paths = {index: _path(folder, plan, index) for index in range(len(plan.calls))}
    there = {index: path for index, path in paths.items() if path.exists()}
    if not there:
        raise ArgumentError(
            f"{folder} has none of {', '.join(path.name for path in paths.values())}",
            code="K969",
            fix="write them first: kf.eject(plan, folder)",
        )
    for index, path in there.items():
        made = _module(path).EJECTED
        plan.calls[index].replace(
            made.kernel,
            grid=made.grid,
            block=made.block,
            cluster=made.cluster,
            overlap=made.overlap,
            statics=dict(made.statics),
        )


def _path(folder: str | Path, plan: Plan, index: int) -> Path:
    return Path(folder) / f"call_{index}_{plan.calls[index].name}.py"


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, f"{path} is a file of Python"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses, and errors that show lines, look it up
    spec.loader.exec_module(module)
    return module


def page_of(plan: Plan, call: KernelCall) -> str:
    """The file of one call."""
    if type(call) is not KernelCall or not call.formula:
        raise _cannot(call, "it launches several kernels, or is no product with its tail")
    module = call.kernel.staged.function.__module__
    closure = Closure(_PACKAGE)
    closure.add(module, call.kernel.__name__)
    functions: list[str] = []
    statics = {name: _value(call, closure, functions, x) for name, x in call.statics.items()}
    if isinstance(call.epilogue, Tail):
        doc = "The same in NumPy."
        functions.append(function_text("epilogue_in_numpy", doc, call.epilogue, NUMPY))
    imports = {"import numpy as np", _HARNESS, "import kdsl_core as kd", *closure.imports}
    if "numpy_words." in "".join([call.formula, *functions]):
        imports.add("from kdsl_fuse.ejection import numpy_words")
    blocks = [f"{_title(plan, call)}\n\n{_FUTURE}\n\n{_sorted(imports)}"]
    blocks += ["\n\n\n".join(closure.definitions()), "\n\n\n".join(functions)]
    blocks += [_reference(call), _launch(call, statics), _END]
    return "\n\n\n".join(block.strip("\n") for block in blocks if block) + "\n"


def _title(plan: Plan, call: KernelCall) -> str:
    reads = "\n".join(f"* reads {read}" for read in (*call.operands, *call.extras))
    return (
        f'"""{call.output} by {call.name}, as `{plan.graph.name}` launches it.\n\n{reads}\n\n'
        "Edit it freely. Run it to check it, with --time to measure it; `kf.load` puts it back."
        '\n"""'
    )


def _sorted(imports: set[str]) -> str:
    """Python's own, NumPy, kdsl's; `import` before `from`."""
    groups: list[list[str]] = [[], [], []]
    for line in sorted(imports, key=lambda line: (line.startswith("from"), line)):
        groups[2 if " kdsl" in line else 1 if " numpy" in line else 0].append(line)
    return "\n\n".join("\n".join(group) for group in groups if group)


def _value(call: KernelCall, closure: Closure, functions: list[str], value: Any) -> str:
    """A trace-time argument as an expression; what it needs goes to the file."""
    if isinstance(value, Tail):
        doc = "What is stored for an accumulator."
        functions.append(function_text("epilogue", doc, value, KERNEL))
        return "epilogue"
    if value is None or isinstance(value, tuple | int | float | str):
        return repr(value)
    home = value if inspect.isfunction(value) else type(value)
    if not home.__module__.startswith(_PACKAGE):
        raise _cannot(call, f"its trace-time argument {value!r} has no source that can be copied")
    closure.add(home.__module__, home.__name__)
    return home.__name__ if inspect.isfunction(value) else _made(value)


def _made(value: Any) -> str:
    """How to make a value of a dataclass, a line for each field that is not as usual."""
    if not dataclasses.is_dataclass(value):
        return repr(value)
    held = ((f, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init)
    lines = [f"            {f.name}={_quoted(x)},\n" for f, x in held if x != f.default]
    return f"{type(value).__name__}(\n{''.join(lines)}        )"


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _reference(call: KernelCall) -> str:
    letters = [chr(ord("a") + i) for i in range(len(call.operands))]
    extras = [f"x{i}" for i in range(len(call.extras))]
    wide = "\n".join(f"    {x} = {x}.astype(np.float32)" for x in letters)
    result = call.formula
    if isinstance(call.epilogue, Tail):
        result = f"epilogue_in_numpy({', '.join([result, *extras])})"
    return (
        f"def reference({', '.join([*letters, *extras])}):\n"
        f'    """The result in NumPy, before it is rounded."""\n{wide}\n'
        f"    return {result}"
    )


def _launch(call: KernelCall, statics: Mapping[str, str]) -> str:
    specs = "\n".join(
        f'        kd.spec("{x.dtype}", {tuple(x.shape)}, strides={tuple(x.strides)}),'
        for x in call.specs()
    )
    held = "".join(f'        "{name}": {text},\n' for name, text in statics.items())
    return (
        f"EJECTED = Ejected(\n    kernel={call.kernel.__name__},\n    grid={call.grid},\n"
        f"    block={call.block},\n    cluster={call.cluster},\n    overlap={call.overlap},\n"
        f"    statics={{\n{held}    }},\n    arguments=[\n{specs}\n    ],\n"
        f"    reference=reference,\n    reads={len(call.operands)},\n"
        f"    outputs={len(call.outputs)},\n)"
    )


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
