"""Code as authors write it, in a file whose asserts pytest has rewritten: this one."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import kdsl_core as kd
from kdsl_core.lang.authors_code import authors_code, nested_codes
from kdsl_core.lang.dependencies import Dependencies

LIMIT = 7


def bounded(i: int) -> int:
    """A helper that checks."""
    assert 0 <= i < LIMIT, f"{i} is beyond"
    return i


@kd.kernel
def checked(y: kd.Tensor["i32", "n"]):
    """A kernel that checks, by itself and in a helper."""
    assert y.shape[0] >= LIMIT, "short"
    y[0] = bounded(3)


def test_pytest_did_rewrite() -> None:
    """What is tested here is there: names that no source can hold."""
    for function in (bounded, checked.staged.function):
        assert any(name.startswith("@") for name in function.__code__.co_names)


def test_the_authors_names() -> None:
    """Of a rewritten function those in its text; of another one the code itself."""
    assert set(authors_code(bounded.__code__).co_names) <= {"LIMIT", "AssertionError"}
    plain = nested_codes.__code__
    assert authors_code(plain) is plain


def test_pytest_is_no_dependency() -> None:
    """A kernel depends on the limit and the helper, and on nothing of pytest or of its module."""
    found = Dependencies(checked.staged.function)
    assert {fact.path for fact in found.facts} == {"checked", "checked.bounded"}
    assert {"LIMIT", "bounded"} <= found.mentioned and "locals" not in found.mentioned
    assert found.complete and found.unchanged()


def test_another_text_is_not_taken() -> None:
    """Where the file holds another function at this place, the code that runs is what counts."""
    for changed in ({"co_firstlineno": 1}, {"co_qualname": "bounded.other"}, {"co_filename": "?"}):
        code = bounded.__code__.replace(**changed)
        assert authors_code(code) is code
    code = bounded.__code__.replace(co_names=tuple(f"@{n}" for n in bounded.__code__.co_names))
    assert authors_code(code) is code


def test_an_attribute_is_no_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module beside the author's counts where it is imported, not where a name is the same."""
    folder = tmp_path / "attributes"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "rows.py").write_text("def count():\n    return 3\n")
    (folder / "uses.py").write_text(
        "def attribute(config):\n    return config.rows\n\n\n"
        "def statement():\n    from attributes import rows\n\n    return rows.count()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    uses, _ = import_module("attributes.uses"), import_module("attributes.rows")
    assert len(Dependencies(uses.attribute).facts) == 1
    paths = {fact.path for fact in Dependencies(uses.statement).facts}
    assert any(path.endswith("rows.count") for path in paths)
