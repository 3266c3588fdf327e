"""What importing the runtime costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kdsl_runtime


def test_import_is_light():
    """Importing the package loads neither CUDA, NumPy, the core, click nor rich."""
    program = """
import sys
import kdsl_runtime
heavy = ("cuda", "numpy", "kdsl_core", "click", "rich", "torch", "triton", "subprocess")
assert not [name for name in heavy if name in sys.modules], sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("name", kdsl_runtime.__all__)
def test_every_export_exists(name):
    """Each public name can be had, and asking for it loads no CUDA package."""
    assert getattr(kdsl_runtime, name) is not None
    assert name in dir(kdsl_runtime)


def test_unknown_name():
    """A wrong name is an AttributeError that says which."""
    with pytest.raises(AttributeError, match="warmpu"):
        _ = kdsl_runtime.warmpu
