"""One variant as it was found good: hashes, resources, numerics, and speed where measured."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import kdsl_core
from kdsl_core.errors import BuildError
from kdsl_core.lang import watch
from kdsl_runtime.assemble import AssembleOptions, ResourceReport
from kdsl_runtime.builds import build
from kdsl_runtime.manifest import Variant
from kdsl_runtime.pins.cubin import instructions
from kdsl_runtime.pins.digest import Digest, digest_of
from kdsl_runtime.pins.figures import built_figures, run_figures
from kdsl_runtime.pins.limits import Measured
from kdsl_runtime.toolchain import Toolchain, default_toolchain


@dataclass(frozen=True)
class Pin:
    """A variant and what became of it.

    `ptx`, `cubin`, `instructions` (of the cubin) and `numerics` are sha256; `numerics` is empty
    where there is no digest. `figures` are further numbers (`pins.figures` names them), those of
    a run only where there is a digest. `measured` is by device name.

    Units: `registers` per thread, all others in bytes; `shared_bytes` static and dynamic.
    """

    variant: Variant
    kdsl: str
    toolchain: str
    toolchain_id: str
    options: tuple[str, ...]
    ptx: str
    cubin: str
    instructions: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    numerics: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, Measured] = field(default_factory=dict)

    @property
    def numbers(self) -> dict[str, float]:
        """All of it that can be more or less."""
        return {**{name: getattr(self, name) for name in _RESOURCES}, **self.figures}

    def as_toml(self) -> dict[str, Any]:
        """The table of a lock."""
        measured = {device: vars(m) for device, m in self.measured.items()}
        facts = {name: getattr(self, name) for name in _FACTS}
        facts["options"] = list(self.options)
        tables = {"figures": {k: int(n) for k, n in self.figures.items()}, "measured": measured}
        filled = {name: table for name, table in tables.items() if table}
        return {**self.variant.as_toml(), **facts, **filled}

    @classmethod
    def from_toml(cls, table: Mapping[str, Any]) -> Pin:
        """The pin that `as_toml` wrote.

        Raises: KeyError, TypeError, ValueError or AttributeError for a table that is none.
        """
        facts = {name: kind(table[name]) for name, kind in _FACTS.items()}
        measured = {
            device: Measured(float(m["us"]), float(m["spread_us"]))
            for device, m in table.get("measured", {}).items()
        }
        figures = {str(name): float(n) for name, n in table.get("figures", {}).items()}
        return cls(Variant.from_toml(table), **facts, figures=figures, measured=measured)


_RESOURCES = ("registers", "spill_bytes", "stack_bytes", "shared_bytes")
_FACTS: dict[str, Any] = {
    "kdsl": str, "toolchain": str, "toolchain_id": str, "options": tuple, "ptx": str, "cubin": str,
    "instructions": str,
    "registers": int, "spill_bytes": int, "stack_bytes": int, "shared_bytes": int, "numerics": str,
}  # fmt: skip


class KdslPinWarning(UserWarning):
    """A variant is pinned without a digest of its numerics."""


def pin(variant: Variant, toolchain: Toolchain | None = None, *, numerics: bool = True) -> Pin:
    """Build a variant and note everything; needs no GPU.

    Where the simulator cannot run it a KdslPinWarning says why, and the pin has no digest.

    Raises: KdslError, whatever is wrong with it.
    """
    toolchain = toolchain or default_toolchain()
    origin: watch.Origin = (variant.function(), variant.specialisation())
    module = variant.module()
    entry = build(module, toolchain=toolchain, origin=origin)
    report = ResourceReport.from_json(entry.metadata["report"])
    digest = _digest(variant) if numerics else None
    numbers = built_figures(module, entry.payload, report)
    counted = run_figures(digest.profile) if digest else {}
    return Pin(
        variant=replace(variant, sample=digest.sample if digest else variant.sample),
        kdsl=kdsl_core.__version__,
        toolchain=toolchain.version,
        toolchain_id=toolchain.id,
        options=tuple(AssembleOptions().arguments()),
        ptx=sha256(module.text.encode()),
        cubin=sha256(entry.payload),
        instructions=sha256(instructions(entry.payload)),
        registers=int(numbers.pop("registers")),
        spill_bytes=int(numbers.pop("spill_bytes")),
        stack_bytes=int(numbers.pop("stack_bytes")),
        shared_bytes=int(numbers.pop("shared_bytes")),
        numerics=digest.value if digest else "",
        figures={**numbers, **counted},
    )


def _digest(variant: Variant) -> Digest | None:
    try:
        return digest_of(variant)
    except BuildError as problem:
        warnings.warn(str(problem), KdslPinWarning, stacklevel=3)
        return None


def sha256(data: bytes) -> str:
    """The hash by which a lock knows a text or a cubin."""
    return hashlib.sha256(data).hexdigest()
