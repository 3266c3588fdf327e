"""The command `kdsl tune`."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kdsl_runtime.cli_report import console, reported

if TYPE_CHECKING:
    from kdsl_runtime.tune import Backend, Executor, Outcome, Progress, Record

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_DASK = "dask://"


def seconds(text: str) -> float:
    """The seconds that a number says, alone or with one of the units s, m and h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text)
    if match is None:
        raise click.BadParameter(f"expected a time such as 90s, 5m or 1h, got {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


@click.command()
@click.argument("space", metavar="KERNEL|FILE:SPACE")
@click.option(
    "--shapes",
    "problems",
    multiple=True,
    required=True,
    metavar="m=512,n=512,dtype=bf16",
    help="A problem to tune for; may be given many times.",
)
@click.option("--budget", type=seconds, default="60s", help="Time for all problems (60s, 5m).")
@click.option("--points", type=click.IntRange(min=1), help="At most so many candidates a problem.")
@click.option("--predict", metavar="DEVICE", help="Predict for a device, without a GPU.")
@click.option(
    "--executor",
    default="processes",
    metavar="processes|dask://HOST:PORT",
    help="Where candidates run.",
)
@click.option("--time-limit", type=seconds, default="120s", help="Of one candidate.")
@click.option("--journal", type=click.Path(path_type=Path), help="Resume from, and write to.")
@click.option(
    "--tables",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where winners are written ($KDSL_TABLES, or in the user's data directory; predicted ones "
    "only where this option says).",
)
@reported
def tune(
    space: str,
    problems: tuple[str, ...],
    budget: float,
    points: int | None,
    predict: str | None,
    executor: str,
    time_limit: float,
    journal: Path | None,
    tables: Path | None,
) -> None:
    """Find the fastest configuration of a kernel for each problem, and remember it.

    Exit code 1 when some problem has none that is right.
    """
    from kdsl_runtime import dispatch
    from kdsl_runtime import tune as tuning

    found = tuning.load_space(space)
    wanted = [tuning.Problem.parse(text) for text in problems]
    own = next(map(Path, dispatch.user_directories()), None)
    folder = tables or (None if predict else own)
    backend: Backend = tuning.Predicted(predict) if predict else tuning.CudaEvents()
    places = _executors(executor, time_limit, on_gpu=predict is None)
    outcomes = []
    with ExitStack() as stack:
        for place in dict.fromkeys(places):
            stack.enter_context(closing(place))
        kept = tuning.Journal(journal or (own and own / f"{found.name}.jsonl"))
        for outcome in tuning.find_best(
            found,
            wanted,
            backend,
            executor=places[0],
            builders=places[1],
            journal=stack.enter_context(kept),
            budget=tuning.Budget(budget, points),
            tell=stack.enter_context(_Bars()).tell,
        ):
            outcomes.append(outcome)
            if outcome.winner is not None and folder is not None:
                _remember(outcome.winner, folder)
    _show(outcomes)
    sys.exit(0 if all(outcome.winner for outcome in outcomes) else 1)


def _remember(winner: Record, folder: Path) -> None:
    """Put a winner into the table of its device."""
    from kdsl_runtime import dispatch

    path = folder / dispatch.file_name(winner.kernel, winner.device)
    dispatch.put(path, winner.device, winner.entry())


def _executors(words: str, time_limit_s: float, on_gpu: bool) -> tuple[Executor, Executor]:
    """Where candidates are measured, and where they are built."""
    from kdsl_runtime import driver
    from kdsl_runtime.tune import Dask, LocalProcesses

    if words.startswith(_DASK):
        fleet = Dask.at(words.removeprefix(_DASK), time_limit_s)
        return fleet, fleet
    if words != "processes":
        raise click.BadParameter(f"expected processes or dask://HOST:PORT, got {words!r}")
    if not on_gpu:
        cores = LocalProcesses.of_cores(time_limit_s=time_limit_s)
        return cores, cores
    devices = range(driver.device_count())
    return (
        LocalProcesses.of_devices(devices, time_limit_s),
        LocalProcesses.of_cores(time_limit_s=time_limit_s),
    )


class _Bars:
    """A bar for each problem, on a terminal."""

    def __enter__(self) -> _Bars:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[best]}"),
            console=console(),
        )
        self._tasks: dict[str, Any] = {}
        self._best: dict[str, float] = {}
        self._bar.start()
        return self

    def __exit__(self, *about: object) -> None:
        self._bar.stop()

    def tell(self, progress: Progress) -> None:
        """Move the problem's bar."""
        name, record = str(progress.problem), progress.record
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, best="")
        if record.is_right:
            self._best[name] = min(self._best.get(name, math.inf), record.trial.us)
        best = f"best {self._best[name]:.2f} µs" if name in self._best else ""
        done, total = progress.done, progress.total
        self._bar.update(self._tasks[name], completed=done, total=total, best=best)


def _show(outcomes: Sequence[Outcome]) -> None:
    from rich.table import Table

    table = Table(box=None)
    for title in ("problem", "fastest", "µs", "spread", "error", "right", "not", "left"):
        table.add_column(title, overflow="fold")
    for outcome in outcomes:
        table.add_row(*_row(outcome))
    screen = console()
    screen.print(table)
    for outcome in outcomes:
        for reason, count in outcome.reasons.items():
            line = f"{outcome.problem}: {count} {reason}"
            screen.print(line, style="dim", markup=False, highlight=False)


def _row(outcome: Outcome) -> tuple[str, ...]:
    winner = outcome.winner
    right = sum(record.is_right for record in outcome.records)
    counts = str(right), str(len(outcome.records) - right), str(outcome.left)
    if winner is None:
        return (str(outcome.problem), "none is right", "", "", "", *counts)
    trial = winner.trial
    words = " ".join(f"{name}={value}" for name, value in winner.config.items())
    spread = f"{(trial.high - trial.low) / trial.us:.1%}"
    mark = "" if winner.backend == "cuda" else f" {winner.backend}"
    return (
        str(outcome.problem), words, f"{trial.us:.2f}{mark}", spread,
        f"{trial.error:.1e} of {winner.bound:.1e}", *counts,
    )  # fmt: skip


COMMANDS = (tune,)
