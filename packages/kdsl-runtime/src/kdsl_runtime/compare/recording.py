"""What another program gave a kernel and got back, from a NumPy file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from kdsl_core.dtypes import dtype_of
from kdsl_core.errors import ArgumentError
from kdsl_core.lang.kernel import KernelFunction
from kdsl_core.lang.signature import Parameter

Array: TypeAlias = np.ndarray[Any, Any]
_OUT = ".out"
_FORM = 'np.savez("run.npz", **{"A": a, "B": b, "C.out": c}): arguments by name, ".out" afterwards'


@dataclass(frozen=True)
class Recording:
    """`arguments` as a kernel is given them, and `outputs` that were found in them, run by run."""

    arguments: Mapping[str, Any]
    outputs: Mapping[str, tuple[Array, ...]]


def read(path: Path, kernel: KernelFunction) -> Recording:
    """The recording in a file: "A" is an argument, "C.out" what C held afterwards, "C.out.2" what
    it held after another run. An output that is not given as an argument starts as NaN.

    Raises: ArgumentError K770 for a file without outputs, or with names that the kernel lacks.
    """
    arguments, outputs = {}, defaultdict(list)
    for key, value in _arrays(path):
        name, out, _ = key.partition(_OUT)
        parameter = kernel.signature.by_name.get(name)
        if parameter is None:
            names = ", ".join(kernel.signature.by_name)
            raise _unusable(path, f"holds {key!r}, but {kernel.__name__} takes {names}")
        held = _typed(path, key, value, parameter)
        if out:
            outputs[name].append(held)
        else:
            arguments[name] = held if parameter.kind == "tensor" else held.item()
    if not outputs:
        raise _unusable(path, 'holds no output: no name ends in ".out"')
    for name, runs in outputs.items():
        if any(run.shape != runs[0].shape or run.dtype != runs[0].dtype for run in runs):
            raise _unusable(path, f"holds runs of {name} with different shapes or types")
        arguments.setdefault(name, unwritten(runs[0]))
    return Recording(arguments, {name: tuple(runs) for name, runs in outputs.items()})


def unwritten(like: Array) -> Array:
    """An array of this shape, type and order of modes in which nothing has been written yet."""
    exact = like.dtype.kind in "iub"
    return np.full_like(
        like, like.dtype.type(-1 if like.dtype.kind == "i" else 1) if exact else np.nan
    )


def _arrays(path: Path) -> list[tuple[str, Array]]:
    """Names and arrays of a file, outputs in the order of their runs."""
    try:
        with np.load(path) as file:
            return [(key, file[key]) for key in sorted(file)]
    except (OSError, ValueError, TypeError) as problem:
        raise _unusable(path, f"is no file of named NumPy arrays: {problem}") from problem


def _typed(path: Path, key: str, value: Array, parameter: Parameter) -> Array:
    """The array in its type: NumPy stores those that it lacks (bf16, e4m3) as bytes."""
    if value.dtype.kind != "V" or parameter.kind != "tensor":
        return value
    allowed = [t for t in parameter.tensor.dtypes or () if t.bytes == value.dtype.itemsize]
    if len(allowed) != 1:
        kinds = " or ".join(map(str, allowed)) or "none of its types"
        raise _unusable(path, f"holds {key!r} as {value.dtype.itemsize} raw bytes: {kinds}")
    return value.view(dtype_of(allowed[0]).numpy)


def _unusable(path: Path, problem: str) -> ArgumentError:
    return ArgumentError(f"{path} {problem}", code="K770", fix=_FORM)
