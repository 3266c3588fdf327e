#!/usr/bin/env python3
"""Every chore of the repository, from any folder, with nothing but Python ≥ 3.11 and pip.

The first call makes `.venv` beside this file, installs the three packages editable and the tools,
and later calls go straight to work. Standard library only, and no import of kdsl.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - it is for the Pythons that pyproject.toml excludes
    sys.exit(
        f"dev.py needs Python 3.11 or newer, this is {sys.version.split()[0]} ({sys.executable}). "
        "Call it as `python3.11 dev.py …`, or install one, e.g. `apt install python3.11`."
    )

import argparse
import contextlib
import ctypes
import fcntl
import glob
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
FINGERPRINT = VENV / "kdsl-fingerprint"
PACKAGES = ("kdsl-core", "kdsl-runtime", "kdsl-fuse")
SOURCES = [ROOT / "packages" / name / "src" for name in PACKAGES]
OLDEST_USEFUL_PTXAS = (12, 8)  # the first release that knows sm_100a and sm_120
INSTALL_TIME_LIMIT_S = 900


class SetUpError(Exception):
    """The environment could not be made; the message says what to do."""


# -- the environment ---------------------------------------------------------------------------
def ensure_environment() -> None:
    """Make `.venv` match the pyproject files; milliseconds when it does already."""
    wanted = fingerprint()
    if is_current(wanted):
        return
    with one_at_a_time():
        if is_current(wanted):  # another call made it while we waited
            return
        fresh = not works(VENV_PYTHON)
        try:
            install(fresh)
        except SetUpError as problem:
            if fresh:
                shutil.rmtree(VENV, ignore_errors=True)
            sys.exit(f"dev.py: set-up failed: {problem}")
        except KeyboardInterrupt:
            if fresh:
                shutil.rmtree(VENV, ignore_errors=True)
            sys.exit("dev.py: set-up interrupted; the next call starts it again")
        FINGERPRINT.write_text(wanted)  # last: without it, the next call installs again


def fingerprint() -> str:
    """A hash of all that decides what is installed, the place included (scripts hold paths)."""
    parts = [str(ROOT), str(has_driver()), str(system_ptxas() is None)]
    for path in [
        ROOT / "pyproject.toml",
        *(folder.parent / "pyproject.toml" for folder in SOURCES),
    ]:
        parts.append(path.read_text())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def is_current(wanted: str) -> bool:
    """Whether the last complete set-up had this fingerprint."""
    try:
        return FINGERPRINT.read_text() == wanted and VENV_PYTHON.exists()
    except OSError:
        return False


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the lock on this file; a second call waits for the first one's set-up."""
    with open(__file__, "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another dev.py that is setting up .venv")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(fresh: bool) -> None:
    """Make `.venv` when it is missing and put everything into it."""
    started = time.monotonic()
    FINGERPRINT.unlink(missing_ok=True)
    if fresh:
        say(f"making {VENV}")
        make_venv()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    say("installing kdsl-core, kdsl-runtime, kdsl-fuse and the tools")
    pip("install", *settings["dependency-groups"]["build"])
    editable = [f"--editable={ROOT / 'packages' / name}{extra(name)}" for name in PACKAGES]
    # Without isolation pip need not fetch the build back end once more for each package.
    pip("install", "--no-build-isolation", *editable, *settings["dependency-groups"]["dev"])
    if system_ptxas() is None:
        pin = runtime_extra("ptxas")
        say(f"no ptxas ≥ {OLDEST_USEFUL_PTXAS[0]}.{OLDEST_USEFUL_PTXAS[1]} here, installing {pin}")
        pip("install", "--no-deps", pin)  # ptxas needs none of the wheel's 120 MiB of dependencies
    say(f".venv is ready ({time.monotonic() - started:.0f} s)")


def make_venv() -> None:
    """An empty `.venv`; pip stays outside when the outer one can install into it, 3 s cheaper."""
    shutil.rmtree(VENV, ignore_errors=True)
    options = ["--without-pip"] if outer_pip() else []
    command([base_python(), "-m", "venv", *options, str(VENV)], missing_venv_hint())


def pip(*arguments: str) -> None:
    """Run uv, the outer pip or the pip of `.venv` on `.venv`, whichever there is."""
    uv, outer = shutil.which("uv"), outer_pip()
    if uv:
        start = [uv, "pip", arguments[0], "--quiet", "--python", str(VENV_PYTHON)]
    elif outer:
        start = [outer, "-m", "pip", "--python", str(VENV_PYTHON), arguments[0], *PIP_OPTIONS]
    else:
        start = [str(VENV_PYTHON), "-m", "pip", arguments[0], *PIP_OPTIONS]
    command(
        [*start, *arguments[1:]], "if that is about the network, call dev.py again; it starts over"
    )


PIP_OPTIONS = ("--quiet", "--disable-pip-version-check", "--no-input")


def outer_pip() -> str | None:
    """A Python outside `.venv` whose pip knows `--python` (22.3 and newer)."""
    for python in dict.fromkeys((base_python(), sys.executable)):
        if Path(python).is_relative_to(VENV):
            continue
        asked = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, text=True)
        version = re.match(r"pip (\d+)\.(\d+)", asked.stdout)
        if version and (int(version[1]), int(version[2])) >= (22, 3):
            return python
    return None


def base_python() -> str:
    """The interpreter that ours was made from, when ours lives in a virtual environment."""
    return str(getattr(sys, "_base_executable", sys.executable))


def missing_venv_hint() -> str:
    """What a Debian user must install when neither pip nor ensurepip is there."""
    if importlib.util.find_spec("ensurepip") is None:
        return "install pip for this Python, for example `apt install python3-pip python3-venv`"
    return f"remove {VENV} and try again"


def command(argv: Sequence[str], hint: str) -> None:
    """Run `argv` quietly; on failure show the end of what it said, and `hint`."""
    try:
        done = subprocess.run(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=INSTALL_TIME_LIMIT_S,
            cwd=ROOT,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise SetUpError(f"{problem}\n{hint}") from problem
    if done.returncode:
        end = "\n".join(done.stdout.strip().splitlines()[-15:])
        raise SetUpError(f"`{' '.join(argv)}` said:\n{end}\n{hint}")


def works(python: Path) -> bool:
    """Whether this interpreter starts (one whose base was uninstalled does not)."""
    try:
        return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0
    except OSError:
        return False


# -- what the machine has ----------------------------------------------------------------------
def has_driver() -> bool:
    """Whether the CUDA driver loads. Asked through ctypes, because cuda.core hangs without one."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def system_ptxas() -> str | None:
    """The first ptxas outside `.venv` that is new enough, in the order kdsl_runtime searches."""
    toolkits = sorted(glob.glob("/usr/local/cuda*/bin/ptxas"))
    for path in (os.environ.get("KDSL_PTXAS"), shutil.which("ptxas"), *toolkits):
        if path is None or Path(path).is_relative_to(VENV):
            continue
        if ptxas_version(path) >= OLDEST_USEFUL_PTXAS:
            return path
    return None


def ptxas_version(path: str) -> tuple[int, int]:
    """(major, minor) that this ptxas states, (0, 0) when it does not run."""
    try:
        asked = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    stated = re.search(r"\bV(\d+)\.(\d+)", asked.stdout)
    return (int(stated[1]), int(stated[2])) if stated else (0, 0)


def extra(name: str) -> str:
    """What the runtime needs for tests; `cuda` without a driver to bind to is dead weight."""
    if name != "kdsl-runtime":
        return ""
    return "[cuda,sass]" if has_driver() else "[sass]"


def runtime_extra(name: str) -> str:
    """The one requirement of an extra of kdsl-runtime, so that its pin is written once."""
    runtime = tomllib.loads((ROOT / "packages/kdsl-runtime/pyproject.toml").read_text())
    return str(runtime["project"]["optional-dependencies"][name][0])


# -- the chores --------------------------------------------------------------------------------
def demo(options: argparse.Namespace, rest: list[str]) -> NoReturn:
    """classify handwritten digits with fused kernels [--device cuda|sim]"""
    ensure_environment()
    become([VENV_PYTHON, ROOT / "examples/digits/demo.py", *rest])


def test(options: argparse.Namespace, rest: list[str]) -> NoReturn:
    """run the tests that this machine can run; --all adds the slow ones [pytest arguments]"""
    ensure_environment()
    alone = any(word in rest for word in ("-n", "--pdb", "--collect-only", "--co"))
    # Neighbours share kernels that were traced, so a worker takes a run of them, and others' later.
    workers = [] if alone else ["-n", "2", "--dist", "worksteal"]
    keep_bytecode()
    chosen = [] if options.all or "-m" in rest else ["-m", "not slow"]
    become([VENV_PYTHON, "-m", "pytest", *workers, *chosen, *rest])


def keep_bytecode() -> None:
    """Let Python keep what it compiles inside of `.venv`, whatever the shell says.

    The tests start kdsl in hundreds of processes, and pytest rewrites each file in each worker.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(VENV / "bytecode")


def extras(options: argparse.Namespace, rest: list[str]) -> NoReturn:
    """install what some tests need: torch's CPU build, onnx, small models, numba"""
    ensure_environment()
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    started = time.monotonic()
    try:
        try:  # a mirror may hold torch's CPU build; asking its own index for all takes minutes
            pip("install", *groups["extras"])
        except SetUpError:
            pip("install", "--extra-index-url", TORCH_CPU_INDEX, *groups["extras"])
        pip("install", "--no-deps", *groups["models"])
    except SetUpError as problem:
        sys.exit(f"dev.py: extras are missing, their tests will be skipped: {problem}")
    say(f"extras are ready ({time.monotonic() - started:.0f} s)")
    sys.exit(0)


TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def docs(options: argparse.Namespace, rest: list[str]) -> NoReturn:
    """build the site of docs/ in build/site: no warning, no broken link [Sphinx's arguments]"""
    ensure_environment()
    if not tool_is_there("import sphinx, myst_parser, furo"):
        groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
        try:
            pip("install", *groups["docs"])
        except SetUpError as problem:
            say(f"the site is not built, its packages cannot be installed: {problem}")
            sys.exit(NO_PACKAGES)
    become([VENV_PYTHON, ROOT / "docs/site/site_build.py", *rest])


NO_PACKAGES = 75  # the exit status that means "try again later"


def tool_is_there(imports: str) -> bool:
    """Whether the Python of `.venv` runs these imports."""
    return subprocess.run([VENV_PYTHON, "-c", imports], capture_output=True).returncode == 0


def lint(options: argparse.Namespace, rest: list[str]) -> NoReturn:
    """ruff, formatting, types, and the rules of the house [ruff, mypy or pytest for these alone]"""
    ensure_environment()
    steps = (
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["pytest", "tests/house"],
    )
    failed = []
    for step in (step for step in steps if not rest or step[0] in rest):
        say(" ".join(step))
        if subprocess.run([VENV_PYTHON, "-m", *step], cwd=ROOT).returncode:
            failed.append(" ".join(step))
    sys.exit(f"dev.py: failed: {', '.join(failed)}" if failed else 0)


def golden(options: argparse.Namespace, rest: list[str]) -> NoReturn:
    """write tests/golden anew from what the code gives now [pytest arguments]"""
    ensure_environment()
    become([VENV_PYTHON, "-m", "pytest", "--update-golden", *rest])


def bench(options: argparse.Namespace, rest: list[str]) -> NoReturn:
    """measure with asv; results in .asv/ [arguments of `asv run`, such as --quick]"""
    ensure_environment()
    config = ["--config", "benchmarks/asv.conf.json"]
    if subprocess.run([VENV_PYTHON, "-m", "asv", "machine", "--yes", *config], cwd=ROOT).returncode:
        sys.exit("dev.py: asv could not describe this machine")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    commit = ["--set-commit-hash", head.stdout.strip()] if head.returncode == 0 else []
    python = f"--python={VENV_PYTHON}"
    become([VENV_PYTHON, "-m", "asv", "run", *config, python, *commit, "--show-stderr", *rest])


def pythons(options: argparse.Namespace, rest: list[str]) -> NoReturn:
    """a sample of the tests, and its coverage, on the oldest and newest Python here [--list]"""
    ensure_environment()
    become([sys.executable, ROOT / "tests/house/pythons.py", *rest])


def gate(options: argparse.Namespace, rest: list[str]) -> NoReturn:
    """fail where BASE..HEAD makes a kernel, or kdsl itself, worse [--deterministic]"""
    ensure_environment()
    become([VENV_PYTHON, ROOT / "benchmarks/gate.py", *rest])


def dashboard(options: argparse.Namespace, rest: list[str]) -> NoReturn:
    """measure, and write the performance record's site to .asv/html [--history N --no-times]"""
    ensure_environment()
    become([VENV_PYTHON, ROOT / "benchmarks/dashboard/build.py", *rest])


def gpu(options: argparse.Namespace, rest: list[str]) -> NoReturn:
    """run the GPU tests with this Python and no .venv [pytest arguments]"""
    if not has_driver():
        sys.exit("dev.py: libcuda.so.1 does not load here: `dev.py gpu` needs a GPU and its driver")
    missing = [name for name in GPU_MODULES if not importable(name)]
    if missing:
        sys.exit(f"dev.py: {sys.executable} lacks {', '.join(missing)}: install or carry them")
    paths = [*map(str, SOURCES), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    # Workers are replaced when the GPU traps, so that one test does not take the others with it.
    workers = ["-n", "8"] if importable("xdist") else []
    become([sys.executable, "-m", "pytest", "-m", "gpu", *workers, *rest])


def importable(name: str) -> bool:
    """Whether this Python finds the module; its parents are imported, it is not."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


GPU_MODULES = ("pytest", "hypothesis", "numpy", "ml_dtypes", "networkx", "cuda.bindings")


def mutants(options: argparse.Namespace, rest: list[str]) -> NoReturn:
    """the simulator against kernels with one mistake each [--kernel P --operator P --sample N]"""
    ensure_environment()
    os.environ["PYTHONPATH"] = str(ROOT / "tests")
    become([VENV_PYTHON, "-m", "mutants.campaign", *rest])


def ops(options: argparse.Namespace, rest: list[str]) -> NoReturn:
    """the table of operations: class, text name, file"""
    ensure_environment()
    become([VENV_PYTHON, ROOT / "tests/house/census.py", "ops"])


def size(options: argparse.Namespace, rest: list[str]) -> NoReturn:
    """lines per package and folder, the longest functions and files"""
    become([sys.executable, ROOT / "tests/house/census.py", "size"])


def errors(options: argparse.Namespace, rest: list[str]) -> NoReturn:
    """write docs/errors.md anew from the codes in the packages"""
    become([sys.executable, ROOT / "tests/house/census.py", "errors"])


CHORES = (
    demo, test, extras, docs, lint, golden, bench, gate, dashboard, pythons, gpu, mutants, ops,
    size, errors,
)  # fmt: skip


def become(argv: Sequence[str | Path]) -> NoReturn:
    """Replace this process, so that signals and the exit status are the chore's own."""
    os.chdir(ROOT)
    sys.stdout.flush()
    os.execv(argv[0], [str(word) for word in argv])


def say(text: str) -> None:
    """One line of progress."""
    print(f"dev.py: {text}", file=sys.stderr, flush=True)


def main(words: Sequence[str]) -> NoReturn:
    """Read the chore's name and hand the other words to it."""
    parser = argparse.ArgumentParser(prog="dev.py", description=__doc__, allow_abbrev=False)
    names = parser.add_subparsers(dest="chore", metavar="CHORE", required=True)
    for chore in CHORES:
        about = chore.__doc__
        sub = names.add_parser(chore.__name__, help=about, add_help=False, allow_abbrev=False)
        sub.set_defaults(run=chore)
        if chore is test:
            sub.add_argument("--all", action="store_true")
    options, rest = parser.parse_known_args(words)
    options.run(options, rest)
    raise AssertionError("a chore replaces the process or exits")


if __name__ == "__main__":
    main(sys.argv[1:])
