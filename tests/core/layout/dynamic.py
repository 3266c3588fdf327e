"""A dynamic integer for tests: it records what is computed and refuses every decision."""

from __future__ import annotations

from typing import Any


class Dyn:
    """A run-time integer that knows its value only for the final check of a test."""

    trace: list[str] = []  # noqa: RUF012 — one recorder shared by all operands of a test

    def __init__(self, value: int) -> None:
        self.value = value

    def _op(self, name: str, a: Any, b: Any, result: int) -> Dyn:
        Dyn.trace.append(name)
        return Dyn(result)

    def __add__(self, o: Any) -> Dyn:
        return self._op("+", self, o, self.value + known(o))

    def __radd__(self, o: Any) -> Dyn:
        return self._op("+", o, self, known(o) + self.value)

    def __sub__(self, o: Any) -> Dyn:
        return self._op("-", self, o, self.value - known(o))

    def __rsub__(self, o: Any) -> Dyn:
        return self._op("-", o, self, known(o) - self.value)

    def __mul__(self, o: Any) -> Dyn:
        return self._op("*", self, o, self.value * known(o))

    __rmul__ = __mul__

    def __floordiv__(self, o: Any) -> Dyn:
        return self._op("//", self, o, self.value // known(o))

    def __rfloordiv__(self, o: Any) -> Dyn:
        return self._op("//", o, self, known(o) // self.value)

    def __mod__(self, o: Any) -> Dyn:
        return self._op("%", self, o, self.value % known(o))

    def __rmod__(self, o: Any) -> Dyn:
        return self._op("%", o, self, known(o) % self.value)

    def __and__(self, o: Any) -> Dyn:
        return self._op("&", self, o, self.value & known(o))

    def __xor__(self, o: Any) -> Dyn:
        return self._op("^", self, o, self.value ^ known(o))

    def __rshift__(self, o: Any) -> Dyn:
        return self._op(">>", self, o, self.value >> known(o))

    def _decide(self, *_: Any) -> bool:
        raise AssertionError("a decision was made on a run-time value")

    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _decide  # type: ignore[assignment]  # every decision is refused
    __hash__ = None  # type: ignore[assignment]  # hashing would call __eq__

    def __index__(self) -> int:
        raise AssertionError("a run-time value was used as a Python index")

    def __repr__(self) -> str:
        return f"n{self.value}"


def known(x: Any) -> int:
    """The value of a static or dynamic integer."""
    return x.value if isinstance(x, Dyn) else x
