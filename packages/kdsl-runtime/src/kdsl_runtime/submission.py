"""What the driver takes for a launch, written once; a launch writes what varies, and calls it."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from kdsl_core.dtypes import DType
from kdsl_runtime.parameters import ParameterBlock

Dim3 = tuple[int, int, int]
# Gives the maps' bytes for the parameters that vary, in a launch whose last parameters are maps.
Encode = Callable[..., Sequence[bytes]]
_MOST_MAPS = 1024


class Attribute(ctypes.Structure):
    """`CUlaunchAttribute`."""

    _fields_ = (("id", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("value", ctypes.c_uint32 * 16))

    @classmethod
    def of(cls, number: int, *values: int) -> Attribute:
        """The attribute of this number with the first words of its value."""
        return cls(int(number), 0, (ctypes.c_uint32 * 16)(*values))


class Config(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_uint64),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint32),
    )


_VARYING = struct.Struct("<QQI4x")  # from `stream` to the end
_VALUES_AT = 64  # the parameters that vary, so that tensor maps are aligned as in any block


class Submission:
    """A kernel with grid, block and the parameters that stay as they are.

    `submit(stream, *values)` launches it with the values of the others, by position; it raises
    `struct.error` or OverflowError for one that its type cannot hold. `launch` is the driver's
    function, the kernel's handle, what is called when the answer is no success, and what counts.

    Threads: safe; each launch has memory of its own, which is used again.
    """

    def __init__(
        self,
        params: Sequence[tuple[str, DType]],
        sizes: tuple[Dim3, Dim3, int],
        attributes: Sequence[Attribute],
        constants: Mapping[int, Any],
        launch: tuple[Any, ...],
        encode: tuple[int, Encode] | None = None,
    ) -> None:
        self._sizes = sizes
        self._attributes = (Attribute * len(attributes))(*attributes)
        self._order = [i for i in range(len(params)) if i not in constants] + list(constants)
        varying = [params[i] for i in self._order[: len(params) - len(constants)]]
        fixed = ParameterBlock([params[i] for i in constants])
        self._fixed = fixed.pack(list(constants.values()))
        self.block = ParameterBlock(varying)
        self._fixed_at = _VALUES_AT + -(-self.block.size // 64) * 64
        self._offsets = [_VALUES_AT + offset for offset in self.block.offsets]
        self._offsets += [self._fixed_at + offset for offset in fixed.offsets]
        gap = _VALUES_AT - Config.stream.offset - _VARYING.size
        layout = struct.Struct(f"{_VARYING.format}{gap}x{self.block.layout}")
        maps, encoder = encode or (0, None)
        address = ctypes.addressof(self._attributes) if attributes else 0
        free: list[Any] = []  # list.pop and list.append are atomic: a free list without a lock
        self.submit: Callable[..., None] = _factory(len(varying) - maps, maps)(
            layout.pack_into, free.pop, free.append, self._slot, *launch, address, len(attributes),
            encoder,
        )  # fmt: skip

    def _slot(self) -> tuple[Any, ctypes.c_void_p, Any]:
        """Memory for one launch: all of it, where its configuration is, and its pointers."""
        memory = ctypes.create_string_buffer(self._fixed_at + len(self._fixed))
        base = ctypes.addressof(memory)
        config = Config.from_buffer(memory)
        config.grid[:], config.block[:], config.shared_bytes = self._sizes
        ctypes.memmove(base + self._fixed_at, self._fixed, len(self._fixed))
        pointers = (ctypes.c_void_p * max(1, len(self._order)))()
        for index, offset in zip(self._order, self._offsets, strict=True):
            pointers[index] = base + offset
        return memory, ctypes.c_void_p(base), pointers


@lru_cache(maxsize=256)
def _factory(values: int, maps: int) -> Callable[..., Callable[..., None]]:
    """Makes `submit` for so many values, then so many tensor maps that follow from them.

    It is written out because a call with a star costs as much as half of the driver's.
    """
    given = "".join(f", v{i}" for i in range(values))
    made = "".join(f"m{i}, " for i in range(maps))
    source = f"""
def make(pack_into, pop, append, slot, launch, function, failed, tick,
         attributes, count, encode):
    known = {{}}

    def submit(stream{given}):
        {f"{made} = known.get(({given[2:]},)) or new(({given[2:]},))" if maps else "pass"}
        try:
            held = pop()
        except IndexError:
            held = slot()
        memory, config, pointers = held
        pack_into(memory, {Config.stream.offset}, stream, attributes, count{given}, {made})
        code = launch(config, function, pointers, None)
        if code:
            failed(code, config, pointers)
        append(held)
        tick()

    def new(values):
        if len(known) >= {_MOST_MAPS}:
            known.clear()
        return known.setdefault(values, tuple(encode(*values)))

    return submit
"""
    space: dict[str, Any] = {}
    exec(source, space)
    make: Callable[..., Callable[..., None]] = space["make"]
    return make
