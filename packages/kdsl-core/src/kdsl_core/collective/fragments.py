"""Fragments on their way from shared memory to registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from kdsl_core import atoms
from kdsl_core import dtypes as dt
from kdsl_core.atoms import CopyAtom
from kdsl_core.lang.copy import copy
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.tiled import TiledMma, tiled_copy_A, tiled_copy_B
from kdsl_core.layout import size


class FragmentLoader:
    """Reads one operand's fragments for a tiled mma from a ring of shared-memory stages.

    Threads: the warps of the tiled mma, converged.
    Memory: `ldmatrix` where the element width and the contiguous mode allow it.
    """

    def __init__(
        self,
        operand: Literal["A", "B"],
        mma: TiledMma,
        shared: Tensor,
        contiguous: int,
        thread: Any,
    ) -> None:
        atom = _matrix_load(mma, operand, shared, contiguous)
        self.atom = atom
        self.retile: Callable[[Tensor], Tensor]
        if atom is None:
            view = mma.get_slice(thread)
            self.source = (view.partition_A if operand == "A" else view.partition_B)(shared)
            self.retile = lambda fragment: fragment
        else:
            make = tiled_copy_A if operand == "A" else tiled_copy_B
            part = make(atom, mma).get_slice(thread)
            self.source = part.partition_S(shared)
            self.retile = part.retile
        self.rounds = mma.atom.a is dt.tf32

    def load(self, fragment: Tensor, k: int, stage: Any) -> None:
        """Read the fragment of k-block `k` of a stage."""
        held = fragment.as_dtype(self.source.dtype)
        view = self.retile(held)
        copy(self.source[None, None, k, stage], view[None, None, 0], atom=self.atom)
        if self.rounds:
            _round_to_tf32(held)


def _matrix_load(mma: TiledMma, operand: str, shared: Tensor, contiguous: int) -> CopyAtom | None:
    """The widest ldmatrix that fits the warp's part of the tile; None where there is none."""
    size = shared.dtype.bytes
    if mma.atom.threads != 32 or (size != 2 and not (size == 4 and contiguous)):
        return None
    extent = mma.tile_shape[0 if operand == "A" else 1]
    groups = mma.groups[0 if operand == "A" else 1]
    rows = extent // groups
    matrices = min(rows // 8 * (mma.atom.shape_mnk[2] * size // 16), 4)
    return atoms.ldmatrix(matrices, transposed=not contiguous)


def _round_to_tf32(fragment: Tensor) -> None:
    """Round every element to the 10 mantissa bits that the tensor core reads, ties away."""
    for index in range(size(fragment.layout)):
        fragment[index] = fragment[index].to(dt.tf32).bitcast(dt.f32)
