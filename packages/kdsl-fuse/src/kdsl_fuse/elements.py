"""Pointwise functions as values: straight-line programs of any number of operands and results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kdsl_fuse.tail import Step, run_step


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
        values = list(operands)
        for step in self.steps:
            values.append(run_step(kd, step, [values[arg] for arg in step.args]))
        return tuple(values[result] for result in self.results)

    def __str__(self) -> str:
        names = [f"x{index}" for index in range(self.operands)]
        lines = [f"def function({', '.join(names)}):"]
        for number, step in enumerate(self.steps):
            if step.op == "Constant":
                names.append(dict(step.attrs)["value"])
                continue
            options = [f"{key}={value!r}" for key, value in step.attrs]
            options += ["approx=True"] * step.quick
            called = ", ".join([*(names[arg] for arg in step.args), *options])
            names.append(f"v{number}")
            lines.append(f"    {names[-1]} = {step.op}({called})")
        return "\n".join([*lines, f"    return {', '.join(names[x] for x in self.results)}"])


VALUE = ElementFunction(1, (), (0,))
"""What an element is, without any change."""
