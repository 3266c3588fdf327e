"""The examples in the docstrings of the layout package."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import kdsl_core.layout

MODULES = [m.name for m in pkgutil.iter_modules(kdsl_core.layout.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    """Every example prints what it says."""
    module = importlib.import_module(f"kdsl_core.layout.{name}")
    assert doctest.testmod(module).failed == 0
