"""The dashboard: a site that fetches nothing, shows what was planted, and renders in a browser."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import planted
from scripts import scripts

COMMITS, CHANGE = 10, 6  # commits, and the first one that is different
SLOWER, FASTER = "512x512x512 bf16", "b1 h16 1024 d128"
FIGURES = {"registers": 100, "spill_bytes": 0, "blocks_per_sm": 2, "ptx_instructions": 500,
           "run_ideal_sectors": 100, "run_sectors": 100, "run_ideal_wavefronts": 10,
           "run_wavefronts": 10, "roofline_us": 1.5, "ptx_tensor": 4}  # fmt: skip
CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: apt-get install chromium"
)


@pytest.fixture(scope="module")
def tools() -> Iterator[SimpleNamespace]:
    """The dashboard and its parts."""
    with scripts("dashboard", "build", "publish", "front_page", "history") as found:
        yield found


@pytest.fixture(scope="module")
def site(tools: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of ten commits: one shape becomes twice as slow, one twice as fast, and so do the
    instructions of two kernels."""
    root = planted.repository(tmp_path_factory.mktemp("planted") / "repo")
    for i in range(COMMITS):
        worse, better = (2, 0.5) if i >= CHANGE else (1, 1)
        kernels = {
            "kernel_of_more sm_90a": {**FIGURES, "sass_instructions": 600 * worse},
            "kernel_of_less sm_90a": {**FIGURES, "sass_instructions": 600 * better},
            "start": {"cold_opens": 17},
        }
        files = {"benchmarks/facts.py": planted.TELLS,
                 "benchmarks/figures.json": planted.facts(kernels)}  # fmt: skip
        commit = planted.commit(root, i, files)
        planted.record(
            root, commit,
            planted.shape("gemm square", SLOWER, kdsl=100.0 * worse + i % 3 / 10, cuBLAS=101.0),
            planted.shape("gemm square", "1024x1024x1024 bf16", kdsl=200.0, cuBLAS=190.0),
            planted.shape("attention", FASTER, kdsl=80.0 * better, cuDNN=81.0),
        )  # fmt: skip
    planted.record(root, "0" * 40, planted.shape("gemm square", "elsewhere", kdsl=1.0))
    words = ["--root", str(root), "--history", str(COMMITS), "--no-times"]
    assert tools.build.main(words) == 0
    return root / ".asv/html"


# -- without a browser -----------------------------------------------------------------------------
def test_nothing_is_fetched(site: Path) -> None:
    """No page loads anything from elsewhere, and what pages load is there."""
    for page in site.rglob("*.html"):
        tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text(encoding="utf-8"))
        for address in re.findall(r'(?:src|href)="([^"]+)"', " ".join(tags)):
            assert not re.match(r"(https?:)?//", address), f"{page.name} loads {address}"
            assert address.startswith("data:") or (page.parent / address).exists(), address


def test_copies_are_what_they_say(tools: SimpleNamespace) -> None:
    """Every shipped file has its checksum and its licence beside it, and nothing else is there."""
    rows = tools.publish.shipped()
    folder = tools.publish.VENDOR
    for row in rows:
        assert tools.publish.checksum(folder / row["file"]) == row["sha256"], row["file"]
        assert "ermission is hereby granted" in (folder / row["licence"]).read_text("utf-8")
    known = {"files.toml", *(row["file"] for row in rows), *(row["licence"] for row in rows)}
    assert {path.name for path in folder.iterdir()} == known


def test_a_page_that_loads_something_else(tools: SimpleNamespace) -> None:
    """A newer asv is refused by name; links that are only clicked stay."""
    link = '<a href="https://example.invalid/">x</a>'
    assert tools.publish.local(link) == link
    with pytest.raises(tools.publish.NotShipped, match=r"example\.invalid/new\.js"):
        tools.publish.local('<script src="https://example.invalid/new.js"></script>')


def test_what_asv_lists(tools: SimpleNamespace, site: Path) -> None:
    """The planted regressions and nothing else: no improvement, no peer."""
    listed = {row["track"]: row["last"] / row["best"] for row in tools.publish.regressions(site)}
    assert set(listed) == {
        f"gpu.gemm_square('{SLOWER}', 'kdsl')",
        "kernels.sass_instructions('kernel_of_more sm_90a')",
    }
    assert all(ratio == pytest.approx(2, abs=0.01) for ratio in listed.values())


def rows_of(page: str, table: str) -> dict[str, str]:
    """The rows of a table of the first page, by the text of their first cell."""
    (body,) = re.findall(rf'<table class="{table}".*?</table>(?=\n<|$)', page, re.DOTALL)
    rows = re.findall(r"<tr><td[^>]*>(.*?)</td>(.*?)</tr>", body, re.DOTALL)
    return {name: rest for name, rest in rows if not name.startswith("<")}


def test_first_page(site: Path) -> None:
    """Kernels with their ratios, courses and last regressions; links lead to asv's pages."""
    page = (site / "index.html").read_text(encoding="utf-8")
    kernels = rows_of(page, "kernels")
    assert "+99." in kernels["gemm square"] and SLOWER in kernels["gemm square"]
    assert "<small>none</small>" in kernels["attention"] and "2.025" in kernels["attention"]
    assert "0.505" in kernels["gemm square"] and "<svg" in kernels["gemm square"]
    assert "asv/index.html#gpu.gemm_square?machine=nvidia-test-100" in kernels["gemm square"]
    assert re.search(r"<p>Last measured: commit [0-9a-f]{10}, driver 1</p>", page)
    figures = rows_of(page, "figures")
    assert "sass_instructions +100.0%" in figures["kernel_of_more sm_90a"]
    assert "<small>none</small>" in figures["kernel_of_less sm_90a"]
    assert "cold opens 17" in rows_of(page, "itself")["start"]


def test_a_record_of_an_unknown_commit_is_left_out(site: Path) -> None:
    """It has no place in this history."""
    assert "elsewhere" not in (site / "index.html").read_text(encoding="utf-8")


def test_publishing_again_changes_nothing(tools: SimpleNamespace, site: Path) -> None:
    """What was measured is kept, also when a run of asv has forgotten what came from files."""
    described = site.parent / "results/benchmarks.json"
    described.write_text('{"version": 2}', encoding="utf-8")
    listed = tools.publish.regressions(site)
    before = (site / "index.html").read_text(encoding="utf-8")
    assert tools.build.main(["--root", str(site.parents[1]), "--only-publish"]) == 0
    assert (site / "index.html").read_text(encoding="utf-8") == before
    assert tools.publish.regressions(site) == listed


# -- in Chromium -----------------------------------------------------------------------------------
class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, remembers what was not there, and says nothing."""

    missing: list[str] = []  # noqa: RUF012 - shared by all requests on purpose

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def send_error(self, code: int, *rest: object) -> None:
        """Remember it."""
        self.missing.append(f"{self.path}: {code}")
        super().send_error(code)


@pytest.fixture(scope="module")
def browser(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """The text of a page after its scripts ran, by a browser that reaches this server alone."""
    Quiet.missing.clear()
    handler = functools.partial(Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    profile = tmp_path_factory.mktemp("chromium")

    def rendered(address: str) -> str:
        assert CHROMIUM is not None
        done = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
             "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", f"--user-data-dir={profile}", "--virtual-time-budget=20000",
             "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--dump-dom",
             f"http://127.0.0.1:{server.server_address[1]}/{address}"],
            capture_output=True, text=True, timeout=180, check=True,
        )  # fmt: skip
        return done.stdout

    yield rendered
    server.shutdown()
    server.server_close()


@needs_chromium
def test_asvs_pages_render(browser: Callable[[str], str]) -> None:
    """The grid has all tracks, a graph is drawn, and no file was missing."""
    grid = browser("asv/index.html#/")
    assert "gemm_square" in grid and "<canvas" in grid
    graph = browser("asv/index.html#gpu.gemm_square?machine=nvidia-test-100")
    assert "<canvas" in graph and "program-kdsl" in graph and "program-cuBLAS" in graph
    assert Quiet.missing == []


@needs_chromium
def test_planted_regressions_are_listed(browser: Callable[[str], str]) -> None:
    """On asv's page the slower shape is in the list, the faster one is not."""
    page = browser("asv/index.html#regressions")
    assert SLOWER in page and "2.00x" in page and "kernel_of_more" in page
    assert FASTER not in page and "kernel_of_less" not in page


@needs_chromium
def test_first_page_renders(browser: Callable[[str], str]) -> None:
    """Kernels, shapes and pictures are there without any script."""
    page = browser("index.html")
    assert "Kernels on devices" in page and SLOWER in page and "<path d=" in page
    assert "<script" not in page and Quiet.missing == []
