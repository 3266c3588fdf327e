"""PTX to cubin with ptxas: what it reports is read, what it warns of is passed on."""

from __future__ import annotations

import time
import warnings
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from kdsl_core.errors import BuildError
from kdsl_core.records import dataclass
from kdsl_runtime import metrics
from kdsl_runtime.toolchain import Toolchain, default_toolchain

if TYPE_CHECKING:
    from kdsl_runtime.ptx_module import PtxModule


class KdslBuildWarning(UserWarning):
    """A kernel was built, but the assembler spilled registers or dropped what was asked for."""


@dataclass(frozen=True)
class AssembleOptions:
    """How ptxas is asked to work. `extra` are further arguments, as the program takes them.

    Units: `time_limit_s` in seconds; it bounds the build and is no part of what is built.
    """

    opt_level: int = 3
    line_info: bool = False
    max_registers: int | None = None
    extra: tuple[str, ...] = ()
    time_limit_s: float = 300.0

    def arguments(self) -> list[str]:
        """The arguments that decide the cubin's content."""
        chosen = [f"-O{self.opt_level}"]
        if self.line_info:
            chosen.append("--generate-line-info")
        if self.max_registers is not None:
            chosen.append(f"--maxrregcount={self.max_registers}")
        return [*chosen, *self.extra]


@dataclass(frozen=True)
class ResourceReport:
    """What one thread and one block of the kernel use, as ptxas states it.

    Units: `registers` per thread; all others in bytes, `shared` being static shared memory.
    """

    registers: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0
    shared: int = 0
    constant: int = 0
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {**asdict(self), "warnings": list(self.warnings)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ResourceReport:
        """The report that `as_json` wrote; names that this version lacks are dropped."""
        names = {field.name for field in fields(cls)} - {"warnings"}
        numbers = {name: int(values.get(name, 0)) for name in names}
        return cls(**numbers, warnings=tuple(values.get("warnings", ())))


@dataclass(frozen=True)
class Cubin:
    """A machine-code image of one kernel and the report of its resources."""

    data: bytes
    report: ResourceReport


def assemble(
    source: PtxModule | str,
    target: str,
    toolchain: Toolchain | None = None,
    options: AssembleOptions | None = None,
) -> Cubin:
    """The cubin of `source` for `target`; spills and C7xxx warnings become KdslBuildWarning.

    Threads: safe; the assembler runs in a process of its own.
    Raises: ResourceError K481–K483 when a block does not fit the target, BuildError K704 (time
    limit), K705 (ptxas refused the PTX), K708 (no program) and K710 (it does not run).
    """
    # None of these is needed where cubins are found.
    from kdsl_runtime.ptx_module import text_and_entry
    from kdsl_runtime.ptxas import parse_report, run_ptxas
    from kdsl_runtime.resources import check_block, check_registers

    toolchain = toolchain or default_toolchain()
    options = options or AssembleOptions()
    text, entry = text_and_entry(source)
    if not isinstance(source, str):
        check_block(source, target)
    started = time.perf_counter()
    try:
        data, log = run_ptxas(text, entry, target, toolchain, options)
    except BuildError:
        metrics.add("build_failures")
        raise
    report = parse_report(log)
    if not isinstance(source, str):
        check_registers(entry, report.registers, source.threads, target)
    metrics.add("builds")
    metrics.add("build_seconds", time.perf_counter() - started)
    surface(report, entry, target)
    return Cubin(data, report)


def surface(report: ResourceReport, entry: str, target: str) -> None:
    """Warn of spills and of what the assembler dropped, with the kernel's name."""
    found = list(report.warnings)
    if report.spill_stores or report.spill_loads:
        found.insert(
            0,
            f"{report.spill_stores} bytes of spill stores and {report.spill_loads} bytes of spill "
            f"loads at {report.registers} registers per thread",
        )
    for text in found:
        warnings.warn(f"kernel {entry} ({target}): {text}", KdslBuildWarning, stacklevel=3)
