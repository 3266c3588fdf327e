"""The pages do not promise what is not there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from house import census
from kdsl_core.errors import FusionError

NOT_INSTALLED = "K987"
SHORT = {"kd": "kdsl_core", "kr": "kdsl_runtime", "kf": "kdsl_fuse"}
NAME = re.compile(r"(?<![\w.])(kd|kr|kf)\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
LINK = re.compile(r"`((?:docs|tests|packages|benchmarks|examples)/[\w./-]*|[A-Z]+\.md)`")


def pages() -> list[Path]:
    """Every page that people wrote for people."""
    folders = ("docs", "packages", "examples", "benchmarks")
    below = [path for name in folders for path in (census.ROOT / name).rglob("*.md")]
    return [*sorted(census.ROOT.glob("*.md")), *sorted(below)]


def exists(alias: str, dotted: str) -> bool:
    """Whether `kd.a.b` can be reached by attributes from the package, or wants an extra first."""
    held: object = importlib.import_module(SHORT[alias])
    for word in dotted.split("."):
        try:
            held = getattr(held, word)
        except AttributeError:
            return False
        except FusionError as missing:
            return missing.code == NOT_INSTALLED
    return True


def test_names_in_the_pages_exist() -> None:
    """Each `kd.…`, `kr.…` and `kf.…` of a page is a name of the package."""
    named: dict[tuple[str, str], str] = {}
    for page in pages():
        for alias, dotted in NAME.findall(page.read_text(encoding="utf-8")):
            named.setdefault((alias, dotted), census.short(page))
    census.expect_none(
        f"{page}: {alias}.{dotted}"
        for (alias, dotted), page in named.items()
        if not exists(alias, dotted)
    )


def test_files_in_the_pages_exist() -> None:
    """Each file or folder of the repository that a page names is there."""
    census.expect_none(
        f"{census.short(page)}: {name}"
        for page in pages()
        for name in LINK.findall(page.read_text(encoding="utf-8"))
        if not (census.ROOT / name).exists()
    )


def test_no_page_names_the_foreign_distribution() -> None:
    """`kdsl` on PyPI belongs to someone else: nobody is told to install it."""
    foreign = re.compile(r"(pip|uv|pipx|poetry)\s+(install|add)[^\n`]*\bkdsl(?![\w-])")
    files = [*pages(), *census.all_files()]
    census.expect_none(
        census.short(path) for path in files if foreign.search(path.read_text(encoding="utf-8"))
    )
