"""Writing a plan's kernels as files, and reading them back."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Mapping
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


def eject(plan: Plan, folder: str | Path) -> list[Path]:
    """Write each call's kernel to `folder` as a file of its own, specialised to the plan's shapes.

    A file holds the kernel's source with all that it uses, the tail as a function, the launch, a
    NumPy reference and a test; run it to check it, with `--time` to measure it on a GPU. Edit it
    and `load` it back.
    Raises: ArgumentError K967 for a call that no file can hold.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = []
    for index, call in enumerate(plan.calls):
        paths.append(target / f"call_{index}_{call.name}.py")
        paths[-1].write_text(page_of(plan, call), encoding="utf-8")
    return paths


def load(plan: Plan, folder: str | Path) -> None:
    """Let the plan's calls run the kernels of files that `eject` wrote, as they are now.

    Raises: ArgumentError K969 where a file for one of the calls is missing.
    """
    for index, call in enumerate(plan.calls):
        path = Path(folder) / f"call_{index}_{call.name}.py"
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.exists():
            raise ArgumentError(
                f"{folder} has no file {path.name}",
                code="K969",
                fix="write all of them: kf.eject(plan, folder)",
            )
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses, and errors that show lines, look it up
        spec.loader.exec_module(module)
        made = module.EJECTED
        call.replace(
            made.kernel,
            grid=made.grid,
            block=made.block,
            cluster=made.cluster,
            overlap=made.overlap,
            statics=dict(made.statics),
        )


def page_of(plan: Plan, call: KernelCall) -> str:
    """The file of one call."""
    if type(call) is not KernelCall or not call.formula:
        raise _cannot(call, "it launches several kernels, or one that is yours already")
    module = call.kernel.staged.function.__module__
    closure = Closure(_PACKAGE)
    closure.add(module, call.kernel.__name__)
    functions: list[str] = []
    statics = {name: _value(call, closure, functions, x) for name, x in call.statics.items()}
    tail = call.epilogue if isinstance(call.epilogue, Tail) else Tail()
    functions.append(function_text("epilogue_in_numpy", "The same in NumPy.", tail, NUMPY))
    imports = {
        "import kdsl_core as kd",
        "import numpy as np",
        "from kdsl_fuse.ejection import numpy_words",
        "from kdsl_fuse.ejection.ejected import Ejected",
        *closure.imports,
    }
    blocks = [_title(plan, call), "from __future__ import annotations", _sorted(imports)]
    blocks += ["\n\n\n".join(closure.definitions()), "\n\n\n".join(functions)]
    blocks += [_reference(call), _launch(call, statics), _END]
    return "\n\n\n".join(block.strip("\n") for block in blocks) + "\n"


def _title(plan: Plan, call: KernelCall) -> str:
    reads = ", ".join(map(str, (*call.operands, *call.extras)))
    return (
        f'"""{call.output} = {call.name}({reads}), as `{plan.graph.name}` launches it.\n\n'
        "Edit it freely. Run it to check it, with --time to measure it; `kf.load` puts it back."
        '\n"""'
    )


def _sorted(imports: set[str]) -> str:
    own = sorted(line for line in imports if "kdsl" in line)
    return "\n".join([*sorted(imports - set(own)), "", *own])


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
    return str(home.__name__ if inspect.isfunction(value) else repr(value))


def _reference(call: KernelCall) -> str:
    letters = [chr(ord("a") + i) for i in range(len(call.operands))]
    extras = [f"x{i}" for i in range(len(call.extras))]
    wide = "\n".join(f"    {x} = {x}.astype(np.float32)" for x in letters)
    return (
        f"def reference({', '.join([*letters, *extras])}):\n"
        f'    """The result in NumPy, before it is rounded."""\n{wide}\n'
        f"    return epilogue_in_numpy({', '.join([call.formula, *extras])})"
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
        fix="take the other calls one by one: kf.eject needs kernels of kdsl with one launch",
    )
