"""`kdsl export`: kernels for C programs on the command line."""

from __future__ import annotations

from pathlib import Path

import click

from kdsl_runtime.cli_manifest import FILE, read
from kdsl_runtime.cli_report import reported


@click.command()
@click.argument("manifest", type=FILE)
@click.argument("kernels", nargs=-1)
@click.option(
    "-o", "--output", type=click.Path(file_okay=False, path_type=Path), required=True,
    help="The folder to write to.",
)  # fmt: skip
@click.option("--target", help="Export for this target only, for example sm_90a.")
@reported
def export(manifest: Path, kernels: tuple[str, ...], output: Path, target: str | None) -> None:
    """Write cubin and C header of what a manifest names, and a loader that needs no Python.

    KERNELS, as "module:name", choose among them; all are written without.
    """
    from kdsl_runtime.export import export as write

    wanted = read((manifest,))
    wanted = wanted.for_target(target) if target else wanted
    chosen = [variant for variant in wanted if not kernels or variant.kernel in kernels]
    missing = sorted(set(kernels) - {variant.kernel for variant in chosen})
    if missing or not chosen:
        raise click.ClickException(f"{manifest} does not name {', '.join(missing) or 'a kernel'}")
    for path in write(chosen, output):
        click.echo(path)


COMMANDS = (export,)
