"""The site: its links are checked, and every public name has its entry."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import site_links

from house.census import ROOT

sphinx = pytest.importorskip("sphinx", reason="needs the group docs: python3 dev.py docs")
import site_pages  # noqa: E402 - it imports Sphinx
import site_reference  # noqa: E402 - the same

MARKS = [
    (match["package"], match["parts"].split())
    for page in sorted((ROOT / "docs/reference").glob("*.md"))
    for match in site_reference.MARK.finditer(page.read_text(encoding="utf-8"))
]


SHOWN = [
    (package, name) for package, parts in MARKS for name in site_reference.names(package, parts)
]


def test_nothing_has_two_entries() -> None:
    """A name of a package stands on one page."""
    assert len(SHOWN) == len(set(SHOWN)) > 300


@pytest.mark.parametrize("package", ["kdsl_core", "kdsl_runtime", "kdsl_fuse"])
def test_every_public_name_has_its_entry(package: str) -> None:
    """A new name appears by itself, or this fails: name its module in docs/reference."""
    there = {id(getattr(importlib.import_module(home), name)) for home, name in SHOWN}
    module = importlib.import_module(package)
    missing = [
        name for name in site_reference.public(module) if id(getattr(module, name)) not in there
    ]
    assert missing == []


def test_docstrings_become_rst() -> None:
    """Code is marked, fields are fields, examples stay, and nothing else is a mark."""
    lines = ["Copies `a`s to b_ or 2*x.", "", ">>> f(`1`)", "2", "", "Raises: E for `x`", "or y."]
    assert list(site_reference.to_rst(lines)) == [
        "Copies ``a``\\ s to b\\_ or 2\\*x.",
        "",
        ">>> f(`1`)",
        "2",
        "",
        "",
        ":Raises: E for ``x``",
        "   or y.",
    ]


def test_pages_that_are_named_become_links() -> None:
    """But not in blocks of code, nor where they are a link already."""
    content = ["see `docs/cache.md`\n```\n`docs/cache.md`\n```\n[`docs/rows.md`](rows.md)\n"]
    site_pages.link_pages(None, "adr/0001", content)  # type: ignore[arg-type] # it is not used
    assert content[0].startswith("see [`docs/cache.md`](../cache.md)\n```\n`docs/cache.md`\n")
    assert content[0].count("](") == 2


def test_broken_links_are_found(tmp_path: Path) -> None:
    """Of links to files, places and other sites, only those that lead nowhere are reported."""
    (tmp_path / "b.html").write_text('<h1 id="here">B</h1>')
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">1</a><a href="b.html#gone">2</a><img src="no.svg">'
        '<a href="#nowhere">3</a><a href="https://example.org/x">4</a><img src="data:image/png,">'
    )
    found = list(site_links.broken(tmp_path))
    assert [re.sub(r":.*", "", line) for line in found] == ["a.html"] * 3
    assert {"b.html#gone", "no.svg", "#nowhere"} == {line.split(": ")[1] for line in found}
    assert site_links.external(tmp_path) == ["https://example.org/x"]
    assert site_links.main(tmp_path) == 1


@pytest.mark.filterwarnings("ignore:.*app' is deprecated")  # MyST's use of Sphinx
def test_a_small_site_builds_and_a_broken_one_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings of the site take pages and essays; a link to no page is an error."""
    from sphinx.cmd.build import main

    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    (source / "index.md").write_text("# Site\n\n```{toctree}\nessay\n```\n\n[next](essay.py)\n")
    (source / "essay.py").write_text("# %% [markdown]\n# # Essay\n\n# %%\nprint(6 * 7)\n")
    arguments = ["-q", "-W", "-c", str(ROOT / "docs/site"), str(source), str(out)]
    assert main(arguments) == 0
    assert "42" in (out / "essay.html").read_text() and not list(site_links.broken(out))
    (source / "index.md").write_text("# Site\n\n```{toctree}\nessay\n```\n\n[next](gone.md)\n")
    assert main(["-E", *arguments]) != 0
    assert "gone.md" in capsys.readouterr().err
