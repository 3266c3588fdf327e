"""The program ptxas: called in a process of its own, and its log read."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Sequence

from kdsl_core.errors import BuildError
from kdsl_runtime.assemble import AssembleOptions, ResourceReport
from kdsl_runtime.toolchain import Toolchain

_SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_CONSTANT = re.compile(r"(\d+) bytes cmem\[\d+\]")
# C75xx: setmaxnreg ignored, or wgmma serialised; the register and pipeline plan did not hold.
_WARNING = re.compile(r"^ptxas\s*(?:warning\s*:|info\s*:\s*(?=\(C7\d{3}\)))\s*(.*)$", re.MULTILINE)


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


def run_ptxas(
    text: str, entry: str, target: str, toolchain: Toolchain, options: AssembleOptions
) -> tuple[bytes, str]:
    """The cubin of a PTX text, and what ptxas said of it.

    Raises: BuildError K704 (time limit), K705 (refused), K708 (no program), K710 (does not run).
    """
    if toolchain.path is None:
        raise BuildError(
            f"kernel {entry}: the driver's JIT makes no cubin that can be kept",
            code="K708",
            fix="pip install 'kdsl-runtime[ptxas]', or set KDSL_PTXAS",
        )
    with _folder() as folder:
        ptx, cubin = (os.path.join(folder, name) for name in ("kernel.ptx", "kernel.cubin"))
        with open(ptx, "w", encoding="utf-8") as file:
            file.write(text)
        argv = [toolchain.path, f"-arch={target}", "-v", *options.arguments()]
        done = _call([*argv, ptx, "-o", cubin], folder, entry, options.time_limit_s)
        if done.returncode != 0 or not os.path.isfile(cubin):
            raise _refusal(text, entry, target, toolchain, done)
        with open(cubin, "rb") as image:
            return image.read(), done.stdout + done.stderr


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A folder of this user alone, which goes with its files.

    The module `tempfile`, whose imports take 4 ms of a build, is asked where a simple try fails.
    """
    place = os.path.abspath(os.environ.get("TMPDIR") or "/tmp")
    folder = os.path.join(place, f"kdsl-{os.urandom(8).hex()}")
    try:
        os.mkdir(folder, 0o700)
    except OSError:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="kdsl-") as found:
            yield found
        return
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                os.unlink(entry)
            os.rmdir(folder)


def _call(
    argv: Sequence[str], folder: str, entry: str, time_limit_s: float
) -> subprocess.CompletedProcess[str]:
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
    from kdsl_runtime import ptx_source  # not needed for PTX that is right

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
