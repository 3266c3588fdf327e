"""Pointwise functions as Python: the operators' own code, run on text instead of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kdsl_core.dtypes import BY_NAME, DType
from kdsl_fuse.elements import ElementFunction
from kdsl_fuse.tail import Step, Tail, run_step, widen

_ATOM, _UNARY, _TIMES, _PLUS, _AND, _XOR, _OR, _COMPARE = range(8)  # how tightly parts hold


class Text:
    """An expression as text, with how tightly its outermost operator binds."""

    __hash__ = None  # type: ignore[assignment]  # == makes text, like all operators here

    def __init__(self, text: str, level: int = _ATOM, words: Words | None = None) -> None:
        self.text = text
        self.level = level
        self.words = words

    def to(self, dtype: DType) -> Text:
        """The conversion, in the words of the side that is written."""
        assert self.words is not None
        return Text(self.words.cast(self.inside(_ATOM), dtype), words=self.words)

    def inside(self, level: int) -> str:
        """The text as an operand of an operator that binds at `level`."""
        return f"({self.text})" if self.level > level else self.text

    def __neg__(self) -> Text:
        return Text(f"-{self.inside(_UNARY)}", _UNARY, self.words)

    def __invert__(self) -> Text:
        return Text(f"~{self.inside(_UNARY)}", _UNARY, self.words)


def _binary(sign: str, level: int, turned: bool) -> Callable[[Text, Any], Text]:
    def method(self: Text, other: Any) -> Text:
        made = other if isinstance(other, Text) else Text(_number(other), words=self.words)
        left, right = (made, self) if turned else (self, made)
        if level == _COMPARE:  # comparisons do not chain
            text = f"{left.inside(_OR)} {sign} {right.inside(_OR)}"
        else:
            text = f"{left.inside(level)} {sign} {right.inside(level - 1)}"
        return Text(text, level, self.words)

    return method


_SIGNS = {
    "add": ("+", _PLUS),
    "sub": ("-", _PLUS),
    "mul": ("*", _TIMES),
    "truediv": ("/", _TIMES),
    "and": ("&", _AND),
    "xor": ("^", _XOR),
    "or": ("|", _OR),
}
for _name, (_sign, _level) in _SIGNS.items():
    setattr(Text, f"__{_name}__", _binary(_sign, _level, turned=False))
    setattr(Text, f"__r{_name}__", _binary(_sign, _level, turned=True))
for _name, _sign in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
    setattr(Text, f"__{_name}__", _binary(_sign, _COMPARE, turned=False))


def _number(value: Any) -> str:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return 'float("nan")' if value != value else repr(value)


class Words:
    """What stands for `kd` while an operator's code is run: each word gives a call as text."""

    def __init__(
        self, module: str, cast: Callable[[str, DType], str], other: Mapping[str, str]
    ) -> None:
        self._module = module
        self._other = other
        self.cast = cast

    def __getattr__(self, word: str) -> Any:
        def call(*args: Any, **options: Any) -> Text:
            texts = [x.text if isinstance(x, Text) else _number(x) for x in args]
            if self._module == "kd":
                texts += [f"{name}={value!r}" for name, value in options.items()]
            called = self._other.get(word, f"{self._module}.{word}")
            return Text(f"{called}({', '.join(texts)})", words=self)

        return call


KERNEL = Words("kd", lambda x, dtype: f"{x}.to(kd.{dtype})", {})
NUMPY = Words(
    "np",
    lambda x, dtype: f"{x}.astype(kd.{dtype}.numpy)",
    {word: f"numpy_words.{word}" for word in ("erf", "ndtr", "rsqrt", "sigmoid")},
)


def function_text(name: str, doc: str, function: Tail | ElementFunction) -> str:
    """The function as a kernel calls it, with a line for each operator."""
    values: list[Any]
    results: tuple[int, ...]
    if isinstance(function, Tail):
        names, results = function.parameters, (function.result,)
        values = [Text(x, words=KERNEL) for x in names[: function.sums]]
        for extra, dtype in zip(names[function.sums :], function.extras, strict=True):
            values.append(widen(BY_NAME[dtype], Text(extra, words=KERNEL)))
    else:
        names = tuple(f"x{index}" for index in range(function.operands))
        results = function.results
        values = [Text(x, words=KERNEL) for x in names]
    lines = [f"def {name}({', '.join(names)}):", f'    """{doc}"""']
    lines += _steps(function.steps, values)
    return "\n".join([*lines, f"    return {', '.join(shown(values[x]) for x in results)}"])


def _steps(steps: Sequence[Step], values: list[Any]) -> list[str]:
    """A line for each step that computes something; what the steps give joins `values`."""
    lines: list[str] = []
    for step in steps:
        made = run_step(KERNEL, step, [values[arg] for arg in step.args])
        if isinstance(made, Text):
            lines.append(f"    v{len(lines)} = {made.text}")
            made = Text(f"v{len(lines) - 1}", words=KERNEL)
        values.append(made)
    return lines


def shown(value: Any) -> str:
    """A value that may be a Python number, as text."""
    return value.text if isinstance(value, Text) else _number(value)
