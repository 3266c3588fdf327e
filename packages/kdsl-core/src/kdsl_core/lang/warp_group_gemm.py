"""The product of a warp group: operands in shared memory, `wgmma` after `wgmma`."""

from __future__ import annotations

from typing import Any

from kdsl_core.atoms import TiledMma, WgmmaAtom
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Operand, Var
from kdsl_core.isa import wgmma as isa_wgmma
from kdsl_core.lang.descriptors import descriptor
from kdsl_core.lang.engine import Registers
from kdsl_core.lang.scalar import as_scalar
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.tracer import builder
from kdsl_core.layout import size
from kdsl_core.loc import here


def warp_group_gemm(mma: TiledMma, a: Tensor, b: Tensor, acc: Tensor, accumulate: Any) -> None:
    """Start acc (+)= a · b: every tile of acc, one step along K after another."""
    atom = mma.atom
    assert isinstance(atom, WgmmaAtom)
    _check(atom, a, b, acc)
    old = as_scalar(accumulate).operand
    rows, columns = size(acc.layout[1]), size(acc.layout[2])
    sums = {(m, n): words_of(acc[None, m, n]) for m in range(rows) for n in range(columns)}
    for k in range(size(a.layout[2])):
        scale_d = isa_wgmma.ACCUMULATE if k else old
        for (m, n), words in sums.items():
            isa_wgmma.wgmma(
                builder(),
                atom.shape,
                words,
                _operand_a(atom, a, m, k),
                _in_shared(b, n, k, atom.b_major),
                scale_d=scale_d,
                a_major=atom.a_major,
                b_major=atom.b_major,
            )


def _operand_a(atom: WgmmaAtom, a: Tensor, m: int, k: int) -> Operand | tuple[Operand, ...]:
    if atom.a_from == "registers":
        return words_of(a[None, m, k])
    return _in_shared(a, m, k, atom.a_major)


def _in_shared(tensor: Tensor, tile: int, k: int, major: str) -> Operand:
    offset = tensor.layout[1](tile) + tensor.layout[2](k)
    return descriptor(tensor, int(offset), major)


def words_of(fragment: Tensor) -> tuple[Var, ...]:
    """The register variables behind a fragment whose elements fill whole registers."""
    engine = fragment.engine
    assert isinstance(engine, Registers)
    per = engine.per_variable
    firsts = [fragment.index(i) for i in range(0, size(fragment.layout), per)]
    return tuple(engine.variables[first // per] for first in firsts)


def _check(atom: WgmmaAtom, a: Tensor, b: Tensor, acc: Tensor) -> None:
    _check_place(atom, "a", a, "register" if atom.a_from == "registers" else "shared")
    _check_place(atom, "b", b, "shared")
    _check_place(atom, "acc", acc, "register")
    shapes = [tuple(size(mode) for mode in x.layout) for x in (a, b, acc)]
    values = [size(atom.tv(operand)[1]) for operand in ("A", "B", "C")]
    fit = all(len(shape) == 3 for shape in shapes) and all(
        shape[0] == count for shape, count in zip(shapes, values, strict=True)
    )
    if fit:
        (_, m, k), (_, n, depth), (_, rows, columns) = shapes
        fit = (m, n, k) == (rows, columns, depth)
    if not fit:
        raise TypeMismatch(
            f"fragments do not fit together or {atom.name}: a {a.layout}, b {b.layout}, "
            f"acc {acc.layout}; expected (V, M, K), (V, N, K) and (V, M, N) with V of {values}",
            code="K225",
            loc=here(),
            fix="make all three from one (M, N, K) tile of one tiled mma, and pick one stage",
        )


def _check_place(atom: WgmmaAtom, name: str, tensor: Tensor, space: str) -> None:
    dtype = {"a": atom.a, "b": atom.b, "acc": atom.d}[name]
    if tensor.dtype is dtype and tensor.space == space:
        return
    made = {"a": "A", "b": "B", "acc": "C"}[name]
    how = f"mma.make_fragment_{made}" if space == "register" else f"get_slice().partition_{made}"
    raise TypeMismatch(
        f"{atom.name} takes {name} as {dtype} in {space} memory, got {tensor!r}",
        code="K224",
        loc=here(),
        fix=f"make it with {how}",
    )
