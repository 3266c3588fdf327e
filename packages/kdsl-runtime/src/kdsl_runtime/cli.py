"""The command `kdsl`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

import kdsl_runtime
from kdsl_runtime import cli_cache, cli_compare, cli_export, cli_manifest, cli_pins, cli_tune
from kdsl_runtime.cli_report import console, reported
from kdsl_runtime.inspect_options import inspect_options, launch_options

if TYPE_CHECKING:
    pass

_STYLES = {"ok": "green", "warning": "yellow", "failure": "red"}
_SIGNS = {"ok": "✓", "warning": "!", "failure": "✗"}


@click.group()
@click.version_option(kdsl_runtime.__version__, prog_name="kdsl")
def main() -> None:
    """Kernels in Python: what works here, and what was built."""


for topic in (cli_cache, cli_manifest, cli_pins, cli_export, cli_tune, cli_compare):
    for command in topic.COMMANDS:
        main.add_command(command)


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


@main.command()
@inspect_options
@reported
def inspect(**choices: Any) -> None:
    """Show a kernel's source with what each line costs, from a run in the simulator.

    The launch is what the file's function example_KERNEL() returns, as keyword arguments of
    kd.simulate, or what --spec, --static, --grid and --block say.
    """
    from kdsl_runtime import inspect_command

    inspect_command.inspect(**choices)


@main.command()
@launch_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@reported
def profile(as_json: bool, grid: str, block: str, cluster: str, **choices: Any) -> None:
    """Count a launch on the GPU with Nsight Compute, beside the simulator, line by line.

    It needs a GPU and the program ncu. The launch is stated as for `kdsl inspect`.
    """
    from kdsl_runtime.profile import command

    sizes = {"grid": grid, "block": block, "cluster": cluster}
    command.profile(as_json, sizes=sizes, **choices)


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


if __name__ == "__main__":
    main()
