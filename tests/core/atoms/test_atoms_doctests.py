"""The examples in the docstrings of the atoms package."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import kdsl_core.atoms

MODULES = [m.name for m in pkgutil.walk_packages(kdsl_core.atoms.__path__, "kdsl_core.atoms.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    """Every example prints what it says."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0
