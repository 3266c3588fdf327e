"""What an ejected file needs to run: arrays for its kernel, a check, and a clock."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kdsl_core.errors import FusionError
from kdsl_fuse import arrays
from kdsl_fuse.strided import Strided


@dataclass(frozen=True)
class Ejected:
    """A kernel with its launch; `arguments` are `kd.spec`s of its arrays, in order.

    The arrays from `reads` on are `outputs` results and then what the tail reads; `reference`
    computes in f32 what the first result is, from all arrays but the results.
    """

    kernel: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: Sequence[Any]
    reference: Callable[..., Any]
    statics: Mapping[str, Any] = field(default_factory=dict)
    cluster: tuple[int, ...] | None = None
    overlap: bool = False
    reads: int = 2
    outputs: int = 1

    def arrays(self, seed: int = 0) -> list[Any]:
        """NumPy arrays of the arguments' types, with numbers from −1 to 1."""
        rng = np.random.default_rng(seed)
        return [_filled(rng, spec) for spec in self.arguments]

    def launch(self, *given: Any) -> None:
        """Run on NumPy arrays in the simulator, or on CUDA arrays."""
        configured = self.kernel.configure(
            grid=self.grid, block=self.block, cluster=self.cluster, overlap=self.overlap
        )
        configured(*given, **self.statics)

    def check(self) -> None:
        """Compare the kernel with the reference: in the simulator, or on a GPU if one is here.

        Raises: FusionError K968 with the largest difference.
        """
        given = self.arrays()
        end = self.reads + self.outputs
        result = self._run(given)
        expected = np.asarray(self.reference(*given[: self.reads], *given[end:]), np.float64)
        terms = given[0].shape[-1]
        eps = float(np.spacing(np.ones((), result.dtype)))
        bound = eps * np.abs(expected) + terms * 2.0**-20 + eps / 4
        error = np.abs(result.astype(np.float64) - expected)
        if not np.all(error <= bound):
            raise FusionError(
                f"{self.kernel.__name__} differs from its reference, at worst by {error.max():.3g}",
                code="K968",
                fix="compare the file with a freshly ejected one",
            )

    def _run(self, given: list[Any]) -> Any:
        from kdsl_runtime.driver import is_available

        if not is_available():
            self.launch(*given)
            return given[self.reads]
        moved = self._on_gpu(given)
        self.launch(*(view for _, view in moved))
        memory, _ = moved[self.reads]
        layout = arrays.spec_of(given[self.reads])
        assert layout is not None
        return arrays.view(memory.read(), Strided(layout.shape, layout.strides))

    def _on_gpu(self, given: Sequence[Any]) -> list[tuple[Any, Any]]:
        from kdsl_runtime.device_array import to_device

        moved = []
        for x in given:
            spec = arrays.spec_of(x)
            assert spec is not None
            memory = to_device(_memory(x))
            moved.append((memory, arrays.view(memory, Strided(spec.shape, spec.strides))))
        return moved

    def microseconds(self, launches: int = 200) -> float:
        """Time from launch to launch on the GPU, many in a row."""
        from kdsl_runtime.driver import call, require_driver

        require_driver()
        views = [view for _, view in self._on_gpu(self.arrays())]
        for _ in range(3):
            self.launch(*views)
        call("cuCtxSynchronize")
        start = time.perf_counter()
        for _ in range(launches):
            self.launch(*views)
        call("cuCtxSynchronize")
        return (time.perf_counter() - start) / launches * 1e6

    def main(self) -> None:
        """Check, and with `--time` measure too."""
        self.check()
        print(f"{self.kernel.__name__}: equals its reference")
        if "--time" in sys.argv[1:]:
            print(f"{self.kernel.__name__}: {self.microseconds():.1f} µs")


def _filled(rng: np.random.Generator, spec: Any) -> Any:
    dtype = spec.dtype.numpy
    layout = Strided(tuple(spec.shape), tuple(spec.strides))
    last = sum((n - 1) * s for n, s in zip(layout.shape, layout.strides, strict=True))
    numbers = rng.uniform(-1, 1, last + 1) if spec.dtype.is_float else rng.integers(0, 2, last + 1)
    return arrays.view(numbers.astype(dtype), layout)


def _memory(x: Any) -> Any:
    """All elements from the first to the last in memory, flat."""
    last = sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)) // x.itemsize
    return arrays.view(x, Strided((last + 1,), (1,)))
