"""How every command of `kdsl` shows its errors and its tables."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from kdsl_core.errors import KdslError

if TYPE_CHECKING:
    from rich.console import Console


def reported(command: Callable[..., None]) -> Callable[..., None]:
    """Show an error of kdsl as its paragraph, without a stack trace; exit code 1."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except KdslError as problem:
            raise click.ClickException(str(problem)) from problem

    return run


def console() -> Console:
    """Where tables and bars go."""
    from rich.console import Console

    return Console()
