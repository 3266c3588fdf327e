"""The command `kdsl compare`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kdsl_runtime.cli_manifest import FILE
from kdsl_runtime.cli_report import reported

if TYPE_CHECKING:
    from kdsl_core.lang.kernel import KernelFunction
    from kdsl_core.testing.compare import Tolerance
    from kdsl_runtime.compare import Recording, Runs


@click.command()
@click.argument("recording", type=FILE)
@click.argument("target", metavar="FILE[:KERNEL]")
@click.option(
    "--on", "place", type=click.Choice(["simulator", "gpu"]), default="simulator",
    show_default=True, help="Where the kernel runs.",
)  # fmt: skip
@click.option("--got", type=FILE, help="Take results from this file, recorded alike.")
@click.option(
    "--runs", type=click.IntRange(min=1), default=3, show_default=True,
    help="Runs that must not differ: in other orders, or on the GPU.",
)  # fmt: skip
@click.option("--rtol", type=click.FloatRange(min=0), help="Allow so much of the recorded value.")
@click.option("--atol", type=click.FloatRange(min=0), help="Allow so much in any case.")
@click.option("--static", "statics", multiple=True, help="A trace-time argument: tile=64.")
@click.option("--grid", help="Blocks: 4 or 4,2.")
@click.option("--block", help="Threads of a block: 128 or 32,4.")
@click.option("--cluster", help="Blocks of a cluster.")
@click.option(
    "--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@reported
def compare(
    recording: Path, target: str, place: str, got: Path | None, runs: int, rtol: float | None,
    atol: float | None, statics: tuple[str, ...], style: str, **sizes: str | None,
) -> None:  # fmt: skip
    """Run a kernel on recorded arguments and compare what it wrote with what was recorded.

    RECORDING is a file of NumPy arrays (.npz): "A" is an argument of the kernel, "C.out" what C
    held afterwards, "C.out.2" what it held after another run. The launch is what the file's
    function launch_KERNEL(**arguments) returns, as keyword arguments of kd.simulate, or what
    --grid, --block and --static say. Without --rtol and --atol every bit must be equal.

    Exit codes: 0 equal, 1 nothing could be compared, 3 another accumulation order, 4 a wrong
    predicate, 5 a missing tile, 6 a race, 7 a difference of another kind.
    """
    from kdsl_runtime import compare as comparing
    from kdsl_runtime import recipe

    path, _, name = target.partition(":")
    module = recipe.load(Path(path))
    kernel = recipe.find(module, name)
    given = {what: recipe.sizes_of(text) for what, text in sizes.items()}
    static = recipe.arguments_of((), statics, 0)
    read = comparing.read(recording, kernel)

    def stated(arguments: Mapping[str, Any]) -> dict[str, Any]:
        return recipe.launch_for(module, kernel, given, static, arguments)

    ran = _runs(kernel, stated, read, place, runs, got)
    found = comparing.compare(kernel, read, ran, _tolerance(rtol, atol))
    click.echo(json.dumps(found.as_json(), indent=2) if style == "json" else str(found))
    sys.exit(int(found.kind))


def _runs(
    kernel: KernelFunction, stated: Any, read: Recording, place: str, count: int, got: Path | None
) -> Runs:
    """Results of the kernel, and who wrote them in the simulator."""
    from dataclasses import replace

    from kdsl_runtime import compare as comparing

    elsewhere = place == "gpu" or got is not None
    ran = comparing.simulated(kernel, stated, read, range(0 if elsewhere else count - 1))
    if got is not None:
        outputs = comparing.read(got, kernel).outputs
        count = min(map(len, outputs.values()))
        runs = {
            f"run {i + 1} of {got.name}": {name: outputs[name][i] for name in outputs}
            for i in range(count)
        }
        return replace(ran, outputs=runs)
    if place == "gpu":
        return replace(ran, outputs=comparing.on_gpu(kernel, stated, read, count).outputs)
    return ran


def _tolerance(rtol: float | None, atol: float | None) -> Tolerance | None:
    """What is allowed; None for no difference in any bit."""
    from kdsl_core.testing.compare import Tolerance

    return None if rtol is None and atol is None else Tolerance(rtol or 0.0, atol or 0.0)


COMMANDS = (compare,)
