"""Polynomials with integer coefficients over atoms: the canonical form of symbolic sizes."""

from __future__ import annotations

from functools import reduce
from math import gcd, prod
from typing import NoReturn, Protocol, TypeAlias

from kdsl_core.errors import LayoutError

TERMS_LIMIT = 256
"""Most terms of one expression; beyond it an operation refuses instead of hanging."""


class Atom(Protocol):
    """An integer that is not a polynomial of others, known to lie between two bounds."""

    @property
    def order(self) -> str:
        """What atoms are sorted by."""

    @property
    def low(self) -> int | None:
        """No value is below; None where nothing is known."""

    @property
    def high(self) -> int | None:
        """No value is above; None where nothing is known."""


Monomial: TypeAlias = "tuple[Atom, ...]"
Terms: TypeAlias = "dict[Monomial, int]"
"""Monomial (atoms in order, with repetition) to coefficient, never 0."""


def add_terms(a: Terms, b: Terms, scale: int = 1) -> Terms:
    """a + scale·b."""
    out = dict(a)
    for monomial, c in b.items():
        total = out.get(monomial, 0) + scale * c
        if total:
            out[monomial] = total
        else:
            out.pop(monomial, None)
    return out


def multiply_terms(a: Terms, b: Terms) -> Terms:
    """a·b."""
    if len(a) * len(b) > TERMS_LIMIT * TERMS_LIMIT:
        refuse_size()
    out: Terms = {}
    for m, c in a.items():
        for n, d in b.items():
            monomial = join(m, n)
            out[monomial] = out.get(monomial, 0) + c * d
    if len(out) > TERMS_LIMIT:
        refuse_size()
    return {m: c for m, c in out.items() if c}


def refuse_size() -> NoReturn:
    """Refuse an expression that is too large to work with."""
    raise LayoutError(
        f"a symbolic size is too large to work with: {TERMS_LIMIT} terms are the most",
        code="K108",
        fix="give the intermediate size a symbol of its own",
    )


def join(m: Monomial, n: Monomial) -> Monomial:
    """The product of two monomials."""
    return tuple(sorted(m + n, key=_order)) if m and n else m or n


def _order(atom: Atom) -> str:
    return atom.order


def rank_of(monomial: Monomial) -> tuple[int, list[str]]:
    """The order of monomials: by degree, then by their atoms. It agrees with products."""
    return -len(monomial), [atom.order for atom in monomial]


def without(m: Monomial, n: Monomial) -> Monomial | None:
    """m / n, or None where n does not divide m."""
    rest = list(m)
    for atom in n:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def divide_terms(a: Terms, b: Terms) -> tuple[Terms, Terms]:
    """(Q, R) with a = b·Q + R, and no leading term of `b` left in R to cancel."""
    lead = min(b, key=rank_of)
    quotient: Terms = {}
    kept: Terms = {}
    while a:
        top = min(a, key=rank_of)
        rest = without(top, lead)
        c = _toward_zero(a[top], b[lead])
        if rest is None or c == 0:
            kept[top] = a[top]
            a = {m: v for m, v in a.items() if m != top}
            continue
        quotient[rest] = c
        left = add_terms(a, multiply_terms(b, {rest: c}), -1)
        if top in left:
            kept[top] = left.pop(top)
        a = left
        if len(quotient) > TERMS_LIMIT:
            refuse_size()
    return quotient, kept


def _toward_zero(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def common_factor(*polynomials: Terms) -> tuple[Monomial, int]:
    """The largest monomial and integer that divide every term of all of these."""
    monomials = [m for p in polynomials for m in p]
    shared = reduce(_shared, monomials) if monomials else ()
    return shared, gcd(*[c for p in polynomials for c in p.values()])


def _shared(m: Monomial, n: Monomial) -> Monomial:
    rest, out = list(n), []
    for atom in m:
        if atom in rest:
            rest.remove(atom)
            out.append(atom)
    return tuple(out)


def lowest(p: Terms) -> int | None:
    """A number that no value of the polynomial is below, or None where the facts give none.

    Every atom x is written as low + t with t ≥ 0. Then a term with a positive coefficient adds
    nothing below 0, and a single negative t is bounded by high − low.
    """
    if all(c > 0 or not m for m, c in p.items()) and all((a.low or 0) >= 0 for m in p for a in m):
        return _product_of_lows(p)
    try:
        shifted = _shifted(p)
    except LayoutError:  # too many terms to expand
        return None
    if shifted is None:
        return None
    total = shifted.pop((), 0)
    for monomial, c in shifted.items():
        if c > 0:
            continue
        atom = monomial[0]
        if len(monomial) > 1 or atom.high is None or atom.low is None:
            return None
        total += c * (atom.high - atom.low)
    return total


def _product_of_lows(p: Terms) -> int | None:
    """The bound where no term can decrease."""
    if any(atom.low is None for m in p for atom in m):
        return None
    return sum(c * prod([atom.low or 0 for atom in m]) for m, c in p.items())


def _shifted(p: Terms) -> Terms | None:
    """The polynomial in the distances of its atoms from their lower bounds."""
    shifted: Terms = {}
    for monomial, c in p.items():
        term: Terms = {(): c}
        for atom in monomial:
            if atom.low is None:
                return None
            beside: Terms = {(atom,): 1, (): atom.low} if atom.low else {(atom,): 1}
            term = multiply_terms(term, beside)
        shifted = add_terms(shifted, term)
    return shifted
