"""The options of `kdsl inspect` and `kdsl profile`, so that the command line starts quickly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

_Decorator = Callable[[Any], Any]
_LAUNCH: tuple[_Decorator, ...] = (
    click.argument("target", metavar="FILE[:KERNEL]"),
    click.option("--spec", "specs", multiple=True, help="An argument: x=bf16[128,64] or n=3."),
    click.option("--static", "statics", multiple=True, help="A trace-time argument: tile=64."),
    click.option("--grid", help="Blocks: 4 or 4,2."),
    click.option("--block", help="Threads of a block: 128 or 32,4."),
    click.option("--cluster", help="Blocks of a cluster."),
    click.option("--seed", default=0, show_default=True, help="Of the random arrays of --spec."),
)
_CHOICES: tuple[_Decorator, ...] = (
    *_LAUNCH,
    click.option("--device", default="NVIDIA H200", show_default=True, help="Whose roofs to draw."),
    click.option("--ir", "views", flag_value="ir", multiple=True, help="Show each line's IR."),
    click.option("--ptx", "views", flag_value="ptx", multiple=True, help="Show its PTX."),
    click.option("--sass", is_flag=True, help="Show its machine code (needs [sass])."),
    click.option("--build", is_flag=True, help="Assemble it: registers, spills, occupancy."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables."),
    click.option("--html", type=click.Path(path_type=Path), help="Write a page to this file."),
    click.option("--svg", type=click.Path(path_type=Path), help="Write a picture to this file."),
)


def inspect_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the arguments of `inspect`."""
    return _with(command, _CHOICES)


def launch_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the arguments that say which launch of which kernel is meant."""
    return _with(command, _LAUNCH)


def _with(command: Callable[..., None], choices: Sequence[_Decorator]) -> Callable[..., None]:
    for choice in reversed(choices):
        command = choice(command)
    return command
