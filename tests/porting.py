"""The ported kernels of `examples/porting/`, and what CuTe C++ gave for the same operands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from kdsl_core.isa.tensor_core import multiply_accumulate
from scripts import EXAMPLES, scripts

Array: TypeAlias = np.ndarray[Any, Any]
GOLDEN = Path(__file__).parent / "golden" / "gemm_bits" / "cute_cpp_h200.npz"
NAMES = ("sgemm", "hgemm_sm80", "hgemm_sm90", "hgemm_sm90_tma")
with scripts("porting", "operands", "tiled_copy", *NAMES, root=EXAMPLES) as modules:
    operands = modules.operands.operands
    tiled_copy = modules.tiled_copy

SEEDS = {(256, 256, 192): 1234, (128, 384, 64): 1235}
RECORDS = {
    "sgemm": ("sgemm_1",),
    # All f16 kernels sum alike, so where one has no record another's serves.
    "hgemm_sm80": ("sgemm_sm80", "wgmma_sm90"),
    "hgemm_sm90": ("wgmma_sm90",),
    "hgemm_sm90_tma": ("wgmma_tma_sm90", "wgmma_sm90"),
}


@dataclass(frozen=True)
class Case:
    """A launch of one port."""

    port: str
    majors: str
    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.port}-{self.majors}-{self.m}x{self.n}x{self.k}"

    @property
    def dtype(self) -> type:
        """The type of A, B and C."""
        return np.float32 if self.port == "sgemm" else np.float16

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """A, B, and a C that nobody has written."""
        sizes = self.m, self.n, self.k
        a, b, c = operands(*sizes, self.majors, self.dtype, SEEDS.get(sizes, 1234))
        return a, b, c

    @property
    def kernel(self) -> Any:
        """The kernel."""
        return getattr(getattr(modules, self.port), self.name)

    @property
    def name(self) -> str:
        """The kernel's name in its file."""
        return "sgemm" if self.port == "sgemm" else "hgemm"

    def launch(self, *arrays: Any) -> dict[str, Any]:
        """The keyword arguments of kd.simulate for some arrays."""
        made: dict[str, Any] = getattr(getattr(modules, self.port), f"launch_{self.name}")(*arrays)
        return made


RECORDED = [
    Case(port, majors, *sizes) for port in NAMES for majors in ("TN", "NT") for sizes in SEEDS
]
SHORT = [
    Case(port, majors, 128, 128, k)
    for port in NAMES
    for majors in ("TN", "NT")
    for k in ((8, 16) if port == "sgemm" else (64, 128))
]


def recorded(case: Case) -> Array:
    """What CuTe C++ wrote."""
    names = [f"{name}_{case.majors}_{case.m}x{case.n}x{case.k}" for name in RECORDS[case.port]]
    with np.load(GOLDEN) as file:
        found = {name: key for key in file for name in key.split("=")}
        return np.asarray(file[next(found[name] for name in names if name in found)])


def modelled(a: Array, b: Array) -> Array:
    """A · Bᵀ as these kernels sum it: fused steps of 1 in f32, steps of 16 in f16."""
    total = np.zeros((len(a), len(b)), a.dtype)
    for step in _steps(a.shape[1], 1 if a.dtype == np.float32 else 16):
        if a.dtype == np.float32:
            total = _fused(a[:, step], b[:, step].T, total)
        else:
            total = multiply_accumulate(a[:, step], b[:, step], total)
    return total


def _steps(depth: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, depth, step))


def _fused(x: Array, y: Array, z: Array) -> Array:
    """x · y + z of f32, rounded once: the sum of such a product is exact in a long double."""
    product = x.astype(np.longdouble) * y.astype(np.longdouble)
    exact = product + z
    assert (exact - z == product).all() and (exact - product == z).all()
    rounded: Array = exact.astype(np.float32)
    return rounded
