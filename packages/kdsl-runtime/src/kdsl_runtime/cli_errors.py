"""How commands show errors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from kdsl_core.errors import KdslError


def reported(command: Callable[..., None]) -> Callable[..., None]:
    """Show an error of kdsl as its paragraph, without a stack trace; exit code 1."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except KdslError as problem:
            raise click.ClickException(str(problem)) from problem

    return run
