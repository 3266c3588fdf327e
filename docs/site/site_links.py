"""The links of a built site: those that lead nowhere, and those that lead away.

python docs/site/site_links.py build/site
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LINKS = {"a": "href", "link": "href", "img": "src", "script": "src", "iframe": "src"}


@dataclass
class Page(HTMLParser):
    """What one page links to, and the places in it that others may link to."""

    links: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag's link and its name."""
        said = dict(attrs)
        self.places |= {value for key in ("id", "name") if (value := said.get(key))}
        if link := said.get(LINKS.get(tag, "")):
            self.links.append(link)


def pages(site: Path) -> dict[Path, Page]:
    """Every HTML file of the site, read."""
    found = {}
    for path in sorted(site.rglob("*.html")):
        page = found[path.resolve()] = Page()
        page.feed(path.read_text(encoding="utf-8"))
    return found


def broken(site: Path) -> Iterator[str]:
    """A line for each link to a file or place that the site lacks."""
    read = pages(site)
    for path, page in read.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            here = path.relative_to(site.resolve())
            if not target.is_file():
                yield f"{here}: {link}: there is no such file"
            elif target in read and parts.fragment:
                if unquote(parts.fragment) in read[target].places:
                    continue
                yield f"{here}: {link}: no such place in that page"


def external(site: Path) -> list[str]:
    """Addresses outside of the site; nobody asks whether they answer."""
    links = (link for page in pages(site).values() for link in page.links)
    return sorted({link for link in links if urlsplit(link).scheme in ("http", "https")})


def main(site: Path) -> int:
    """Print what was found, write the external ones to a file; 1 when a link is broken."""
    bad, away = list(broken(site)), external(site)
    (site / "external_links.txt").write_text("".join(f"{link}\n" for link in away))
    print(*bad, sep="\n", end="\n" if bad else "")
    print(f"{len(pages(site))} pages, {len(bad)} broken links, {len(away)} to other sites")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
