"""PTX to cubin with ptxas: what it reports is read, what it warns of is passed on."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdsl_core.errors import BuildError
from kdsl_runtime import metrics, ptx_source
from kdsl_runtime.ptx_module import PtxModule, text_and_entry
from kdsl_runtime.resources import check_block, check_registers
from kdsl_runtime.toolchain import Toolchain, default_toolchain

if TYPE_CHECKING:
    import subprocess

_SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_CONSTANT = re.compile(r"(\d+) bytes cmem\[\d+\]")
# C75xx: setmaxnreg ignored, or wgmma serialised; the register and pipeline plan did not hold.
_WARNING = re.compile(r"^ptxas\s*(?:warning\s*:|info\s*:\s*(?=\(C7\d{3}\)))\s*(.*)$", re.MULTILINE)


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
    toolchain = toolchain or default_toolchain()
    options = options or AssembleOptions()
    text, entry = text_and_entry(source)
    if not isinstance(source, str):
        check_block(source, target)
    started = time.perf_counter()
    try:
        data, log = _run_ptxas(text, entry, target, toolchain, options)
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


def parse_report(log: str) -> ResourceReport:
    """The numbers and warnings in what `ptxas -v` printed for one kernel."""
    spill = _SPILL.search(log)
    stack, stores, loads = map(int, spill.groups()) if spill else (0, 0, 0)
    used, shared = _USED.search(log), _SHARED.search(log)
    return ResourceReport(
        registers=int(used[1]) if used else 0,
        spill_stores=stores,
        spill_loads=loads,
        stack=stack,
        shared=int(shared[1]) if shared else 0,
        constant=sum(map(int, _CONSTANT.findall(log))),
        warnings=tuple(dict.fromkeys(text.strip() for text in _WARNING.findall(log))),
    )


def _run_ptxas(
    text: str, entry: str, target: str, toolchain: Toolchain, options: AssembleOptions
) -> tuple[bytes, str]:
    import tempfile  # not needed where cubins are found

    if toolchain.path is None:
        raise BuildError(
            f"kernel {entry}: the driver's JIT makes no cubin that can be kept",
            code="K708",
            fix="pip install 'kdsl-runtime[ptxas]', or set KDSL_PTXAS",
        )
    with tempfile.TemporaryDirectory(prefix="kdsl-") as folder:
        ptx, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        ptx.write_text(text, encoding="utf-8")
        argv = [str(toolchain.path), f"-arch={target}", "-v", *options.arguments()]
        done = _call([*argv, str(ptx), "-o", str(cubin)], folder, entry, options.time_limit_s)
        if done.returncode != 0 or not cubin.is_file():
            raise _refusal(text, entry, target, toolchain, done)
        return cubin.read_bytes(), done.stdout + done.stderr


def _call(
    argv: Sequence[str], folder: str, entry: str, time_limit_s: float
) -> subprocess.CompletedProcess[str]:
    import subprocess

    try:
        return subprocess.run(
            argv,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=time_limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as problem:
        raise BuildError(
            f"kernel {entry}: {argv[0]} did not finish within {time_limit_s:g} s",
            code="K704",
            fix="raise AssembleOptions.time_limit_s, or unroll less",
        ) from problem
    except OSError as problem:
        raise BuildError(
            f"the assembler {argv[0]} does not run: {problem}",
            code="K710",
            fix="see `kdsl doctor` for the assemblers that work",
        ) from problem


def _refusal(
    text: str,
    entry: str,
    target: str,
    toolchain: Toolchain,
    done: subprocess.CompletedProcess[str],
) -> BuildError:
    log = (done.stderr + done.stdout).strip()
    problems = ptx_source.problems(log)
    first = problems[0] if problems else None
    said = first.message if first else log[-400:] or f"exit status {done.returncode}, no message"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    notes = ptx_source.context(text, first.line) if first and first.line else []
    return BuildError(
        f"kernel {entry}: ptxas {toolchain.version} for {target} refused the PTX: {said}{more}",
        code="K705",
        notes=notes,
        fix=ptx_source.advice(said),
    )
