"""Tiled matrix instructions and copies over tensors, and the matrix product of fragments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from kdsl_core import atoms
from kdsl_core.atoms import CopyAtom, MmaAtom, WgmmaAtom
from kdsl_core.dtypes import DType
from kdsl_core.errors import KdslError, StagingError, TypeMismatch
from kdsl_core.isa import arith, register
from kdsl_core.isa import mma as isa_mma
from kdsl_core.lang.descriptors import with_own_base
from kdsl_core.lang.engine import Registers
from kdsl_core.lang.memory import rmem
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.tracer import builder
from kdsl_core.lang.warp_group_gemm import warp_group_gemm, words_of
from kdsl_core.layout import Layout, size
from kdsl_core.loc import here
from kdsl_core.records import dataclass


@dataclass(frozen=True)
class TiledMma(atoms.TiledMma):
    """A matrix instruction repeated over the warps of a block, with fragments as tensors."""

    def get_slice(self, thread: Any) -> ThreadMma:  # type: ignore[override] # over tensors
        """The part of one thread."""
        return ThreadMma(super().get_slice(thread))

    def make_fragment_A(self, shape_mk: tuple[int, int]) -> Tensor:
        """Registers for one thread's part of an M × K tile: (V, M, K)."""
        return rmem(self.atom.a, self.fragment("A", shape_mk), name="a")

    def make_fragment_B(self, shape_nk: tuple[int, int]) -> Tensor:
        """Registers for one thread's part of an N × K tile: (V, N, K)."""
        return rmem(self.atom.b, self.fragment("B", shape_nk), name="b")

    def make_fragment_C(self, shape_mn: tuple[int, int]) -> Tensor:
        """Registers for one thread's part of an M × N tile: (V, M, N)."""
        return rmem(self.atom.d, self.fragment("C", shape_mn), name="acc")


@dataclass(frozen=True, eq=False)
class ThreadMma:
    """One thread's view of a tiled mma."""

    view: atoms.ThrMma

    def partition_A(self, tensor: Tensor) -> Tensor:
        """This thread's (V, M, K, …) of a tensor of (M, K, …)."""
        return self._operand(tensor, "A")

    def partition_B(self, tensor: Tensor) -> Tensor:
        """This thread's (V, N, K, …) of a tensor of (N, K, …)."""
        return self._operand(tensor, "B")

    def partition_C(self, tensor: Tensor) -> Tensor:
        """This thread's (V, M, N, …) of a tensor of (M, N, …)."""
        return view_of(tensor, self.view.partition_C)

    def _operand(self, tensor: Tensor, operand: Literal["A", "B"]) -> Tensor:
        part = view_of(tensor, lambda layout: self.view.partition(operand, layout))
        atom = self.view.tiled.atom
        if not isinstance(atom, WgmmaAtom) or tensor.space != "shared":
            return part
        if operand == "B":
            return with_own_base(part, atom.b_major)
        return with_own_base(part, atom.a_major) if atom.a_from == "shared" else part


@dataclass(frozen=True)
class TiledCopy(atoms.TiledCopy):
    """A copy instruction repeated over the threads of a block, with partitions as tensors."""

    def get_slice(self, thread: Any) -> ThreadCopy:  # type: ignore[override] # over tensors
        """The part of one thread."""
        return ThreadCopy(super().get_slice(thread))


@dataclass(frozen=True, eq=False)
class ThreadCopy:
    """One thread's view of a tiled copy."""

    view: atoms.ThrCopy

    def partition_S(self, tensor: Tensor) -> Tensor:
        """This thread's (V, M, N, …) of a source."""
        return view_of(tensor, self.view.partition_S)

    def partition_D(self, tensor: Tensor) -> Tensor:
        """This thread's (V, M, N, …) of a destination."""
        return view_of(tensor, self.view.partition_D)

    def retile(self, fragment: Tensor) -> Tensor:
        """A fragment of an mma regrouped to this copy's values."""
        return fragment.with_layout(self.view.tiled.retile(fragment.layout))


def view_of(tensor: Tensor, partition: Callable[[Any], tuple[Any, Any]]) -> Tensor:
    """The tensor through the layout and offset that a partition of its layout gives."""
    try:
        layout, offset = partition(tensor.layout)
    except KdslError as error:
        error.loc = error.loc or here()
        raise
    return tensor.with_layout(layout, offset)


def tiled_mma(
    atom: MmaAtom,
    warps: Layout | Sequence[int] = (1, 1, 1),
    permutation: Sequence[Any] | None = None,
) -> TiledMma:
    """The atom executed by `warps` groups of threads along M, N (and K)."""
    plain = atoms.tiled_mma(atom, warps, permutation)
    return TiledMma(plain.atom, plain.thr_layout, plain.permutation)


def tiled_copy(atom: CopyAtom, dtype: DType, threads: Layout, values: Layout) -> TiledCopy:
    """A copy in which thread i takes the values `values` at its place in `threads`."""
    return _over_tensors(atoms.make_tiled_copy(atom, dtype, threads, values))


def tiled_copy_A(atom: CopyAtom, mma: TiledMma) -> TiledCopy:
    """The copy that gives each thread its fragment of the mma's A."""
    return _over_tensors(atoms.make_tiled_copy_A(atom, mma))


def tiled_copy_B(atom: CopyAtom, mma: TiledMma) -> TiledCopy:
    """The copy that gives each thread its fragment of the mma's B."""
    return _over_tensors(atoms.make_tiled_copy_B(atom, mma))


def tiled_copy_C(atom: CopyAtom, mma: TiledMma, dtype: DType | None = None) -> TiledCopy:
    """The copy that takes each thread's fragment of the mma's C."""
    return _over_tensors(atoms.make_tiled_copy_C(atom, mma, dtype))


def _over_tensors(plain: atoms.TiledCopy) -> TiledCopy:
    return TiledCopy(plain.atom, plain.dtype, plain.tv_layout, plain.tiler)


# -- the product of fragments ------------------------------------------------------------------
def gemm(mma: TiledMma, a: Tensor, b: Tensor, acc: Tensor, *, accumulate: Any = True) -> None:
    """acc += a · b for fragments a (V, M[, K]), b (V, N[, K]) and acc (V, M, N), in place.

    Where `accumulate` is false, acc = a · b. For `wgmma`, a and b are partitions of shared memory
    (a may be a fragment), `accumulate` may be a run-time truth value, and the product is only
    started: kd.wgmma_fence() goes before it, kd.wgmma_commit() and kd.wgmma_wait(…) behind it.

    Threads: the warps of the tiled mma, converged.
    Raises: TypeMismatch when a fragment's type or shape is not the atom's.
    """
    if isinstance(mma.atom, WgmmaAtom):
        warp_group_gemm(mma, a, b, acc, accumulate)
        return
    _check_fragments(mma.atom, a, b, acc)
    _start_from(acc, accumulate)
    depth = size(a.layout[2]) if len(a.layout) > 2 else None
    for k in range(depth or 1):
        a_k, b_k = (a, b) if depth is None else (a[None, None, k], b[None, None, k])
        _outer_product(mma.atom, a_k, b_k, acc)


def _start_from(acc: Tensor, accumulate: Any) -> None:
    """Clear accumulators that are to be replaced."""
    if isinstance(accumulate, Scalar):
        raise StagingError(
            "this instruction always adds to acc; whether it should is known at run time only",
            code="K449",
            loc=here(),
            fix="pass True or False, or clear acc with acc.fill(0) in a kernel `if`",
        )
    if not accumulate:
        acc.fill(0)


def _outer_product(atom: MmaAtom, a: Tensor, b: Tensor, acc: Tensor) -> None:
    columns = range(size(acc.layout[2]))
    for m in range(size(acc.layout[1])):
        # Back and forth over N, so that neighbours share an operand in the register cache.
        for n in columns if m % 2 == 0 else reversed(columns):
            if atom.threads == 1:
                _multiply_add(a[None, m], b[None, n], acc[None, m, n])
            else:
                _matrix_step(atom, a[None, m], b[None, n], acc[None, m, n])


def _matrix_step(atom: MmaAtom, a: Tensor, b: Tensor, acc: Tensor) -> None:
    d = words_of(acc)
    isa_mma.mma(builder(), atom.shape_mnk, atom.types, d, words_of(a), words_of(b), d)


def _multiply_add(a: Tensor, b: Tensor, acc: Tensor) -> None:
    (x,), (y,), (d,) = words_of(a), words_of(b), words_of(acc)
    register.assign(builder(), d, arith.fma(builder(), x, y, d))


def _check_fragments(atom: MmaAtom, a: Tensor, b: Tensor, acc: Tensor) -> None:
    for name, tensor, dtype in (("a", a, atom.a), ("b", b, atom.b), ("acc", acc, atom.d)):
        if tensor.dtype is not dtype or not isinstance(tensor.engine, Registers):
            raise TypeMismatch(
                f"{atom.name} takes {name} as {dtype} registers, got {tensor!r}",
                code="K224",
                loc=here(),
                fix=f"make it with mma.make_fragment_{ {'a': 'A', 'b': 'B', 'acc': 'C'}[name] }",
            )
    if size(a.layout[1]) != size(acc.layout[1]) or size(b.layout[1]) != size(acc.layout[2]):
        raise TypeMismatch(
            f"fragments do not fit together: a {a.layout}, b {b.layout}, acc {acc.layout}",
            code="K225",
            loc=here(),
            fix="make all three from one (M, N, K) tile",
        )
