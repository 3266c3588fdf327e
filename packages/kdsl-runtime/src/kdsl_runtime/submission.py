"""What the driver takes for a launch, written once; a launch writes what varies, and calls it."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from textwrap import indent
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
# Python writes its own machine's `unsigned long` in half the time of eight bytes of a stated order.
_NATIVE = {"Q": "L", "q": "l"} if struct.calcsize("@L") == 8 and sys.byteorder == "little" else {}
_VALUES_AT = 64  # the parameters that vary, so that tensor maps are aligned as in any block


class Submission:
    """A kernel with grid, block and the parameters that stay as they are.

    `submit(stream, *values)` launches it with the values of the others, by position; it raises
    `struct.error` or OverflowError for one that its type cannot hold. `launch` is the driver's
    function, the kernel's handle, what is called when the answer is no success, and what counts.
    `text` is what `submit` does, for generated code that saves the call; `means` are its names.
    With `typed`, each value is of its parameter's type: a launch with the values of the latest one
    that used the same memory writes nothing.

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
        *,
        typed: bool = False,
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
        layout = _fast(f"{_VARYING.format}{gap}x{self.block.layout}")
        self._maps = encode[0] if encode else 0
        self._known: dict[tuple[Any, ...], Sequence[bytes]] = {}
        free: list[Any] = []  # list.pop and list.append are atomic: a free list without a lock
        # Zeros of either sign are equal, and other bits.
        self._compares = typed and not set(self.block.layout) & set("fde")
        call, function, failed, tick = launch
        self.means: dict[str, Any] = {
            "enqueue": call, "function": function, "failed": failed, "tick": tick,
            "pop": free.pop, "append": free.append, "slot": self._slot,
            "pack_into": layout.pack_into, "count": len(attributes),
            "attributes": ctypes.addressof(self._attributes) if attributes else 0,
            "maps_of": self._known.get, "encoded": self._encoder(encode[1]) if encode else None,
        }  # fmt: skip
        self._inputs = len(varying) - self._maps

    @cached_property
    def submit(self) -> Callable[..., None]:
        """Launches; compiled when it is first asked for."""
        return _factory(self._inputs, self._maps, self._compares)(**self.means)

    def text(self, values: Sequence[str], check: str = "") -> str:
        """A launch on `stream` with these values as Python, in terms of `means`.

        `check` comes before values that were not written before.
        """
        return _text(tuple(values), self._maps, self._compares, check)

    def _encoder(self, encode: Encode) -> Callable[[tuple[Any, ...]], Sequence[bytes]]:
        def encoded(values: tuple[Any, ...]) -> Sequence[bytes]:
            if len(self._known) >= _MOST_MAPS:
                self._known.clear()
            return self._known.setdefault(values, tuple(encode(*values)))

        return encoded

    def _slot(self) -> list[Any]:
        """Memory for one launch, references to its configuration and pointers, and what is in it.

        That is the stream and the values of the latest launch; None before the first.
        """
        memory = ctypes.create_string_buffer(self._fixed_at + len(self._fixed))
        base = ctypes.addressof(memory)
        config = Config.from_buffer(memory)
        config.grid[:], config.block[:], config.shared_bytes = self._sizes
        ctypes.memmove(base + self._fixed_at, self._fixed, len(self._fixed))
        pointers = (ctypes.c_void_p * max(1, len(self._order)))()
        for index, offset in zip(self._order, self._offsets, strict=True):
            pointers[index] = base + offset
        return [memory, ctypes.byref(config), ctypes.byref(pointers), None]


def _fast(layout: str) -> struct.Struct:
    """The layout, whose values are aligned, in the machine's own terms where those are the same.

    Its own f32 would take what is too large for one.
    """
    wanted = struct.Struct(layout)
    own = struct.Struct("".join(_NATIVE.get(letter, letter) for letter in layout[1:]))
    return own if _NATIVE and "f" not in layout and own.size == wanted.size else wanted


@lru_cache(maxsize=256)
def _factory(values: int, maps: int, compares: bool) -> Callable[..., Callable[..., None]]:
    """Makes `submit` for so many values, then so many tensor maps that follow from them.

    It is written out because a call with a star costs as much as half of the driver's.
    """
    given = tuple(f"v{i}" for i in range(values))
    source = f"""
def make(enqueue, function, failed, tick, pop, append, slot, pack_into, count, attributes,
         maps_of, encoded):
    def submit({", ".join(["stream", *given])}):
        {indent(_text(given, maps, compares), " " * 8).lstrip()}

    return submit
"""
    space: dict[str, Any] = {}
    exec(source, space)
    make: Callable[..., Callable[..., None]] = space["make"]
    return make


def _text(values: tuple[str, ...], maps: int, compares: bool, check: str = "") -> str:
    made = "".join(f"m{i}, " for i in range(maps))
    each = "".join(f"{value}, " for value in values)
    lines = [check] * bool(check)
    if maps:
        lines.append(f"{made}= maps_of(({each})) or encoded(({each}))")
    at = Config.stream.offset
    lines.append(f"pack_into(memory, {at}, stream, attributes, count, {each}{made})")
    write = "\n".join(lines)
    if compares:
        write = f"{write}\nheld[3] = given"
        write = f"given = stream, {each}\nif given != latest:\n{indent(write, ' ' * 4)}"
    return f"""\
try:
    held = pop()
except IndexError:
    held = slot()
memory, config, pointers, latest = held
{write}
code = enqueue(config, function, pointers, None)
if code:
    failed(code, config, pointers)
append(held)
tick()"""
