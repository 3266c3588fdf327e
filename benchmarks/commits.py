"""Commits of a git repository: their names, and their files laid out beside the checkout."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MEASURED = ("packages", "benchmarks", "examples", "tests/runtime")
"""What figures of a commit depend on."""


class Unknown(Exception):
    """A commit that this clone does not have; the message says which, and what a clone can do."""


@dataclass(frozen=True)
class Repository:
    """A checkout."""

    root: Path

    def git(self, *words: str) -> str:
        """What git prints.

        Raises: subprocess.CalledProcessError.
        """
        command = ["git", "-C", str(self.root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self, name: str) -> str:
        """The full hash of a commit.

        Raises: Unknown.
        """
        try:
            return self.git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        except subprocess.CalledProcessError:
            shallow = self.git("rev-parse", "--is-shallow-repository") == "true"
            why = ": the clone is shallow (git fetch --deepen 1)" if shallow else ""
            raise Unknown(f"there is no commit {name} here{why}") from None

    def history(self, last: str, most: int | None = None) -> list[str]:
        """Commits up to `last`, newest first, along first parents."""
        limit = [f"--max-count={most}"] if most else []
        return self.git("rev-list", "--first-parent", *limit, last).splitlines()

    def merged(self, commit: str, last: str) -> str:
        """The commit itself where `history` has it, else the one that merged it.

        Raises: Unknown for one that `last` does not contain.
        """
        commit = self.commit(commit)
        after = self.git("rev-list", "--ancestry-path", f"{commit}..{last}").splitlines()
        contained = {commit, *after}
        of_history = [c for c in self.history(last) if c in contained]
        if not of_history:
            raise Unknown(f"{last} does not contain {commit[:10]}")
        return of_history[-1]

    def ancestors(self, last: str) -> list[str]:
        """All commits that `last` contains, newest first."""
        return self.git("rev-list", "--topo-order", last).splitlines()

    def same(self, one: str, other: str) -> bool:
        """Whether nothing differs that figures depend on."""
        words = ["git", "-C", str(self.root), "diff", "--quiet", one, other, "--", *MEASURED]
        return subprocess.run(words).returncode == 0

    @contextlib.contextmanager
    def exported(self, commit: str) -> Iterator[Path]:
        """A folder with the commit's files, for as long as the block runs."""
        packed = subprocess.run(
            ["git", "-C", str(self.root), "archive", "--format=tar", commit],
            capture_output=True, check=True,
        ).stdout  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="kdsl-commit-") as folder:
            with tarfile.open(fileobj=io.BytesIO(packed)) as files:
                files.extractall(folder, filter="data")
            yield Path(folder)


def environment(tree: Path) -> dict[str, str]:
    """Environment variables with which Python finds the packages of that tree before all others."""
    sources = [str(path) for path in sorted(tree.glob("packages/*/src"))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sources), "PYTHONHASHSEED": "0"}
