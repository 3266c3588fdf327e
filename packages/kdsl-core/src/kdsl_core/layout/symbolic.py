"""Symbolic sizes: integers known by name and facts, usable in any shape or stride.

An expression is a polynomial in canonical form, so expressions that are equal as polynomials are
equal as values. A symbol that is divisible by d stands as d·(n/d), which makes every divisibility
a matter of coefficients: (n·64)//64, n % 8 and ceil(n/8) simplify by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import gcd, lcm, prod
from numbers import Integral
from typing import Any, NamedTuple

from kdsl_core.errors import LayoutError
from kdsl_core.layout.polynomial import (
    TERMS_LIMIT,
    Monomial,
    Terms,
    add_terms,
    common_factor,
    divide_terms,
    lowest,
    multiply_terms,
    rank_of,
    refuse_size,
    without,
)

LONGEST_TEXT = 1 << 14
"""Most characters of a nested division; beyond it an operation refuses instead of hanging."""


class Unknown(NamedTuple):
    """The atom n/divisor of a symbol n."""

    name: str
    divisor: int
    least: int

    @property
    def order(self) -> str:
        """By name, then by facts."""
        return f"{self.name} {self.divisor} {self.least}"

    @property
    def low(self) -> int:
        """From the fact `at_least`."""
        return -(-self.least // self.divisor)

    @property
    def high(self) -> None:
        """A symbol has no upper bound."""


class Division:
    """The atom ⌊over/under⌋, or over mod under, that no rule simplifies."""

    def __init__(self, kind: str, over: SymInt | int, under: SymInt | int) -> None:
        self.kind, self.over, self.under = kind, over, under
        self.order = f"~{kind} {over!r} {under!r}"
        if len(self.order) > LONGEST_TEXT:
            refuse_size()
        self.low, self.high = self._bounds()

    def _bounds(self) -> tuple[int | None, int | None]:
        if self.kind == "%":
            return 0, self.under - 1 if isinstance(self.under, int) else None
        low, high = bounds(self.over)
        if isinstance(self.under, int):
            return (
                None if low is None else low // self.under,
                None if high is None else high // self.under,
            )
        return (0 if low is not None and low >= 0 else None), None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Division) and self.order == other.order

    def __hash__(self) -> int:
        return hash(self.order)

    def __reduce__(self) -> tuple[Any, ...]:
        return Division, (self.kind, self.over, self.under)


class SymInt:
    """An integer expression of symbols, made by `sym` and arithmetic; constants come out as int.

    Equal and hashed by value. ``<``, ``<=``, ``>`` and ``>=`` answer where the facts decide and
    raise LayoutError elsewhere.
    """

    __array_ufunc__ = None  # a NumPy integer on the left leaves the operation to us
    static = False

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    @cached_property
    def _key(self) -> frozenset[tuple[Monomial, int]]:
        return frozenset(self.terms.items())

    @cached_property
    def divisible_by(self) -> int:
        """The largest number that the facts prove to divide every value."""
        return gcd(*self.terms.values())

    @cached_property
    def low(self) -> int | None:
        """A number that no value is below, or None."""
        found = [lowest(self.terms), lowest(_relaxed(self.terms))]
        return max([b for b in found if b is not None], default=None)

    @property
    def high(self) -> int | None:
        """A number that no value is above, or None."""
        low = SymInt({m: -c for m, c in self.terms.items()}).low
        return None if low is None else -low

    # -- arithmetic ------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        b = _terms(other)
        return NotImplemented if b is None else _made(add_terms(self.terms, b))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        b = _terms(other)
        return NotImplemented if b is None else _made(add_terms(self.terms, b, -1))

    def __rsub__(self, other: Any) -> Any:
        b = _terms(other)
        return NotImplemented if b is None else _made(add_terms(b, self.terms, -1))

    def __mul__(self, other: Any) -> Any:
        b = _terms(other)
        return NotImplemented if b is None else _made(multiply_terms(self.terms, b))

    __rmul__ = __mul__

    def __pow__(self, exponent: int) -> Any:
        return (
            NotImplemented if type(exponent) is not int or exponent < 0 else _power(self, exponent)
        )

    def __neg__(self) -> Any:
        return self * -1

    def __pos__(self) -> SymInt:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __floordiv__(self, other: Any) -> Any:
        b = _terms(other)
        return NotImplemented if b is None else _quotient(self.terms, b)

    def __rfloordiv__(self, other: Any) -> Any:
        a = _terms(other)
        return NotImplemented if a is None else _quotient(a, self.terms)

    def __mod__(self, other: Any) -> Any:
        b = _terms(other)
        return NotImplemented if b is None else _remainder(self.terms, b)

    def __rmod__(self, other: Any) -> Any:
        a = _terms(other)
        return NotImplemented if a is None else _remainder(a, self.terms)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    # -- bits, as far as a swizzle needs them ----------------------------------------------------

    def __and__(self, mask: int) -> int:
        return self._low_bits(mask) & mask

    def __xor__(self, mask: int) -> Any:
        return self - (low := self._low_bits(mask)) + (low ^ mask)

    def _low_bits(self, mask: int) -> int:
        """The value below the highest bit of a mask, which the facts must determine."""
        block = 1 << mask.bit_length()
        low = self % block
        if not isinstance(low, int):
            raise undecided(f"{self} % {block} == 0, to know the bits that a swizzle moves")
        return low

    # -- comparison ------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymInt) and (self is other or self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __bool__(self) -> bool:
        if (self.low or 0) > 0 or (self.high or 0) < 0:
            return True
        raise undecided(f"{self} != 0")

    def __lt__(self, other: Any) -> bool:
        return _less(self, other, strict=True)

    def __le__(self, other: Any) -> bool:
        return _less(self, other, strict=False)

    def __gt__(self, other: Any) -> bool:
        return _less(other, self, strict=True)

    def __ge__(self, other: Any) -> bool:
        return _less(other, self, strict=False)

    # -- text ------------------------------------------------------------------------------------

    def __str__(self) -> str:
        text = _text(self.terms, evaluable=False)
        return text[1:-1] if _is_enclosed(text) else text  # a shape's one-tuples look like that

    def __repr__(self) -> str:
        return _text(self.terms, evaluable=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return SymInt, (self.terms,)


def sym(name: str, *, divisible_by: int = 1, at_least: int = 1) -> SymInt:
    """An integer that is known later: by name, with the facts that may be relied on.

    >>> n = sym("n", divisible_by=64)
    >>> print(n * 64 // 64, n % 8, -(-n // 128), n >= 8)
    n 0 ceil(n/128) True

    Raises: LayoutError for a name that is no identifier, or facts that are no integers.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise LayoutError(f"expected an identifier to name a size, got {name!r}", code="K107")
    for what, fact in (("divisible_by", divisible_by), ("at_least", at_least)):
        if not isinstance(fact, Integral) or (what == "divisible_by" and fact < 1):
            raise LayoutError(
                f"expected {what} of {name} to be an integer{' >= 1' * (what != 'at_least')},"
                f" got {fact!r}",
                code="K107",
            )
    return SymInt({(Unknown(name, int(divisible_by), int(at_least)),): int(divisible_by)})


def bounds(x: SymInt | int) -> tuple[int | None, int | None]:
    """Numbers that no value is below and above."""
    return (x, x) if isinstance(x, int) else (x.low, x.high)


def undecided(fact: str) -> LayoutError:
    """The error of a decision that the facts do not make."""
    return LayoutError(
        f"the facts about the symbolic sizes do not decide it: needs {fact}",
        code="K102",
        fix="declare it, as in sym(name, divisible_by=..., at_least=...), or use static integers",
    )


def substitute(x: Any, values: Mapping[str, Any]) -> Any:
    """An integer, or a nested tuple of them, with values put for symbols.

    >>> substitute((sym("n") * 4, 7), {"n": 3})
    (12, 7)

    Raises: LayoutError when an integer breaks a fact that was declared of its symbol.
    """
    if isinstance(x, tuple):
        return tuple([substitute(item, values) for item in x])
    if not isinstance(x, SymInt):
        return x
    return sum([_substituted(m, c, values) for m, c in x.terms.items()])


def _substituted(monomial: Monomial, c: int, values: Mapping[str, Any]) -> Any:
    _, divisor = _fraction((monomial, c))
    shared = gcd(c, divisor)
    product: Any = c // shared
    for atom in monomial:
        product = product * _value(atom, values)
    return product if divisor == shared else product // (divisor // shared)


def _value(atom: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(atom, Division):
        over, under = substitute(atom.over, values), substitute(atom.under, values)
        return over // under if atom.kind == "//" else over % under
    value = values.get(atom.name)
    if value is None:
        return SymInt({(atom,): atom.divisor})
    if isinstance(value, int) and (value % atom.divisor or value < atom.least):
        raise LayoutError(
            f"{atom.name} = {value} is not a multiple of {atom.divisor} of at least {atom.least}",
            code="K109",
            fix="give a value that keeps the facts declared of the symbol",
        )
    return value


# -- rules ---------------------------------------------------------------------------------------


def _terms(x: Any) -> Terms | None:
    if isinstance(x, SymInt):
        return x.terms
    if isinstance(x, Integral):
        return {(): int(x)} if x else {}
    return None


def _made(terms: Terms) -> SymInt | int:
    """The expression, or the integer that it is."""
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    return SymInt(terms)


def _power(x: SymInt, exponent: int) -> Any:
    if exponent > TERMS_LIMIT:
        refuse_size()
    out: Any = 1
    for _ in range(exponent):
        out = out * x
    return out


def _less(a: Any, b: Any, *, strict: bool) -> bool:
    """a < b, or a ≤ b, where the facts decide."""
    x, y = _terms(a), _terms(b)
    if x is None or y is None:
        raise TypeError(f"cannot compare {a!r} with {b!r}")
    low, high = bounds(_made(add_terms(y, x, -1)))
    least = 1 if strict else 0
    if low is not None and low >= least:
        return True
    if high is not None and high < least:
        return False
    raise undecided(f"{a} {'<' if strict else '<='} {b}")


def _relaxed(terms: Terms) -> Terms:
    """A lower polynomial: each lone quotient replaced by the fraction that bounds it, if whole."""
    out = dict(terms)
    for monomial, c in terms.items():
        atom: Any = monomial[0] if len(monomial) == 1 else None
        if not isinstance(atom, Division) or atom.kind != "//" or type(atom.under) is not int:
            continue
        if c % atom.under == 0:
            bound = atom.over if c < 0 else atom.over - (atom.under - 1)
            out = add_terms(out, {monomial: c}, -1)
            out = add_terms(out, _terms(bound) or {}, c // atom.under)
    return out


def _sign_of_divisor(b: Terms) -> int:
    if not b:
        raise LayoutError("division of a symbolic size by 0", code="K103")
    low, high = bounds(_made(b))
    if low is not None and low > 0:
        return 1
    if high is not None and high < 0:
        return -1
    raise undecided(f"{_made(b)} >= 1")


def _quotient(a: Terms, b: Terms) -> SymInt | int:
    """⌊a/b⌋: the multiples of b divided out, then what a ⌊·⌋ of the rest simplifies to."""
    if _sign_of_divisor(b) < 0:
        a, b = ({m: -c for m, c in t.items()} for t in (a, b))
    whole, rest = divide_terms(a, b)
    return _made(whole) + _floor(rest, b)


def _floor(rest: Terms, b: Terms) -> SymInt | int:
    if rest and rest[min(rest, key=rank_of)] < 0 and len(rest) > (() in rest):
        # ⌊-x/b⌋ = -⌈x/b⌉ = -⌊(x + b - 1)/b⌋: one form for both ways to write a ceil
        up = add_terms(add_terms(b, {(): -1}), rest, -1)
        return -_quotient(up, b)
    over, under = _cancelled(rest, b)
    if isinstance(over, int) and isinstance(under, int):
        return over // under
    if _lies_in(over, 0, under):
        return 0
    if _lies_in(over, -under, 0):
        return -1
    simpler = _simpler(over, under) if isinstance(under, int) else None
    return SymInt({(Division("//", over, under),): 1}) if simpler is None else simpler


def _lies_in(x: Any, low: Any, end: Any) -> bool:
    """Whether low ≤ x < end is proven."""
    least = [bounds(v)[0] for v in (x - low, end - 1 - x)]
    return all(bound is not None and bound >= 0 for bound in least)


def _cancelled(rest: Terms, b: Terms) -> tuple[Any, Any]:
    """Numerator and divisor of a floor without the positive factor that they share."""
    constant = rest.get((), 0) if list(b) == [()] else 0
    moving = {m: c for m, c in rest.items() if m != () or not constant}
    shared, factor = common_factor(moving, b)
    if any(atom.low is None or atom.low < 1 for atom in shared):
        shared = ()
    over = _divided(moving, shared, factor)
    if constant // factor:
        over = add_terms(over, {(): constant // factor})
    return _made(over), _made(_divided(b, shared, factor))


def _divided(p: Terms, by: Monomial, factor: int) -> Terms:
    out: Terms = {}
    for m, c in p.items():
        left = without(m, by)
        assert left is not None
        out[left] = c // factor
    return out


def _simpler(over: SymInt, under: int) -> SymInt | int | None:
    """Whole multiples taken out of a floor, or ⌊(⌊x/a⌋ + c)/b⌋ as ⌊(x + a·c)/(a·b)⌋."""
    constant = over.terms.get((), 0)
    outside = constant // under
    if outside:
        return _quotient((over - outside * under).terms, {(): under}) + outside
    moving = [(m, c) for m, c in over.terms.items() if m]
    if len(moving) == 1 and moving[0][1] == 1 and len(moving[0][0]) == 1:
        atom: Any = moving[0][0][0]
        if isinstance(atom, Division) and atom.kind == "//" and type(atom.under) is int:
            return (atom.over + constant * atom.under) // (under * atom.under)
    return None


def _remainder(a: Terms, b: Terms) -> SymInt | int:
    """a mod b: what the multiples of b leave, exact where the quotient is a polynomial."""
    _sign_of_divisor(b)
    quotient = _quotient(a, b)
    left = _made(add_terms(a, multiply_terms(_terms(quotient) or {}, b), -1))
    if isinstance(left, int) or not _new_quotients(quotient, a, b):
        return left
    if list(b) == [()] and b[()] > 0:
        number = b[()]
        digits = {m: c % number for m, c in a.items() if c % number}
        if digits != a:
            return _remainder(digits, b)
        _, factor = common_factor({m: c for m, c in digits.items() if m}, b)
        outside = digits.pop((), 0)
        over = SymInt(_divided(digits, (), factor)) + outside // factor
        part: Terms = {(Division("%", over, number // factor),): factor}
        return _made(add_terms(part, {(): outside % factor} if outside % factor else {}))
    return SymInt({(Division("%", _made(a), _made(b)),): 1}) if _sign_of_divisor(b) > 0 else left


def _new_quotients(quotient: Any, *given: Terms) -> bool:
    """Whether a quotient holds an atom that its operands did not."""
    before = {atom for p in given for m in p for atom in m}
    return any(atom not in before for m in (_terms(quotient) or {}) for atom in m)


# -- text ----------------------------------------------------------------------------------------


def _text(terms: Terms, *, evaluable: bool) -> str:
    parts = [_term(m, terms[m], evaluable) for m in sorted(terms, key=rank_of)]
    text = " + ".join(parts).replace("+ -", "- ")
    return text if evaluable else text.replace(" ", "")


def _is_enclosed(text: str) -> bool:
    """Whether one pair of parentheses encloses all of a text."""
    level = 0
    for i, c in enumerate(text):
        level += (c == "(") - (c == ")")
        if level == 0:
            return i == len(text) - 1 and text[0] == "("
    return False


def _term(monomial: Monomial, c: int, evaluable: bool) -> str:
    if not monomial:
        return str(c)
    _, divisor = _fraction((monomial, c))
    shared = gcd(c, divisor)
    factor, under = c // shared, divisor // shared
    names = [_atom(atom, evaluable) for atom in monomial]
    text = "*".join(names) + (f"*{abs(factor)}" if abs(factor) != 1 else "")
    text = f"({text}//{under})" if under != 1 else text
    return f"-{text}" if factor < 0 else text


def _atom(atom: Any, evaluable: bool) -> str:
    if isinstance(atom, Unknown):
        facts = f", divisible_by={atom.divisor}" if atom.divisor != 1 else ""
        facts += f", at_least={atom.least}" if atom.least != 1 else ""
        return f"sym({atom.name!r}{facts})" if evaluable else atom.name
    scale = _scale(atom.over) if atom.kind == "//" else 1
    over, under = atom.over * scale, atom.under * scale
    if not evaluable and atom.kind == "//":
        up = atom.over - (atom.under - 1)
        if not (_terms(up) or {}).get((), 0):
            return f"ceil({_side(up * scale)}/{_side(under)})"
    left, right = (f"({x!r})" if evaluable else _side(x) for x in (over, under))
    return f"({left}{atom.kind}{right})"


def _scale(x: SymInt | int) -> int:
    """The factor that turns the fractions of symbols in an expression into whole symbols."""
    terms = _terms(x) or {}
    return lcm(*[divisor // gcd(c, divisor) for c, divisor in map(_fraction, terms.items())])


def _fraction(term: tuple[Monomial, int]) -> tuple[int, int]:
    """A coefficient, and what its monomial is divided by when it is written with symbols."""
    return term[1], prod([atom.divisor for atom in term[0] if isinstance(atom, Unknown)])


def _side(x: Any) -> str:
    """An operand of a division, in parentheses where it is a sum."""
    if not isinstance(x, SymInt):
        return str(x)
    text = _text(x.terms, evaluable=False)
    return f"({text})" if len(x.terms) > 1 else text
