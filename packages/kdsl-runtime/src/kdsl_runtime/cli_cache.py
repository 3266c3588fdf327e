"""`kdsl cache`: looking after the kernels that were built."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kdsl_core.errors import CacheError
from kdsl_runtime.cli_report import console, reported

if TYPE_CHECKING:
    from kdsl_runtime.cache import DiskCache


@click.group()
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="The cache's directory (default: $KDSL_CACHE_DIR or ~/.cache/kdsl).",
)
@click.pass_context
@reported
def cache(context: click.Context, directory: Path | None) -> None:
    """Look after the kernels that were built."""
    context.obj = _open_cache(directory)


@cache.command("ls")
@click.pass_obj
@reported
def list_entries(disk: DiskCache) -> None:
    """List the entries, most recently used first."""
    from rich.table import Table

    table = Table("key", "kind", "kernel", "target", "registers", "spills", "KiB", "used", box=None)
    for file in reversed(disk.files()):
        entry = disk.peek(file.key)
        if entry is not None:
            used = datetime.fromtimestamp(file.used_ns / 1e9).isoformat(" ", "minutes")
            size = f"{file.bytes / 1024:.1f}"
            table.add_row(file.key[:12], *_facts(entry.metadata), size, used)
    console().print(table)


@cache.command()
@click.pass_obj
@reported
def stats(disk: DiskCache) -> None:
    """Say where the cache is, how much it holds and how much it may hold."""
    files = disk.files()
    size = sum(file.bytes for file in files)
    click.echo(f"directory  {disk.root}")
    click.echo(f"entries    {len(files)}")
    click.echo(f"size       {size / 2**20:.1f} MiB of at most {disk.max_bytes / 2**20:.0f} MiB")
    click.echo(f"layers     {os.environ.get('KDSL_CACHE_LAYERS') or 'none'}")
    click.echo(f"remote     {os.environ.get('KDSL_CACHE_REMOTE') or 'none'}")


@cache.command()
@click.pass_obj
@reported
def verify(disk: DiskCache) -> None:
    """Read every entry and check every byte; exit code 1 when one was bad (it is set aside)."""
    good = bad = 0
    for file, problem in disk.verify():
        good += problem is None
        bad += problem is not None
        if problem is not None:
            click.echo(f"{file.path}: {problem}")
    click.echo(f"{good} good, {bad} bad")
    sys.exit(1 if bad else 0)


@cache.command()
@click.option("--max-mib", type=click.IntRange(min=0), help="Keep at most this much.")
@click.pass_obj
@reported
def prune(disk: DiskCache, max_mib: int | None) -> None:
    """Remove what was not used for longest, until the bound is kept."""
    removed = disk.prune(None if max_mib is None else max_mib << 20)
    click.echo(f"{removed} entries removed")


@cache.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.pass_obj
@reported
def export_cache(disk: DiskCache, file: Path) -> None:
    """Write every entry to FILE, a tar that `import` takes on another machine."""
    from kdsl_runtime.cache.archive import export_entries

    click.echo(f"{export_entries(disk, file)} entries written to {file}")


@cache.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
@reported
def import_cache(disk: DiskCache, file: Path) -> None:
    """Take over the entries of FILE, from a source that you trust; exit code 1 when one is bad."""
    from kdsl_runtime.cache.archive import import_entries

    good = bad = 0
    for name, problem in import_entries(disk, file):
        good += problem is None
        bad += problem is not None
        if problem is not None:
            click.echo(f"{name}: {problem}")
    click.echo(f"{good} entries taken over, {bad} refused")
    sys.exit(1 if bad else 0)


@cache.command()
@click.pass_obj
@reported
def clear(disk: DiskCache) -> None:
    """Remove every entry."""
    click.echo(f"{disk.clear()} entries removed")


def _open_cache(directory: Path | None) -> DiskCache:
    from kdsl_runtime.cache import DiskCache, default_directory
    from kdsl_runtime.cache.layers import max_bytes

    chosen = directory or default_directory()
    if chosen is None:
        raise CacheError(
            "no cache directory: KDSL_CACHE_DIR, XDG_CACHE_HOME and HOME are not set",
            code="K728",
            fix="pass --dir, or set KDSL_CACHE_DIR",
        )
    try:
        return DiskCache(chosen, max_bytes(os.environ))
    except OSError as problem:
        raise CacheError(
            f"the cache directory {chosen} cannot be used: {problem}",
            code="K729",
            fix="pass --dir, or set KDSL_CACHE_DIR to a directory that you can write",
        ) from problem


def _facts(metadata: Any) -> tuple[str, str, str, str, str]:
    facts = metadata.get("facts") or metadata
    report = metadata.get("report", {})
    spills = report.get("spill_stores", 0) + report.get("spill_loads", 0) if report else ""
    kind, kernel, target = metadata.get("kind"), facts.get("entry"), facts.get("target")
    return str(kind), str(kernel), str(target), str(report.get("registers", "")), str(spills)


COMMANDS = (cache,)
