"""The front page of kdsl_core: what editors are told is what Python finds."""

from __future__ import annotations

import ast
from pathlib import Path

import kdsl_core as kd

STUB = Path(kd.__file__).with_suffix(".pyi")


def test_stub_and_module_offer_the_same() -> None:
    """Every name of the stub resolves to the object that it says, and no public name is missing."""
    told: set[str] = set()
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                assert alias.asname is not None
                told.add(alias.asname)
                found = getattr(kd, alias.asname)
                if node.module == "kdsl_core":
                    assert found.__name__ == f"kdsl_core.{alias.name}"
                else:
                    home = __import__(str(node.module), fromlist=[alias.name])
                    assert found is getattr(home, alias.name)
    public = {name for name in dir(kd) if not name.startswith(("_", "@"))}  # pytest adds "@…"
    assert public - told - {"annotations", "importlib", "Any"} <= {
        "authors", "digests", "dtypes", "errors", "lang", "ir", "loc", "inspect", "records",
        "late_names", "layout", "testing",
    }  # fmt: skip
