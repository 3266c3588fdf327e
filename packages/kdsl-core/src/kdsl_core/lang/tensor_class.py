"""What a specialisation knows of one tensor argument, and how that is written."""

from __future__ import annotations

import re
from typing import Any

from kdsl_core.dtypes import BY_NAME, DType
from kdsl_core.errors import ArgumentError
from kdsl_core.records import dataclass

_TEXT = (
    r"(?P<name>\w+): (?P<dtype>\w+) \((?P<sizes>[^)]*)\):\((?P<strides>[^)]*)\) "
    r"align (?P<align>\d+)(?P<wide>, 64-bit)?"
)
_SIZE = r"(?P<long>long )?(?:(?P<name>[A-Za-z_]\w*)%)?(?P<number>\d+)"
_STRIDE = r"(?:(?P<sign>[+-])%)?(?P<number>\d+)"


@dataclass(frozen=True)
class TensorClass:
    """What a specialisation knows of one tensor argument.

    `sizes` has per mode ("", n) for a fixed size, else (name, divisor); `strides` ("", 0 or 1),
    or ("+" or "-", divisor) by sign. `wide` says that offsets need 64 bits, `long` which sizes do.
    """

    name: str
    dtype: DType
    sizes: tuple[tuple[str, int], ...]
    strides: tuple[tuple[str, int], ...]
    align: int
    wide: bool
    long: tuple[bool, ...]

    @property
    def sizes_text(self) -> str:
        """The sizes: "(m%4, 32)" for an m known to be a multiple of 4, and 32."""
        words = (f"{name}%{n}" if name else str(n) for name, n in self.sizes)
        long = ("long " if is_long else "" for is_long in self.long)
        return f"({', '.join(map(''.join, zip(long, words, strict=True)))})"

    @property
    def strides_text(self) -> str:
        """The strides: "(+%8, 1)" for a positive multiple of 8, and 1."""
        return f"({', '.join(f'{sign}%{n}' if sign else str(n) for sign, n in self.strides)})"

    def __str__(self) -> str:
        shape = f"{self.sizes_text}:{self.strides_text}"
        return f"{self.name}: {self.dtype} {shape} align {self.align}{', 64-bit' * self.wide}"

    @classmethod
    def parse(cls, text: str) -> TensorClass:
        """The class that is written so: `"x: f32 (m%4, 32):(+%4, 1) align 16"`.

        Raises: ArgumentError K735 when no class is.
        """
        found = re.fullmatch(_TEXT, text)
        if found is None or found["dtype"] not in BY_NAME:
            raise _not_a_class(text)
        sizes = [re.fullmatch(_SIZE, word) for word in _words(found["sizes"])]
        strides = [re.fullmatch(_STRIDE, word) for word in _words(found["strides"])]
        if len(sizes) != len(strides) or not all((*sizes, *strides)):
            raise _not_a_class(text)
        return cls(
            found["name"],
            BY_NAME[found["dtype"]],
            tuple((m["name"] or "", int(m["number"])) for m in sizes if m),
            tuple((m["sign"] or "", int(m["number"])) for m in strides if m),
            int(found["align"]),
            found["wide"] is not None,
            tuple(m["long"] is not None for m in sizes if m),
        )

    def differences(self, other: TensorClass) -> list[tuple[str, Any, Any]]:
        """(fact, here, there) for each fact in which another class of the argument differs."""
        facts: list[tuple[str, Any, Any]] = [
            ("dtype", self.dtype, other.dtype),
            ("rank", len(self.sizes), len(other.sizes)),
            ("alignment in bytes", self.align, other.align),
            ("64-bit offsets", self.wide, other.wide),
        ]
        if len(self.sizes) == len(other.sizes):
            facts += [
                ("sizes", self.sizes_text, other.sizes_text),
                ("strides", self.strides_text, other.strides_text),
            ]
        return [(fact, a, b) for fact, a, b in facts if a != b]


def _words(text: str) -> list[str]:
    return text.split(", ") if text else []


def _not_a_class(text: str) -> ArgumentError:
    return ArgumentError(
        f"expected the class of a tensor argument, got {text!r}",
        code="K735",
        fix='write it as kernel.keys() does: "x: f32 (m%4, n%4):(+%4, 1) align 16"',
    )
