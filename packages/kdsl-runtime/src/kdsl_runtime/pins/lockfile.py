"""`kdsl.lock`: the pins of a program, sorted, as a TOML file that people read and review."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kdsl_runtime.manifest import Variant
from kdsl_runtime.manifest.file import not_readable, read_tables
from kdsl_runtime.manifest.toml_text import document
from kdsl_runtime.pins.limits import Measured
from kdsl_runtime.pins.pinning import Pin

FORMAT_VERSION = 1
DEFAULT_PATH = "kdsl.lock"
_HEAD = "Kernels as they were built and checked: kdsl check"


class Lock:
    """Pins by variant, sorted."""

    def __init__(self, pins: Iterable[Pin] = ()) -> None:
        self.pins = {pin.variant: pin for pin in sorted(pins, key=lambda pin: pin.variant)}

    def __iter__(self) -> Iterator[Pin]:
        return iter(self.pins.values())

    def __len__(self) -> int:
        return len(self.pins)

    def get(self, variant: Variant) -> Pin | None:
        """The pin of a variant."""
        return self.pins.get(variant)

    def has_cubin(self, cubin: str) -> bool:
        """Whether some pin is of this machine code."""
        return any(pin.cubin == cubin for pin in self)

    def measured_by(self, before: Lock) -> Lock:
        """The same, with the speed that `before` states for the same machine code."""
        kept = []
        for pin in self:
            old = before.get(pin.variant)
            if old is not None and old.cubin == pin.cubin:
                pin = replace(pin, measured={**old.measured, **pin.measured})
            kept.append(pin)
        return Lock(kept)

    def with_speed(self, variant: Variant, device: str, us: float, spread_us: float) -> Lock:
        """The same, with what was measured of a variant on a device.

        Units: microseconds per launch; `spread_us` is how far repetitions differ.
        Raises: KeyError for a variant without a pin.
        """
        pin = self.pins[variant]
        measured = {**pin.measured, device: Measured(us, spread_us)}
        return Lock(
            (*(other for other in self if other is not pin), replace(pin, measured=measured))
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str] = DEFAULT_PATH) -> Lock:
        """The lock in a file.

        Raises: ArgumentError K736 for a file that is none, OSError.
        """
        return cls(_pin(table, path) for table in read_tables(Path(path), "pin", FORMAT_VERSION))

    def text(self) -> str:
        """The file's content, the same for equal locks."""
        return document(_HEAD, FORMAT_VERSION, "pin", [pin.as_toml() for pin in self])

    def save(self, path: str | os.PathLike[str] = DEFAULT_PATH) -> None:
        """Write the file. Raises: OSError."""
        Path(path).write_text(self.text(), encoding="utf-8")


def _pin(table: dict[str, Any], path: str | os.PathLike[str]) -> Pin:
    try:
        return Pin.from_toml(table)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise not_readable(path, f"a pin lacks or misstates {problem}: {table}") from problem
