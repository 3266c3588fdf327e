"""Which kernel of a file to run, and with what: for the command `kdsl inspect`."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from kdsl_core.dtypes import dtype_of
from kdsl_core.errors import ArgumentError
from kdsl_core.lang.kernel import KernelFunction
from kdsl_core.lang.source_module import module_of_file

_ARRAY = re.compile(r"(\w+)\[([\d\s,]+)\]")
_EXAMPLE = "example_"
_LAUNCH = "launch_"


def load(path: Path) -> ModuleType:
    """The module of a file, imported with its folder on the path, as `python FILE` would have it.

    What the file itself raises is passed on. Raises: ArgumentError K750 when it is missing.
    """
    if path.suffix != ".py" or not path.is_file():
        raise ArgumentError(
            f"{path} is no Python file", code="K750", fix="kdsl inspect path/to/file.py:kernel"
        )
    sys.path.insert(0, str(path.resolve().parent))
    return module_of_file(path, path.stem)


def find(module: ModuleType, name: str) -> KernelFunction:
    """The kernel of a name, or the only one of the file.

    Raises: ArgumentError K751 when there is none, or no name and several.
    """
    kernels = {n: k for n, k in vars(module).items() if isinstance(k, KernelFunction)}
    if name in kernels:
        return kernels[name]
    if not name and len(kernels) == 1:
        return next(iter(kernels.values()))
    got = f"no kernel {name!r}" if name else f"{len(kernels)} kernels"
    raise ArgumentError(
        f"{module.__file__} has {got}",
        code="K751",
        fix=f"name one of them: {', '.join(kernels) or 'there is none'}",
    )


def launch_of(
    module: ModuleType,
    kernel: KernelFunction,
    given: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> dict[str, Any]:
    """The keyword arguments of `kd.inspect.report` for a launch.

    They are those that the file's function `example_KERNEL` returns, replaced by what was `given`
    (grid, block, cluster) and by `arguments` of the kernel by name.

    Raises: ArgumentError K752 when grid, block or arguments are not known.
    """
    example = getattr(module, _EXAMPLE + kernel.__name__, None)
    launch: dict[str, Any] = dict(example()) if example is not None else {}
    launch.update({name: value for name, value in given.items() if value is not None})
    if arguments:
        names = [parameter.name for parameter in kernel.signature.parameters]
        before = dict(zip(names, launch.pop("args", ()), strict=False))
        launch["kwargs"] = {**before, **launch.get("kwargs", {}), **arguments}
        launch["args"] = ()
    missing = [name for name in ("grid", "block", "args") if name not in launch]
    if missing:
        raise ArgumentError(
            f"{kernel.__name__}: {' and '.join(missing)} of a launch are not known",
            code="K752",
            fix=f"pass --grid, --block and a --spec for each argument, or write a function "
            f"{_EXAMPLE}{kernel.__name__}() that returns dict(grid=…, block=…, args=(…))",
        )
    return launch


def launch_for(
    module: ModuleType,
    kernel: KernelFunction,
    given: Mapping[str, Any],
    statics: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> dict[str, Any]:
    """The keyword arguments of `kd.simulate` for a launch on these arguments.

    They are those that the file's function `launch_KERNEL(**arguments)` returns, replaced by what
    was `given` (grid, block, cluster) and by `statics`.

    Raises: ArgumentError K752 when grid or block are not known.
    """
    make = getattr(module, _LAUNCH + kernel.__name__, None)
    launch: dict[str, Any] = dict(make(**arguments)) if make else {"args": (), "kwargs": arguments}
    launch.update({name: value for name, value in given.items() if value is not None})
    launch["kwargs"] = {**launch.get("kwargs", {}), **statics}
    missing = [name for name in ("grid", "block") if name not in launch]
    if missing:
        raise ArgumentError(
            f"{kernel.__name__}: {' and '.join(missing)} of a launch are not known",
            code="K752",
            fix=f"pass --grid and --block, or write a function {_LAUNCH}{kernel.__name__}"
            f"({', '.join(arguments)}) that returns dict(grid=…, block=…, args=(…))",
        )
    return launch


def arguments_of(specs: Sequence[str], statics: Sequence[str], seed: int) -> dict[str, Any]:
    """Kernel arguments from "x=bf16[128,64]" (random numbers), "n=3" and "tile=64" or "mode=fast".

    Raises: ArgumentError K753 for a text that says none of these.
    """
    rng = np.random.default_rng(seed)
    found = {name: _value(name, text, rng) for name, text in map(_halves, specs)}
    return {**found, **{name: _literal(text) for name, text in map(_halves, statics)}}


def _halves(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise _unreadable(text)
    return name, value.strip()


def _value(name: str, text: str, rng: np.random.Generator) -> Any:
    array = _ARRAY.fullmatch(text)
    if array is None:
        value = _literal(text)
        if isinstance(value, str):
            raise _unreadable(f"{name}={text}")
        return value
    dtype = dtype_of(array[1])
    shape = tuple(int(size) for size in array[2].replace(",", " ").split())
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    return rng.integers(0, 100, shape).astype(dtype.numpy)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def sizes_of(text: str | None) -> tuple[int, ...] | None:
    """A grid, block or cluster: "4" or "4,2".

    Raises: ArgumentError K753 when these are no numbers.
    """
    if text is None:
        return None
    if not re.fullmatch(r"\d+(,\d+){0,2}", text):
        raise _unreadable(text)
    return tuple(map(int, text.split(",")))


def _unreadable(text: str) -> ArgumentError:
    return ArgumentError(
        f"{text!r} is no argument of a launch",
        code="K753",
        fix="write --spec x=bf16[128,64] for an array, --spec n=3 for a number, --static tile=64 "
        "for a trace-time value, --grid 4,2 for sizes",
    )
