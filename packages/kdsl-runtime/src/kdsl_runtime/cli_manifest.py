"""`kdsl warmup` and `kdsl merge`: manifests on the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from kdsl_runtime.cli_report import reported

if TYPE_CHECKING:
    from kdsl_runtime.manifest import Manifest

Step = TypeVar("Step")
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("manifests", type=FILE, nargs=-1, required=True)
@click.option("-j", "--jobs", type=click.IntRange(min=1), help="Processes (default: one a core).")
@click.option("--target", help="Build for this target only, for example sm_90a.")
@reported
def warmup(manifests: tuple[Path, ...], jobs: int | None, target: str | None) -> None:
    """Build all that the manifests name into the cache; needs no GPU.

    With --target, variants for other targets are left out, and those that state none are built for
    this one. Exit code 1 when one could not be built; the others are.
    """
    from kdsl_runtime.warming import build_manifest

    wanted = read(manifests)
    wanted = wanted.for_target(target) if target else wanted
    builds = build_manifest(wanted, jobs or os.cpu_count() or 1)
    failures = [outcome for outcome in watched(builds, len(wanted), "building") if outcome.problem]
    for outcome in failures:
        click.echo(f"\n{outcome.variant}\n{outcome.problem}", err=True)
    click.echo(f"{len(wanted) - len(failures)} of {len(wanted)} kernels are built")
    sys.exit(1 if failures else 0)


@click.command()
@click.argument("manifests", type=FILE, nargs=-1, required=True)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="The file to write."
)
@reported
def merge(manifests: tuple[Path, ...], output: Path) -> None:
    """Write one manifest with all that the given ones name."""
    merged = read(manifests)
    merged.save(output)
    click.echo(f"{output} names {len(merged)} kernels")


def read(paths: tuple[Path, ...]) -> Manifest:
    """The manifests in files, merged; modules that they name are found in the current folder."""
    from kdsl_runtime.manifest import Manifest

    use_current_folder()
    return reduce(Manifest.__or__, map(Manifest.load, paths))


def use_current_folder() -> None:
    """Find modules in the current folder, as `python -m` does."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def watched(steps: Iterator[Step], total: int, what: str) -> Iterator[Step]:
    """The steps, with a bar that moves for each."""
    from rich.console import Console
    from rich.progress import track

    yield from track(steps, what, total=total, console=Console(stderr=True))


COMMANDS = (warmup, merge)
