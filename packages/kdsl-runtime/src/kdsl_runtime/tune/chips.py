"""What the roofline knows of devices that are not here."""

from __future__ import annotations

from dataclasses import dataclass

from kdsl_core.errors import ArgumentError


@dataclass(frozen=True)
class Chip:
    """A device: `name` as its driver gives it.

    Units: `clock_hz` under load, `memory_bytes_per_s` peak.
    """

    name: str
    target: str
    multiprocessors: int
    clock_hz: float
    memory_bytes_per_s: float


# Source: NVIDIA's data sheets of the A100, H100 and H200; the H200's clock from docs/facts.md.
CHIPS = (
    Chip("NVIDIA A100-SXM4-80GB", "sm_80", 108, 1.41e9, 2.04e12),
    Chip("NVIDIA H100 80GB HBM3", "sm_90a", 132, 1.755e9, 3.35e12),
    Chip("NVIDIA H200", "sm_90a", 132, 1.755e9, 4.8e12),
)


def chip_of(name: str) -> Chip:
    """The chip of that name.

    Raises: ArgumentError K764 for one that is not known.
    """
    for chip in CHIPS:
        if chip.name == name:
            return chip
    known = ", ".join(chip.name for chip in CHIPS)
    raise ArgumentError(
        f"nothing is known of the device {name!r} that a prediction needs",
        code="K764",
        fix=f"name one of {known}, or measure on the device itself",
    )
