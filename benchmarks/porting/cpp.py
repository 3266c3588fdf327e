"""The CuTe C++ kernels that examples/porting/ ports: built, run, and laid beside ours.

python3 benchmarks/porting/cpp.py headers nvidia_cutlass-4.2.0.0-py3-none-any.whl /tmp/cute
python3 benchmarks/porting/cpp.py layouts --cute /tmp/cute
python3 benchmarks/porting/cpp.py seconds --cute /tmp/cute
python3 benchmarks/porting/cpp.py build --cute /tmp/cute --bin /tmp/bin
python3 benchmarks/porting/cpp.py bits --bin /tmp/bin

`headers` takes CuTe's headers out of NVIDIA's wheel (`pip download --no-deps nvidia-cutlass`), and
nothing else. `bits` needs a GPU; the others need nvcc or g++ 12.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KERNELS = ("tiled_copy", "sgemm", "hgemm_sm80", "hgemm_sm90", "hgemm_sm90_tma")
IN_WHEEL = "cutlass_library/source/include/"
NVCC = ("nvcc", "-std=c++17", "-O3", "-arch=sm_90a", "--expt-relaxed-constexpr")
CASES = (("256", "256", "192", "1234"), ("128", "384", "64", "1235"))


def headers(wheel: Path, into: Path) -> None:
    """Unpack CuTe's headers from the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(IN_WHEEL) and name.endswith((".h", ".hpp", ".inl")):
                path = into / name.removeprefix(IN_WHEEL)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))


def layouts(cute: Path) -> str:
    """What layouts.cpp prints."""
    said = subprocess.run(["nvcc", "--dryrun", "x.cu"], capture_output=True, text=True, check=False)
    cuda = next(row.split("TOP=")[1] for row in said.stderr.splitlines() if "TOP=" in row)
    folders = [cute, *(Path(cuda, f"targets/x86_64-linux/include{x}") for x in ("", "/cccl"))]
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/layouts"
        includes = [f"-I{path}" for path in folders]
        run("g++", "-std=c++17", *includes, str(HERE / "layouts.cpp"), "-o", program)
        return run(program)


def build(cute: Path, kernel: str, program: Path) -> None:
    """Compile one of the programs: a kernel for TN and for NT."""
    run(*NVCC, f"-I{cute}", str(HERE / f"{kernel}.cu"), "-o", str(program))


def seconds(cute: Path | None, kernels: Sequence[str]) -> list[dict[str, float | str]]:
    """For each kernel: lines, seconds to build TN and NT cold and warm, and those of nvcc."""
    rows = []
    for kernel in kernels:
        row: dict[str, float | str] = {"kernel": kernel}
        row["lines"] = lines(ROOT / f"examples/porting/{kernel}.py")
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, "KDSL_CACHE_DIR": folder}
            for state in ("cold", "warm"):
                row |= {f"{state} {k}": v for k, v in ours(kernel, env).items()}
        row["C++ lines"] = lines(HERE / f"{kernel}.cu")
        if cute is not None:
            with tempfile.TemporaryDirectory() as folder:
                before, start = spent(), time.perf_counter()
                build(cute, kernel, Path(folder) / kernel)
                row |= {"nvcc s": time.perf_counter() - start, "nvcc cpu s": spent() - before}
        rows.append(row)
        print(
            ", ".join(
                f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
            )
        )
    return rows


def ours(kernel: str, env: dict[str, str]) -> dict[str, float]:
    """Seconds to build TN and NT in a fresh process, after its imports; and of processors."""
    before = spent()
    found = json.loads(run(sys.executable, str(HERE / "build_one.py"), kernel, env=env))
    return {"s": found["seconds"], "process cpu s": spent() - before}


def spent() -> float:
    """Seconds of processors that finished children took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def lines(path: Path) -> int:
    """Lines of a file's kernel, without blank lines, comments and docstrings."""
    rows = path.read_text(encoding="utf-8").splitlines()
    first = next(i for i, row in enumerate(rows) if "__global__" in row or row == "@kd.kernel")
    if path.suffix == ".py":
        return python_lines(rows, first)
    while not rows[first].startswith("template"):
        first -= 1
    last = rows.index("}", first)
    return sum(is_code(row) for row in rows[first : last + 1])


def python_lines(rows: list[str], first: int) -> int:
    """Lines of the function whose decorator stands in a row."""
    functions = [x for x in ast.walk(ast.parse("\n".join(rows))) if isinstance(x, ast.FunctionDef)]
    kernel = next(f for f in functions if f.lineno == first + 2)
    count = sum(is_code(row) for row in rows[first : kernel.end_lineno])
    for node in ast.walk(kernel):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
            text = node.body[0]
            count -= (text.end_lineno or text.lineno) - text.lineno + 1
    return count


def is_code(row: str) -> bool:
    """Whether a row is more than blank or a comment."""
    return bool(row.strip()) and not row.strip().startswith(("//", "#"))


def bits(folder: Path, kernels: Sequence[str]) -> int:
    """Run the programs and compare with the recorded outputs; how many differ."""
    sys.path[:0] = [str(ROOT / "tests"), *map(str, ROOT.glob("packages/*/src"))]
    from porting import NAMES, Case, recorded

    wrong = 0
    for port in (name for name in NAMES if name in kernels):
        for majors in ("TN", "NT"):
            for case in CASES:
                with tempfile.TemporaryDirectory() as out:
                    run(str(folder / port), majors, *case, f"{out}/C")
                    want = recorded(Case(port, majors, *map(int, case[:3])))
                    got = np.fromfile(f"{out}/C", want.dtype).reshape(want.shape[::-1]).T
                differ = int((got.view(f"u{got.itemsize}") != want.view(f"u{got.itemsize}")).sum())
                print(f"{port} {majors} {'x'.join(case[:3])}: {differ} of {want.size} differ")
                wrong += differ > 0
    return wrong


def run(*command: str, env: dict[str, str] | None = None) -> str:
    """What a command prints; ends the script with its errors when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """The commands above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["headers", "layouts", "build", "seconds", "bits"])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--cute", type=Path)
    parser.add_argument("--bin", type=Path)
    parser.add_argument("--only", nargs="*", default=KERNELS)
    given = parser.parse_args()
    if given.what == "headers":
        headers(*given.paths)
    elif given.what == "layouts":
        print(layouts(given.cute), end="")
    elif given.what == "build":
        given.bin.mkdir(parents=True, exist_ok=True)
        for kernel in given.only:
            build(given.cute, kernel, given.bin / kernel)
    elif given.what == "seconds":
        seconds(given.cute, given.only)
    else:
        sys.exit(bits(given.bin, given.only) and 1)


if __name__ == "__main__":
    main()
