"""How generated code reads an array: few attributes, each of which costs a tenth of a launch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from kdsl_runtime.arrays import current_stream, is_torch
from kdsl_runtime.device_array import DeviceArray


class Reader(NamedTuple):
    """Python expressions of an array `{0}`: its address, and all else that a launch depends on."""

    pointer: str
    facts: str


TORCH = Reader("{0}.data_ptr()", "{0}.dtype, {0}.shape, {0}.stride(), {0}.device")
OWN = Reader("{0}.pointer", "{0}.dtype.name, {0}.shape, {0}.index")


def reader_of(kind: type) -> Reader | None:
    """How arrays of a type are read; None where it takes more than attributes."""
    if kind is DeviceArray:
        return OWN
    return TORCH if is_torch(kind) else None


def stream_reader(readers: Iterable[Reader]) -> Callable[[int], int]:
    """What gives the stream for a launch on arrays that are read so, by the device's index.

    Where there is a CUDA tensor, torch has been initialised, and its own look-up is the shortest.
    """
    if TORCH in readers:
        raw = getattr(getattr(sys.modules.get("torch"), "_C", None), _TORCH_STREAM, None)
        if raw is not None:
            found: Callable[[int], int] = raw
            return found
    return current_stream


def guard_of(arrays: Sequence[Any]) -> Callable[..., bool] | None:
    """torch's own comparison of tensors with these: types, dtypes, devices, shapes and strides.

    It is one call for all of them, and costs less than one attribute of each. It may also see a
    difference that is none for a launch. None where it is not to be had: for other arrays, for one
    that is there twice, and in a torch without it.
    """
    torch: Any = sys.modules.get("torch")
    try:
        guards, plain = torch._C._dynamo.guards.TensorGuards, (torch.Tensor, torch.nn.Parameter)
        if not arrays or any(type(array) not in plain for array in arrays):
            return None
        return _guard(guards, arrays) if _discerns(guards) else None
    except (AttributeError, TypeError, ValueError, RuntimeError):  # it is no public interface
        return None


def _guard(guards: Any, arrays: Sequence[Any]) -> Callable[..., bool] | None:
    check: Callable[..., bool] = guards(
        *arrays, dynamic_dims_sizes=None, dynamic_dims_strides=None
    ).check
    return check if check(*arrays) else None


@cache
def _discerns(guards: Any) -> bool:
    """Whether this torch's guards see each difference that a launch depends on."""
    import torch

    def tensor(*shape: int, kind: Any = torch.float32, device: str = "cpu") -> Any:
        return torch.empty(shape, dtype=kind, device=device)

    first = tensor(2, 2)
    check = _guard(guards, [first, tensor(4, 2)])
    seconds = (
        tensor(4, 3), tensor(4), tensor(2, 4).t(), tensor(4, 2, kind=torch.int32),
        tensor(4, 2, device="meta"), torch.nn.Parameter(tensor(4, 2)), None,
    )  # fmt: skip
    return (
        check is not None
        and check(first, tensor(4, 2))
        and not any(check(first, second) for second in seconds)
    )


_TORCH_STREAM = "_cuda_getCurrentRawStream"
