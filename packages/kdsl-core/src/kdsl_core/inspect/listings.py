"""What a kernel became, by source line: its IR and its PTX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kdsl_core.inspect.sources import Place
from kdsl_core.ir import Kernel, Op, Target, flatten
from kdsl_core.ir.flat import Instruction
from kdsl_core.ir.printer import print_operations
from kdsl_core.loc import Loc
from kdsl_core.ptx.emission import instruction_texts

Listing = Mapping[Place, tuple[str, ...]]
"""Lines of text for each source line; ("", 0) has those of none."""


def ptx_by_line(kernel: Kernel, target: Target, place: Callable[[Loc], Place]) -> Listing:
    """The PTX that each source line became."""
    locs = map(_loc, flatten(kernel).instructions)
    return _gathered(zip(locs, instruction_texts(kernel, target), strict=True), place)


def ir_by_line(kernel: Kernel, place: Callable[[Loc], Place]) -> Listing:
    """The operations that each source line became."""
    return _gathered(((op.loc, [text]) for op, text in print_operations(kernel)), place)


def _loc(instruction: Instruction) -> Loc | None:
    op = instruction if isinstance(instruction, Op) else instruction.op
    return op.loc if op is not None else None


def _gathered(
    parts: Iterable[tuple[Loc | None, Iterable[str]]], place: Callable[[Loc], Place]
) -> Listing:
    found: dict[Place, list[str]] = {}
    for loc, texts in parts:
        found.setdefault(place(loc) if loc else ("", 0), []).extend(texts)
    return {key: tuple(texts) for key, texts in found.items() if texts}
