"""Whose code a function or an object is: a library's, which no running program changes, or not."""

from __future__ import annotations

import os
import re
import sys
import time
from functools import cache
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

# Versions of these, or their files, are in every recipe instead of what they consist of.
LIBRARIES = ("kdsl_core", "numpy", "ml_dtypes")
# When this process had begun to read kdsl's files; one that is younger is not what runs here.
LOADED_NS = time.time_ns()
_STDLIB = os.path.join(os.path.dirname(os.__file__), "")
_INSTALLED = ("site-packages", "dist-packages")


def is_library(value: Any) -> bool:
    """Whether a module, a class, or an object's class belongs to kdsl, NumPy or Python itself."""
    return is_library_module(home_of(value))


def home_of(value: Any) -> str:
    """The name of a module, or of the one that defines a function, class or object's class."""
    if isinstance(value, ModuleType):
        return value.__name__
    kind = value if isinstance(value, type | FunctionType) else type(value)
    return str(getattr(kind, "__module__", ""))


@cache
def is_library_module(name: str) -> bool:
    """The same for a module's name; the program's own module never is one."""
    root = name.partition(".")[0]
    if root in LIBRARIES or name in ("builtins", ""):
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:  # compiled in, or no module at all
        return root in sys.builtin_module_names or (
            root in sys.stdlib_module_names and name in sys.modules
        )
    return is_library_file(file)


@cache
def is_installed(name: str) -> bool:
    """Whether a module was installed, and so is not what a program's author edits."""
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return any(f"{os.sep}{part}{os.sep}" in file for part in _INSTALLED)


def is_library_code(code: CodeType) -> bool:
    """The same for a function's code, by its file."""
    return is_library_file(code.co_filename)


@cache
def is_library_file(file: str) -> bool:
    """Whether a source file belongs to kdsl, NumPy or Python itself."""
    if file.startswith("<frozen "):
        return True
    path = os.path.abspath(file)
    installed = any(f"{os.sep}{part}{os.sep}" in path for part in _INSTALLED)
    return (path.startswith(_STDLIB) and not installed) or path.startswith(_folders())


def is_of_kdsl(code: CodeType) -> bool:
    """Whether a function's code is kdsl's own."""
    return code.co_filename.startswith(_folders()[0])


def asked_by_author(frame: FrameType | None) -> bool:
    """Whether the nearest code outside of Python's own library is not kdsl's or NumPy's."""
    while frame is not None and is_library_code(frame.f_code):
        if is_of_kdsl(frame.f_code):
            return False
        frame = frame.f_back
    return frame is not None


# Functions in C whose answer a later process cannot compare, as profilers spell them.
_QUESTION = (
    r"<built-in method (?:"
    r"posix\.(?:l?stat|access|getcwd|getpid|urandom)"
    r"|time\.(?:time|monotonic|perf_counter|process_time)(?:_ns)?|time\.(?:local|gm)time"
    r"|(?:now|today|utcnow)(?: of type object at \w+)?)>"
    r"|<method '(?:now|today|utcnow)' of '.*' objects>"
    r"|<method '(?:random|getrandbits)' of '_random\.Random' objects>"
)


def is_question(spelling: str) -> bool:
    """Whether a function in C, as profilers spell it, gives what no later process can compare."""
    return re.fullmatch(_QUESTION, spelling) is not None


@cache
def _folders() -> tuple[str, ...]:
    found = (sys.modules[name].__file__ for name in LIBRARIES)
    return tuple(os.path.join(os.path.dirname(os.path.abspath(str(f))), "") for f in found)
