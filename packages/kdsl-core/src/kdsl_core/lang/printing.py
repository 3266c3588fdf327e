"""`kd.print`: a line per thread, from the simulator or the GPU."""

from __future__ import annotations

from typing import Any

from kdsl_core.isa.control import print_line
from kdsl_core.lang.scalar import as_scalar
from kdsl_core.lang.tracer import builder


def print_(template: str, *values: Any) -> None:
    """Show a line per thread: each {} of the template stands for the next value."""
    print_line(builder(), template, tuple(as_scalar(value).operand for value in values))
