"""`kdsl pin` and `kdsl check`: locks on the command line."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kdsl_runtime.cli_manifest import FILE, read, use_current_folder, watched
from kdsl_runtime.cli_report import reported

if TYPE_CHECKING:
    from kdsl_runtime.pins import Lock, Report

_LEVELS = ("container", "binary", "resources", "performance", "spills", "numerics", "broken")
_JOBS = click.option(
    "-j", "--jobs", type=click.IntRange(min=1), help="Processes (default: one a core)."
)
_NUMERICS = click.option(
    "--numerics/--no-numerics", default=True, help="Run the kernels in the simulator (default)."
)


@click.command()
@click.argument("manifests", type=FILE, nargs=-1, required=True)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default=Path("kdsl.lock"),
    show_default=True, help="The file to write.",
)  # fmt: skip
@_JOBS
@_NUMERICS
@reported
def pin(manifests: tuple[Path, ...], output: Path, jobs: int | None, numerics: bool) -> None:
    """Build all that the manifests name, and write down what became of it.

    What a lock of that name states of speed stays, where the machine code is the same. Exit code 1,
    and no file, when one could not be built.
    """
    from kdsl_runtime.outcomes import work_on
    from kdsl_runtime.pins import Lock
    from kdsl_runtime.pins import pin as pin_one

    wanted = read(manifests)
    work = functools.partial(pin_one, numerics=numerics)
    done = list(watched(work_on(wanted.variants, work, _cores(jobs)), len(wanted), "pinning"))
    failures = [outcome for outcome in done if outcome.problem]
    for outcome in failures:
        click.echo(f"\n{outcome.variant}\n{outcome.problem}", err=True)
    if failures:
        raise click.ClickException(f"{len(failures)} of {len(wanted)} kernels cannot be pinned")
    pins = Lock(outcome.result for outcome in done)
    (pins.measured_by(Lock.load(output)) if output.exists() else pins).save(output)
    click.echo(f"{output} pins {len(pins)} kernels")


@click.command()
@click.argument("lock", type=FILE, default=Path("kdsl.lock"))
@click.option("--toolchain", help="Path or version of a ptxas: what would an upgrade change?")
@click.option("--against", type=FILE, help="Compare with another lock, and build nothing.")
@click.option(
    "--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.option(
    "--fail-on", type=click.Choice(_LEVELS), default=_LEVELS[0], show_default=True,
    help="The least change that is no success.",
)  # fmt: skip
@click.option(
    "--regressions", is_flag=True,
    help="Only what is worse: more spills, fewer blocks a multiprocessor, 3 % more instructions or "
    "time, 1 % more memory traffic, more of any other counter.",
)  # fmt: skip
@_JOBS
@_NUMERICS
@reported
def check(
    lock: Path, toolchain: str | None, against: Path | None, style: str, fail_on: str,
    regressions: bool, jobs: int | None, numerics: bool,
) -> None:  # fmt: skip
    """Build what a lock pins again, and print what changed, the worst first.

    Exit codes: 0 nothing changed, 3 PTX or cubin but no instruction, 4 instructions, 5 resources,
    6 performance, 7 spills, 8 numerics, 9 a kernel that cannot be built any more. With --fail-on,
    lesser changes are 0 too.
    """
    from kdsl_runtime.pins import Lock, Severity, compare

    before = Lock.load(lock)
    if against is not None:
        report = compare(before, Lock.load(against))
    else:
        report = _checked(before, toolchain, numerics, _cores(jobs))
    report = report.regressions if regressions else report
    click.echo(json.dumps(report.as_json(), indent=2) if style == "json" else str(report))
    failed = report.worst is not None and report.worst >= Severity[fail_on.upper()]
    sys.exit(int(report.worst or 0) if failed else 0)


def _checked(before: Lock, toolchain: str | None, numerics: bool, jobs: int) -> Report:
    """The report after building everything, with a bar that moves for each kernel."""
    from kdsl_runtime.pins import rebuilt, report_of
    from kdsl_runtime.toolchain import default_toolchain, toolchain_named

    use_current_folder()
    chosen = toolchain_named(toolchain) if toolchain else default_toolchain()
    outcomes = rebuilt(before, chosen, numerics=numerics, jobs=jobs)
    return report_of(before, list(watched(outcomes, len(before), "checking")))


def _cores(jobs: int | None) -> int:
    return jobs or os.cpu_count() or 1


COMMANDS = (pin, check)
