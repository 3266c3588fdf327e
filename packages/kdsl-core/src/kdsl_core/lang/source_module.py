"""A file of kernels as a module, executed from the text that it holds now."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


class _FromText(SourceFileLoader):
    """Compiles the text at each call, and neither reads nor leaves bytecode.

    Python takes kept bytecode for a file whose size and second of change are the same: a sign that
    is edited (`+` to `-`) right after a run would not count.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def module_of_file(path: Path, name: str) -> ModuleType:
    """Execute a Python file as the module `name`, in the place of an earlier one of that name.

    The module is registered before: dataclasses, and errors that show lines, look it up. What the
    file itself raises is passed on; a missing file raises FileNotFoundError.
    """
    spec = importlib.util.spec_from_file_location(name, path, loader=_FromText(name, str(path)))
    assert spec is not None and spec.loader is not None, "a loader was given"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
