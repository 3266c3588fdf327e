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
from kdsl_runtime import cli_export, cli_manifest, cli_pins
from kdsl_runtime.cli_errors import reported as _reported
from kdsl_runtime.inspect_options import inspect_options

if TYPE_CHECKING:
    from kdsl_runtime.cache import DiskCache

_STYLES = {"ok": "green", "warning": "yellow", "failure": "red"}
_SIGNS = {"ok": "✓", "warning": "!", "failure": "✗"}


@click.group()
@click.version_option(kdsl_runtime.__version__, prog_name="kdsl")
def main() -> None:
    """Kernels in Python: what works here, and what was built."""


for command in (*cli_manifest.COMMANDS, *cli_pins.COMMANDS, *cli_export.COMMANDS):
    main.add_command(command)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@_reported
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


@main.command()
@inspect_options
@_reported
def inspect(**choices: Any) -> None:
    """Show a kernel's source with what each line costs, from a run in the simulator.

    The launch is what the file's function example_KERNEL() returns, as keyword arguments of
    kd.simulate, or what --spec, --static, --grid and --block say.
    """
    from kdsl_runtime import inspect_command

    inspect_command.inspect(**choices)


@main.group()
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="The cache's directory (default: $KDSL_CACHE_DIR or ~/.cache/kdsl).",
)
@click.pass_context
@_reported
def cache(context: click.Context, directory: Path | None) -> None:
    """Look after the kernels that were built."""
    context.obj = _open_cache(directory)


@cache.command("ls")
@click.pass_obj
@_reported
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
    _console().print(table)


@cache.command()
@click.pass_obj
@_reported
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
@_reported
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
@_reported
def prune(disk: DiskCache, max_mib: int | None) -> None:
    """Remove what was not used for longest, until the bound is kept."""
    removed = disk.prune(None if max_mib is None else max_mib << 20)
    click.echo(f"{removed} entries removed")


@cache.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.pass_obj
@_reported
def export_cache(disk: DiskCache, file: Path) -> None:
    """Write every entry to FILE, a tar that `import` takes on another machine."""
    from kdsl_runtime.cache.archive import export_entries

    click.echo(f"{export_entries(disk, file)} entries written to {file}")


@cache.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
@_reported
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
@_reported
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
    _console().print(table)


def _console() -> Any:
    from rich.console import Console

    return Console()


if __name__ == "__main__":
    main()
