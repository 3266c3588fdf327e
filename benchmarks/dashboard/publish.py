"""The static site of asv, with everything that its pages load beside them."""

from __future__ import annotations

import hashlib
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import asv_tracks
from asv.commands.publish import Publish

VENDOR = Path(__file__).with_name("vendor")
ELSEWHERE = re.compile(r'(?P<name>src|href)="(?P<url>https?://[^"]+)"(?P<rest>[^>]*)>')
LOADED = re.compile(r"<(?:script|link)\b[^>]*>")


class NotShipped(Exception):
    """asv's page loads a file that the site has no copy of; the message says which."""


def publish(root: Path) -> Path:
    """Write the pages of asv for a checkout's results; the folder of the whole site.

    Raises: NotShipped for a version of asv that loads other files, asv.util.UserError.
    """
    settings = asv_tracks.config(root)
    folder = Path(settings.html_dir)
    folder.parent.mkdir(parents=True, exist_ok=True)
    Publish.run(settings, pull=False)
    page = folder / "index.html"
    page.write_text(local(page.read_text(encoding="utf-8")), encoding="utf-8")
    shutil.copytree(VENDOR, folder / "vendor")
    return folder.parent


def shipped() -> list[dict[str, str]]:
    """The rows of `vendor/files.toml`."""
    rows: list[dict[str, str]] = tomllib.loads((VENDOR / "files.toml").read_text())["file"]
    return rows


def local(page: str) -> str:
    """The page with the copies in place of what it loads from elsewhere.

    Raises: NotShipped.
    """
    return LOADED.sub(lambda tag: ELSEWHERE.sub(_copy, tag[0]), page)


def _copy(found: re.Match[str]) -> str:
    for row in shipped():
        if found["url"].endswith(row["url"]):
            # Checksums for browsers are of the files elsewhere; ours are in files.toml.
            style = ' rel="stylesheet"' if 'rel="stylesheet"' in found["rest"] else ""
            return f'{found["name"]}="vendor/{row["file"]}"{style}>'
    raise NotShipped(
        f"asv's page loads {found['url']}, of which benchmarks/dashboard/vendor has no copy"
    )


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def regressions(site: Path) -> list[dict[str, Any]]:
    """What asv lists as regressions: the track with its parameters, the last value and the best."""
    found = asv_tracks.util.load_json(str(site / "asv/regressions.json"))["regressions"]
    return [{"track": row[0], "last": row[4], "best": row[5]} for row in found]
