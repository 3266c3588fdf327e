"""Functions fit half a screen and files fit a head."""

from __future__ import annotations

from house import census

FUNCTION_LIMIT = 60
FUNCTION_P90 = 25
FILE_LIMIT = 600

# What is too long today and why. Lines may leave this list; a new one needs a reason that a
# reviewer accepts. A function is named "packages/…/file.py::name", a file by its path.
LONG_FUNCTIONS: dict[str, str] = {}
LONG_FILES: dict[str, str] = {}


def test_no_function_is_longer_than_a_screen() -> None:
    """No function of the packages exceeds the limit, but those named above."""
    long = {
        f.key: f.lines
        for path in census.package_files()
        for f in census.functions(path)
        if f.lines > FUNCTION_LIMIT
    }
    census.expect_none(f"{key}: {n} lines" for key, n in long.items() if key not in LONG_FUNCTIONS)
    assert LONG_FUNCTIONS.keys() <= long.keys(), "an exemption is no longer needed: remove it"


def test_most_functions_fit_half_a_screen() -> None:
    """Nine of ten functions of the packages are short."""
    lines = sorted(f.lines for path in census.package_files() for f in census.functions(path))
    assert lines[len(lines) * 9 // 10] <= FUNCTION_P90


def test_no_file_is_too_long() -> None:
    """No file of the packages exceeds the limit, but those named above."""
    long = {
        census.short(path): census.line_count(path)
        for path in census.package_files()
        if census.line_count(path) > FILE_LIMIT
    }
    census.expect_none(f"{key}: {n} lines" for key, n in long.items() if key not in LONG_FILES)
    assert LONG_FILES.keys() <= long.keys(), "an exemption is no longer needed: remove it"
