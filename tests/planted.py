"""Git repositories with planted performance records, for tests of the gate and the dashboard."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEVICE = "NVIDIA Test 100"
AUTHOR = ("-c", "user.name=tester", "-c", "user.email=tester@localhost")
# A commit's `facts.py` that says what stands beside it.
TELLS = """
import json, pathlib, sys
text = pathlib.Path(__file__).with_name("figures.json").read_text()
if text == "fails":
    sys.exit("facts.py: it fails")
pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(text)
"""


def git(root: Path, *words: str) -> str:
    """What git prints."""
    command = ["git", "-C", str(root), *AUTHOR, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def repository(root: Path) -> Path:
    """An empty one."""
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "-q", "-b", "main")
    return root


def commit(root: Path, number: int, files: Mapping[str, str]) -> str:
    """A commit of these files, a day after the one before."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    git(root, "add", "--all")
    day = f"2026-01-{number + 1:02}T00:00:00"
    git(root, "commit", "-q", "--allow-empty", "-m", f"commit {number}", "--date", day)
    return git(root, "rev-parse", "HEAD")


def facts(
    subjects: Mapping[str, Mapping[str, float]], problems: Mapping[str, str] | None = None
) -> str:
    """What `facts.py` writes."""
    found = {"format": 1, "ptxas": "13.0.0", "subjects": subjects, "problems": problems or {}}
    return json.dumps(found)


def shape(kernel: str, name: str, **us: float) -> dict[str, Any]:
    """A measured shape; times by program, with a spread of 0.2 µs."""
    sides = {
        program.replace("_", " "): {"us": time, "spread_us": 0.2, "variant": program}
        for program, time in us.items()
    }
    return {"kernel": kernel, "shape": name, "sides": sides, "failures": {}}


def record(root: Path, commit: str, *shapes: Mapping[str, Any]) -> Path:
    """A record of a GPU."""
    path = root / "results/gpu" / f"{commit[:12]}-test.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"format": 1, "commit": commit, "device": DEVICE, "driver": "1", "shapes": shapes}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
