"""The examples in docstrings print what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest

from house.census import module_name, package_files

MODULES = [
    module_name(path) for path in package_files() if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    """A module with examples has some that run, and none fails."""
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0
