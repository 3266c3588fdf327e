"""Random programs of integers with nested branches, loops, jumps and early returns."""

from __future__ import annotations

import random


class Program:
    """The text of one function f(loop, x, y), the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._loops = 0
        self._names = ["a", "b", "c"]
        start = self._random.choice(["x - x", "x"])
        self._lines = ["def f(loop, x, y):", "  a = x", "  b = y - 2", f"  c = {start}"]
        for _ in range(4):
            self._statement(1, 3, in_loop=False)
        self._lines.append("  return a + 31 * b + 77 * c")
        self.text = "\n".join(self._lines) + "\n"

    def _expression(self, depth: int = 0) -> str:
        kind = self._random.random()
        if depth > 1 or kind < 0.45:
            return self._random.choice([*self._names, str(self._random.randint(0, 6))])
        left, right = self._expression(depth + 1), self._expression(depth + 1)
        if kind < 0.85:
            return f"({left} {self._random.choice('+-')} {right})"
        return f"({left} if {self._condition(depth + 1)} else {right})"

    def _condition(self, depth: int = 0) -> str:
        kind = self._random.random()
        if depth < 2 and kind < 0.2:
            word = self._random.choice(["and", "or"])
            return f"({self._condition(depth + 1)} {word} {self._condition(depth + 1)})"
        if depth < 2 and kind < 0.3:
            return f"(not {self._condition(depth + 1)})"
        first, second = self._expression(2), self._expression(2)
        if kind < 0.4:
            return f"{first} < {second} <= {self._expression(2)}"
        return f"{first} {self._random.choice(['<', '>', '==', '<=', '!='])} {second}"

    def _block(self, indent: int, depth: int, in_loop: bool) -> None:
        for _ in range(self._random.randint(1, 3)):
            self._statement(indent, depth, in_loop)
        kind = self._random.random()
        if in_loop and kind < 0.1:
            self._add(indent, self._random.choice(["break", "continue"]))
        elif kind < 0.15:
            self._add(indent, f"return {self._expression()}")

    def _add(self, indent: int, text: str) -> None:
        self._lines.append("  " * indent + text)

    def _statement(self, indent: int, depth: int, in_loop: bool) -> None:
        kind = self._random.random()
        if depth <= 0 or kind < 0.4:
            self._assignment(indent)
        elif kind < 0.7:
            self._add(indent, f"if {self._condition()}:")
            self._block(indent + 1, depth - 1, in_loop)
            if self._random.random() < 0.5:
                self._add(indent, "else:")
                self._block(indent + 1, depth - 1, in_loop)
        else:
            self._loop(indent, depth, kind)

    def _assignment(self, indent: int) -> None:
        if self._random.random() < 0.1:
            first, second = self._random.sample(self._names, 2)
            self._add(indent, f"{first}, {second} = {second}, {self._expression()}")
            return
        sign = self._random.choice(["=", "=", "+=", "-="])
        self._add(indent, f"{self._random.choice(self._names)} {sign} {self._expression()}")

    def _loop(self, indent: int, depth: int, kind: float) -> None:
        self._loops += 1
        name = f"k{self._loops}"
        if kind < 0.85:
            bounds = self._random.choice(["3", "x % 4", "1, 5, 2"])
            self._add(indent, f"for {name} in loop({bounds}):")
            self._add(indent + 1, f"a = a + {name}")
        elif kind < 0.93:
            self._add(indent, f"{name} = x - x")
            self._add(indent, f"while {name} < {self._random.choice(['4', 'x % 5'])}:")
            self._add(indent + 1, f"{name} = {name} + 1")
        else:
            self._add(indent, f"for _ in range({self._random.randint(1, 2)}):")
        self._block(indent + 1, depth - 1, in_loop=kind < 0.93)
