"""A kernel's tail as Python: the operators' own code, run on text instead of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kdsl_core.dtypes import BY_NAME, DType
from kdsl_fuse.tail import Tail, run_step, widen

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


def function_text(name: str, doc: str, tail: Tail, words: Words) -> str:
    """A function (acc, x0, x1, …) that computes the tail, a line for each operator."""
    names = tail.parameters
    values: list[Any] = [Text(name, words=words) for name in names[: tail.sums]]
    for extra, dtype in zip(names[tail.sums :], tail.extras, strict=True):
        values.append(widen(BY_NAME[dtype], Text(extra, words=words)))
    lines = [f"def {name}({', '.join(names)}):", f'    """{doc}"""']
    for step in tail.steps:
        made = run_step(words, step, [values[arg] for arg in step.args])
        if isinstance(made, Text) and len(values) - len(names) < len(tail.steps):
            held = f"v{sum(line.startswith('    v') for line in lines)}"
            lines.append(f"    {held} = {made.text}")
            made = Text(held, words=words)
        values.append(made)
    result = values[tail.result]
    shown = result.text if isinstance(result, Text) else _number(result)
    return "\n".join([*lines, f"    return {shown}"])
