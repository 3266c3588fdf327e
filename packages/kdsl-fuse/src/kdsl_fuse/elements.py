"""Pointwise functions as values: straight-line programs of any number of operands and results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kdsl_fuse.tail import Step, listing, run_steps


@dataclass(frozen=True)
class ElementFunction:
    """`function(*operands)` of one element each: its result, or a tuple of several.

    Values are numbered: operands first, then `steps`; `results` are numbers of values. Operands
    come widened to 32 bits, all arithmetic of floats is f32, a Cast rounds and widens again.
    """

    operands: int
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def __call__(self, *operands: Any) -> Any:
        """The results, as kdsl_core scalars; called while a kernel is traced."""
        import kdsl_core as kd

        found = self.evaluate(kd, *operands)
        return found if len(found) > 1 else found[0]

    def evaluate(self, kd: Any, *operands: Any) -> tuple[Any, ...]:
        """All results, with the words of the language taken from `kd`."""
        values = run_steps(kd, self.steps, operands)
        return tuple(values[result] for result in self.results)

    def __str__(self) -> str:
        names = [f"x{index}" for index in range(self.operands)]
        return listing(f"def function({', '.join(names)}):", names, self.steps, self.results)


VALUE = ElementFunction(1, (), (0,))
"""What an element is, without any change."""
