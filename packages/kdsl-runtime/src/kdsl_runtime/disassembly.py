"""Machine code by source line, as `nvdisasm` prints it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from kdsl_core.errors import BuildError
from kdsl_runtime.toolchain import package_folders

_TIME_LIMIT_S = 60.0
_MARK = re.compile(r'//## File "([^"]+)", line (\d+)')
_CODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?;)")


def sass_by_line(cubin: bytes) -> dict[tuple[str, int], tuple[str, ...]]:
    """The instructions of each (file, line) of a cubin that was built with line information.

    Raises: BuildError K754 when there is no `nvdisasm`, or it fails.
    """
    found: dict[tuple[str, int], list[str]] = {}
    place = ("", 0)
    for line in _disassembled(cubin).splitlines():
        mark, code = _MARK.search(line), _CODE.search(line)
        if mark:
            place = mark[1], int(mark[2])
        elif code:
            found.setdefault(place, []).append(code[1])
    return {key: tuple(lines) for key, lines in found.items()}


def sass(cubin: bytes) -> list[str]:
    """All instructions of a cubin, in order.

    Raises: BuildError K754 when there is no `nvdisasm`, or it fails.
    """
    return [code[1] for line in _disassembled(cubin).splitlines() if (code := _CODE.search(line))]


def _disassembled(cubin: bytes) -> str:
    program = find_nvdisasm()
    if program is None:
        raise BuildError(
            "the program nvdisasm is neither a wheel here nor on PATH",
            code="K754",
            fix="pip install 'kdsl-runtime[sass]'",
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run(
            [str(program), "--print-code", "--print-line-info", str(file)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIME_LIMIT_S,
        )
    if done.returncode:
        raise BuildError(
            f"{program} failed: {done.stderr.strip()[:300]}",
            code="K754",
            fix="use an nvdisasm of the toolkit that assembled the kernel, or a newer one",
        )
    return done.stdout


def find_nvdisasm() -> Path | None:
    """The wheel's program, else the one on PATH."""
    for folder in package_folders("nvidia"):
        for program in sorted(Path(folder).glob("*/bin/nvdisasm")):
            return program
    on_path = shutil.which("nvdisasm")
    return Path(on_path) if on_path else None
