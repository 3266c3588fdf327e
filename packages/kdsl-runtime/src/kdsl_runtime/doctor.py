"""What works here, what does not, and how to mend it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass

from kdsl_core.errors import KdslError

_PACKAGES = ("kdsl-core", "kdsl-runtime", "kdsl-fuse", "numpy", "ml_dtypes", "cuda-python")
_OLDEST_PYTHON = (3, 11)
OK, WARNING, FAILURE = "ok", "warning", "failure"


@dataclass(frozen=True)
class Check:
    """One finding: `state` is "ok", "warning" (something optional is missing) or "failure"."""

    name: str
    state: str
    detail: str
    fix: str = ""


def examine() -> list[Check]:
    """Every check, in the order in which a user needs the things."""
    return [python(), *packages(), simulator(), *assemblers(), *devices(), cache(), options()]


def is_usable(checks: list[Check]) -> bool:
    """Whether kernels can run at all, in the simulator at least."""
    return not any(check.state == FAILURE for check in checks)


def python() -> Check:
    """The Python that runs this."""
    detail = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < _OLDEST_PYTHON:
        return Check("python", FAILURE, detail, "use Python 3.11 or newer")
    return Check("python", OK, detail)


def packages() -> list[Check]:
    """The versions of what kdsl consists of and needs."""
    found = {name: _version(name) for name in _PACKAGES}
    there = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    checks = [Check("packages", OK, there)]
    for name in ("numpy", "ml_dtypes"):
        if not found[name]:
            checks.append(Check(name, FAILURE, "not installed", f"pip install {name}"))
    return checks


def simulator() -> Check:
    """Whether the core can be imported, which is all that the simulator needs."""
    try:
        import kdsl_core.dtypes
    except ImportError as problem:
        return Check("simulator", FAILURE, str(problem), "pip install kdsl-core")
    return Check(
        "simulator", OK, f"ready; {len(kdsl_core.dtypes.ALL_DTYPES)} numeric types, no GPU needed"
    )


def assemblers() -> list[Check]:
    """The assembler that is used, then the others that were found."""
    from kdsl_runtime import toolchain

    try:
        used = toolchain.find_toolchain()
    except KdslError as problem:
        return [Check("assembler", WARNING, problem.message, problem.fix or "")]
    place = used.path or "the driver"
    checks = [Check("assembler", OK, f"ptxas {used.version} at {place} ({used.source})")]
    if used.is_driver_jit:
        advice = "pip install 'kdsl-runtime[ptxas]'"
        checks = [Check("assembler", WARNING, f"{used.version} ({used.source})", advice)]
    for source, path in toolchain.candidates():
        if path != used.path:
            checks.append(_other_assembler(source, path))
    return checks


def devices() -> list[Check]:
    """The driver and each GPU, or why there is none."""
    from kdsl_runtime import driver, toolchain

    try:
        count = driver.device_count()
        found = [driver.device(index) for index in range(count)]
    except KdslError as problem:
        return [Check("driver", WARNING, problem.message, problem.fix or "")]
    version = toolchain.driver_version()
    knows = f"CUDA {version[0]}.{version[1]}" if version else "version not stated"
    checks = [Check("driver", OK, f"{knows}, {count} device(s)")]
    for gpu in found:
        detail = (
            f"{gpu.name}, {gpu.target}, {gpu.multiprocessors} multiprocessors, "
            f"{gpu.memory_bytes / 2**30:.1f} GiB"
        )
        checks.append(Check(f"device {gpu.index}", OK, detail))
    return checks


def cache() -> Check:
    """The cache's directory, and whether it can be used."""
    from kdsl_runtime.cache import DiskCache, default_directory

    directory = default_directory()
    if directory is None:
        advice = "set KDSL_CACHE_DIR to a directory of your own"
        return Check("cache", WARNING, "memory only: HOME is not set", advice)
    if not os.path.exists(directory):
        return Check("cache", OK, f"{directory}: not made yet")
    return _guarded("cache", lambda: _cache_state(DiskCache(directory).root), directory)


def options() -> Check:
    """What only some commands need: which of it is here, and where the rest comes from."""
    from kdsl_runtime.disassembly import find_nvdisasm

    found = {
        "kdsl profile": (shutil.which("ncu") is not None, "Nsight Compute"),
        "kdsl inspect --sass": (find_nvdisasm() is not None, "kdsl-runtime[sass]"),
        "kr.prometheus": (_version("prometheus_client") is not None, "kdsl-runtime[metrics]"),
        "KDSL_CACHE_REMOTE": (_version("fsspec") is not None, "kdsl-runtime[remote]"),
        "tune.Dask": (_version("distributed") is not None, "kdsl-runtime[fleet]"),
        "compiled sums of the simulator": (_version("numba") is not None, "kdsl-core[fast]"),
    }
    here = ", ".join(name for name, (there, _) in found.items() if there)
    wanted = "; ".join(f"{name} needs {what}" for name, (there, what) in found.items() if not there)
    return Check("optional", OK, f"ready: {here or 'nothing'}", wanted)


def _cache_state(root: str) -> str:
    from kdsl_runtime.cache import DiskCache

    files = DiskCache(root).files()
    if not os.access(root, os.W_OK):
        raise PermissionError(f"{root} cannot be written: new kernels are kept in memory only")
    size = sum(file.bytes for file in files)
    return f"{root}: {len(files)} entries, {size / 2**20:.1f} MiB"


def _guarded(name: str, state: Callable[[], str], directory: str) -> Check:
    try:
        return Check(name, OK, state())
    except KdslError as problem:
        return Check(name, WARNING, problem.message, problem.fix or "")
    except OSError as problem:
        advice = "set KDSL_CACHE_DIR to a directory that you can write"
        return Check(name, WARNING, f"{directory} cannot be used: {problem}", advice)


def _other_assembler(source: str, path: str) -> Check:
    from kdsl_runtime.toolchain import open_toolchain

    try:
        other = open_toolchain(path, source)
    except KdslError as problem:
        return Check("assembler (unused)", WARNING, problem.message, "remove it, or mend it")
    return Check("assembler (unused)", OK, f"ptxas {other.version} at {path} ({source})")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
