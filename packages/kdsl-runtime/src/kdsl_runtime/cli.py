"""The command `kdsl`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import kdsl_runtime
from kdsl_core.errors import CacheError
from kdsl_runtime.cli_report import console, reported
from kdsl_runtime.cli_tune import tune

if TYPE_CHECKING:
    from kdsl_runtime.cache import DiskCache

_STYLES = {"ok": "green", "warning": "yellow", "failure": "red"}
_SIGNS = {"ok": "✓", "warning": "!", "failure": "✗"}


@click.group()
@click.version_option(kdsl_runtime.__version__, prog_name="kdsl")
def main() -> None:
    """Kernels in Python: what works here, and what was built."""


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@reported
def doctor(as_json: bool) -> None:
    """Say what works here and how to mend what does not; exit code 0 when kernels can run."""
    from kdsl_runtime import doctor as examination

    checks = examination.examine()
    usable = examination.is_usable(checks)
    if as_json:
        values = {"usable": usable, "checks": [asdict(check) for check in checks]}
        click.echo(json.dumps(values, indent=2))
    else:
        _show_checks(checks)
    sys.exit(0 if usable else 1)


@main.group()
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

    table = Table("key", "kernel", "target", "registers", "spills", "KiB", "used", box=None)
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


def _facts(metadata: Any) -> tuple[str, str, str, str]:
    report = metadata.get("report", {})
    spills = report.get("spill_stores", 0) + report.get("spill_loads", 0)
    kernel, target = str(metadata.get("entry", "?")), str(metadata.get("target", "?"))
    return kernel, target, str(report.get("registers", "?")), str(spills)


def _show_checks(checks: list[Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        sign = f"[{_STYLES[check.state]}]{_SIGNS[check.state]}[/]"
        detail = escape(check.detail)
        if check.fix:
            detail += f"\n[dim]to mend it: {escape(check.fix)}[/]"
        table.add_row(sign, check.name, detail)
    console().print(table)


main.add_command(tune)

if __name__ == "__main__":
    main()
