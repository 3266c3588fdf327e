"""The performance record as a static site: the CPU's tracks, the GPUs' records, a first page.

    python3 dev.py dashboard [--history N] [--no-times] [--only-publish] [--quick] [--bench REGEX]

Figures that never vary come from each commit's own `facts.py`, times from asv on this checkout's
benchmarks and the commit's packages, GPUs from results/gpu. Nothing is fetched: look at the site
with `python3 -m http.server --directory .asv/html`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "gpu")]
import asv_tracks  # noqa: E402 - these are found by the line before
import commits  # noqa: E402 - the same
import front_page  # noqa: E402 - the same
import history  # noqa: E402 - the same
import ingest  # noqa: E402 - the same
import publish  # noqa: E402 - the same
from commits import Repository  # noqa: E402 - the same
from records import records  # noqa: E402 - the same

FACTS_SECONDS = 1800


def parser() -> argparse.ArgumentParser:
    """The command line."""
    words = argparse.ArgumentParser(prog="dev.py dashboard", description=__doc__.splitlines()[0])
    words.add_argument("--history", type=int, default=1, metavar="N", help="the last N commits")
    words.add_argument("--no-times", action="store_true", help="only figures that never vary")
    words.add_argument("--only-publish", action="store_true", help="measure nothing")
    words.add_argument("--quick", action="store_true", help="each time once")
    words.add_argument("--bench", default=".*", metavar="REGEX", help="only these times")
    words.add_argument("--root", type=Path, default=HERE.parents[1], help=argparse.SUPPRESS)
    return words


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is missing, ingest, publish."""
    options = parser().parse_args(words)
    here = Repository(options.root)
    if not options.only_publish:
        for commit in reversed(here.history("HEAD", options.history)):
            measure(here, commit, options)
    newest_first = here.ancestors("HEAD")
    facts = collected(options.root, newest_first[::-1])
    for commit, found in facts:  # asv forgets at each run which tracks came from files
        asv_tracks.put(options.root, asv_tracks.here(), commit, asv_tracks.of_facts(found))
    kept = list(records(options.root / "results/gpu"))
    for line in ingest.ingest(options.root, kept):
        print(line)
    site = publish.publish(options.root)
    page = front_page.page(
        "kdsl: the performance record",
        history.kernels(kept, newest_first),
        list(history.subjects(facts)),
        history.measured(kept, newest_first),
    )
    (site / "index.html").write_text(page, encoding="utf-8")
    listed = publish.regressions(site)
    print(f"{site / 'index.html'}: {len(kept)} records of GPUs, {len(listed)} regressions by asv")
    return 0


def measure(here: Repository, commit: str, options: argparse.Namespace) -> None:
    """The facts and the times of a commit, unless they are there."""
    kept = facts_of(here.root, commit)
    if kept.exists() and options.no_times:
        return
    with here.exported(commit) as tree:
        if not kept.exists() and (tree / "benchmarks/facts.py").exists():
            print(f"facts of {commit[:10]}", flush=True)
            collect(tree, kept)
        if not options.no_times:
            times(here.root, tree, commit, options)


def facts_of(root: Path, commit: str) -> Path:
    """Where a commit's facts are kept."""
    return root / ".asv" / "facts" / f"{commit}.json"


def collect(tree: Path, kept: Path) -> None:
    """Run a checkout's `facts.py`."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, str(tree / "benchmarks/facts.py"), "--json", str(kept), "--kinds"]
    subprocess.run(words, env=commits.environment(tree), check=True, timeout=FACTS_SECONDS)


def collected(root: Path, order: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The kept facts of commits, oldest first."""
    files = ((commit, facts_of(root, commit)) for commit in order)
    return [(commit, json.loads(file.read_text())) for commit, file in files if file.exists()]


def times(root: Path, tree: Path, commit: str, options: argparse.Namespace) -> None:
    """asv's own benchmarks: those of this checkout, on a commit's packages."""
    environment = commits.environment(tree)
    environment["ASV_PYTHONPATH"] = environment["PYTHONPATH"]
    asv = [sys.executable, "-m", "asv"]
    config = ["--config", str(root / "benchmarks/asv.conf.json")]
    subprocess.run([*asv, "machine", "--yes", *config], env=environment, check=True)
    words = [
        *asv, "run", *config, f"--python={sys.executable}", "--set-commit-hash", commit,
        "--skip-existing-successful", "--show-stderr", "--bench", options.bench,
        *(["--quick"] if options.quick else []),
    ]  # fmt: skip
    code = subprocess.run(words, env=environment, cwd=root).returncode
    if code:
        print(f"asv: some benchmarks of {commit[:10]} failed (exit code {code})", file=sys.stderr)


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "120")
    sys.exit(main())
