"""The assembler as an object: where it was found, and the version that it states itself."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import warnings
from collections.abc import Iterator, Mapping

from kdsl_core.digests import hash256
from kdsl_core.errors import BuildError
from kdsl_core.lang.file_states import state_of_files
from kdsl_core.records import dataclass
from kdsl_runtime.cache.location import AnyPath

VERSION_TIME_LIMIT_S = 20.0
_INSTALL = (
    "pip install 'kdsl-runtime[ptxas]', or set KDSL_PTXAS to the path of a ptxas program; "
    "without one, NumPy arguments still run in the simulator"
)
_VERSION = re.compile(r"\bV(\d+\.\d+\.\d+)")
_versions: dict[tuple[str, int], str] = {}


@dataclass(frozen=True)
class Toolchain:
    """One assembler. `path` is None for the driver's JIT, which takes PTX when a module is loaded.

    `id` is a hash of all that the program says about itself, so the same release found in another
    place, or on another machine, has the same id.
    """

    path: str | None
    version: str
    id: str
    source: str

    @property
    def is_driver_jit(self) -> bool:
        """Whether the driver itself compiles the PTX."""
        return self.path is None


class KdslToolchainWarning(UserWarning):
    """A build works, but with an assembler that is second best."""


def find_toolchain(environ: Mapping[str, str] | None = None) -> Toolchain:
    """The first usable assembler: $KDSL_PTXAS, pinned wheel, triton's, system, driver's JIT.

    Raises: BuildError K701 when there is none, K702 when $KDSL_PTXAS does not work.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("KDSL_PTXAS")
    if named:
        return _named_by_user(named)
    for source, path in candidates(environ):
        try:
            return open_toolchain(path, source)
        except BuildError:
            continue
    return _driver_jit()


def default_toolchain() -> Toolchain:
    """What `find_toolchain` finds, searched for once per $KDSL_PTXAS and $PATH."""
    return _searched(os.environ.get("KDSL_PTXAS"), os.environ.get("PATH"))


def toolchain_named(name: str) -> Toolchain:
    """The assembler at a path, or the first installed one of a version, "13.0" or "13.0.88".

    Raises: BuildError K703 and K710 for a path, K742 when no installed one has the version.
    """
    if os.path.isfile(name):
        return open_toolchain(name)
    installed = []
    for source, path in candidates():
        try:
            installed.append(open_toolchain(path, source))
        except BuildError:
            continue
    for toolchain in installed:
        if f"{toolchain.version}.".startswith(f"{name}."):
            return toolchain
    known = ", ".join(f"{t.version} ({t.path})" for t in installed) or "none"
    raise BuildError(
        f"no assembler {name}: there is no such file, and installed are {known}",
        code="K742",
        fix="pip install --target DIR nvidia-cuda-nvcc==VERSION, and name the ptxas in DIR",
    )


@functools.cache
def _searched(named: str | None, path: str | None) -> Toolchain:
    return find_toolchain()


def candidates(environ: Mapping[str, str] | None = None) -> Iterator[tuple[str, str]]:
    """(where, path) of every ptxas program that exists, in the order of preference."""
    environ = os.environ if environ is None else environ
    if environ.get("KDSL_PTXAS"):
        yield "$KDSL_PTXAS", environ["KDSL_PTXAS"]
    for source, path in _installed(environ):
        if os.path.isfile(path) and os.access(path, os.X_OK):
            yield source, path


def open_toolchain(path: AnyPath, source: str = "given path") -> Toolchain:
    """The assembler at `path`, asked for its version.

    Raises: BuildError K703 when it states no version, K710 when it does not run.
    """
    path = os.fspath(path)
    text = version_text(path)
    match = _VERSION.search(text)
    if match is None:
        raise BuildError(
            f"expected `{path} --version` to state a version like V13.0.88, got {text[:200]!r}",
            code="K703",
            fix="name a ptxas program of CUDA 12.4 or newer in KDSL_PTXAS",
        )
    return Toolchain(path, match[1], hash256(text.encode()).hexdigest(), source)


def version_text(path: str) -> str:
    """What `ptxas --version` prints, asked once per path and modification time of the program.

    Raises: BuildError K710 when the program does not run.
    """
    try:
        state = os.stat(path)
    except OSError as problem:
        raise _does_not_run(path, problem) from problem
    key = (path, state.st_mtime_ns)
    if key not in _versions:
        from kdsl_runtime.cache.notes import noted

        stated = state_of_files({path: state})
        _versions[key] = noted(f"version of {path}", stated, lambda: _ask_version(path))
    return _versions[key]


def _ask_version(path: str) -> str:
    import subprocess  # a tenth of a start-up, and not needed where it is known

    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_TIME_LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as problem:
        raise _does_not_run(path, problem) from problem
    return done.stdout.strip()


def _does_not_run(path: str, problem: Exception) -> BuildError:
    return BuildError(f"the assembler {path} does not run: {problem}", code="K710", fix=_INSTALL)


def _named_by_user(named: str) -> Toolchain:
    try:
        return open_toolchain(named, "$KDSL_PTXAS")
    except BuildError as problem:
        raise BuildError(
            f"KDSL_PTXAS names {named!r}, which is no usable ptxas: {problem.message}",
            code="K702",
            fix="correct KDSL_PTXAS, or unset it to let kdsl search",
        ) from problem


def _installed(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for folder in package_folders("nvidia"):
        yield "wheel nvidia-cuda-nvcc", os.path.join(folder, "cu13", "bin", "ptxas")
    for folder in package_folders("triton"):
        yield "triton's copy", os.path.join(folder, "backends", "nvidia", "bin", "ptxas")
    # As `shutil.which`, which brings zlib, bz2 and lzma along.
    folders = environ.get("PATH", "").split(os.pathsep)
    on_path = (os.path.join(folder, "ptxas") for folder in folders)
    yield from [("PATH", path) for path in on_path if os.access(path, os.X_OK)][:1]
    import glob  # the last place to look

    for found in sorted(glob.glob("/usr/local/cuda*/bin/ptxas"), key=_newest_first):
        yield "/usr/local/cuda*", found


def package_folders(name: str) -> list[str]:
    """Folders of the top-level package `name`, found without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        return []
    return list(spec.submodule_search_locations)


def _newest_first(path: str) -> tuple[int, ...]:
    return tuple(-int(number) for number in re.findall(r"\d+", path)) or (0,)


def driver_version() -> tuple[int, int] | None:
    """The newest CUDA that the installed driver knows, as (major, minor); None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return number.value // 1000, number.value % 1000 // 10


def _driver_jit() -> Toolchain:
    version = driver_version()
    if version is None:
        raise BuildError(
            "no PTX assembler: looked in $KDSL_PTXAS, the wheel nvidia-cuda-nvcc, triton, PATH "
            "and /usr/local/cuda*/bin, and there is no CUDA driver whose JIT could stand in",
            code="K701",
            fix=_INSTALL,
        )
    warnings.warn(
        "no ptxas was found, so the driver's JIT compiles the kernels: nothing is cached by kdsl "
        f"and registers and spills are not reported. fix: {_INSTALL}",
        KdslToolchainWarning,
        stacklevel=3,
    )
    text = f"driver JIT, CUDA {version[0]}.{version[1]}"
    identity = hash256(text.encode()).hexdigest()
    return Toolchain(None, f"{version[0]}.{version[1]}", identity, "driver JIT")
