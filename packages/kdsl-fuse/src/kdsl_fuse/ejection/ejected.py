"""What an ejected file needs to run: memory for its launches, a check, and a clock."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kdsl_core.errors import FusionError
from kdsl_fuse import arrays
from kdsl_fuse.ejection.launched import View, extent
from kdsl_fuse.strided import Strided

__all__ = ["Ejected", "EjectedLaunch", "View"]


@dataclass(frozen=True)
class EjectedLaunch:
    """A kernel with its grid, and parts of values as its array arguments, in order."""

    kernel: Any
    arguments: Sequence[View]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    statics: Mapping[str, Any] = field(default_factory=dict)
    cluster: tuple[int, ...] | None = None
    overlap: bool = False

    def run(self, memory: Mapping[str, Any]) -> None:
        """Launch on arrays by name: NumPy's in the simulator, CUDA arrays on their GPU."""
        configured = self.kernel.configure(
            grid=self.grid, block=self.block, cluster=self.cluster, overlap=self.overlap
        )
        configured(*(view.of(memory) for view in self.arguments), **self.statics)


@dataclass(frozen=True)
class Ejected:
    """Launches that compute the values `writes` from the values `reads`, by way of `scratch`.

    All three are `kd.spec`s by name; `reference` computes in f32, from all values that are read in
    their order, what is written. `tolerance` is the error allowed besides rounding, relative to the
    largest result.
    """

    launches: Sequence[EjectedLaunch]
    reads: Mapping[str, Any]
    writes: Mapping[str, Any]
    reference: Callable[..., Any]
    scratch: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 2.0**-15

    def run(self, memory: Mapping[str, Any]) -> None:
        """All launches, on arrays by name for what is read and written."""
        like = memory[next(iter(self.reads))]
        scratch = {name: arrays.empty(x.shape, x.dtype, like) for name, x in self.scratch.items()}
        for launch in self.launches:
            launch.run({**memory, **scratch})

    def arrays(self, seed: int = 0) -> dict[str, Any]:
        """NumPy arrays for what is read, with numbers from −1 to 1, and for what is written."""
        rng = np.random.default_rng(seed)
        return {name: _filled(rng, x) for name, x in {**self.reads, **self.writes}.items()}

    def check(self) -> None:
        """Compare what is written with the reference: in the simulator, or on a GPU if one is here.

        Raises: FusionError K968 with the largest difference.
        """
        given = self.arrays()
        results = self._results(given)
        with np.errstate(all="ignore"):
            expected = self.reference(*(given[name] for name in self.reads))
        wanted = expected if isinstance(expected, tuple) else (expected,)
        for name, want in zip(self.writes, wanted, strict=True):
            self._compare(name, results[name], want)

    def _compare(self, name: str, result: Any, wanted: Any) -> None:
        exact = self.writes[name].dtype.is_float
        eps = float(np.spacing(np.ones((), result.dtype))) if exact else 0.0
        wanted = np.asarray(wanted) if exact else np.asarray(wanted).astype(result.dtype)
        got, want = (np.asarray(x).astype(np.float64) for x in (result, wanted))
        with np.errstate(all="ignore"):
            error = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0, abs(got - want))
            most = max(1.0, float(np.max(abs(want), initial=0, where=np.isfinite(want))))
            bound = 2 * eps * abs(want) + (self.tolerance + eps / 4) * most * exact
        if not np.all(error <= bound):
            raise FusionError(
                f"{name} differs from its reference, at worst by {np.max(error):.3g}",
                code="K968",
                fix="compare the file with a freshly ejected one",
            )

    def _results(self, given: Mapping[str, Any]) -> dict[str, Any]:
        from kdsl_runtime.driver import is_available

        if not is_available():
            self.run(given)
            return {name: given[name] for name in self.writes}
        moved = self._on_gpu(given)
        self.run({name: view for name, (_, view) in moved.items()})
        return {
            name: arrays.view(moved[name][0].read(), Strided.of(x))
            for name, x in self.writes.items()
        }

    def _on_gpu(self, given: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Each array's memory on the GPU, and the array as a view of it."""
        from kdsl_runtime.device_array import to_device

        moved = {}
        for name, x in given.items():
            spec = arrays.spec_of(x)
            assert spec is not None, f"{name} is an array of NumPy"
            layout = Strided.of(spec)
            memory = to_device(arrays.view(x, Strided((extent(layout),), (1,))))
            moved[name] = memory, arrays.view(memory, layout)
        return moved

    def microseconds(self, runs: int = 200) -> float:
        """Time from run to run on the GPU, many in a row."""
        from kdsl_runtime.driver import call, require_driver

        require_driver()
        held = self._on_gpu(self.arrays())
        memory = {name: view for name, (_, view) in held.items()}
        for _ in range(3):
            self.run(memory)
        call("cuCtxSynchronize")
        start = time.perf_counter()
        for _ in range(runs):
            self.run(memory)
        call("cuCtxSynchronize")
        return (time.perf_counter() - start) / runs * 1e6

    def main(self) -> None:
        """Check, and with `--time` measure too."""
        told = ", ".join(launch.kernel.__name__ for launch in self.launches)
        self.check()
        print(f"{told}: equals its reference")
        if "--time" in sys.argv[1:]:
            print(f"{told}: {self.microseconds():.1f} µs")


def _filled(rng: np.random.Generator, spec: Any) -> Any:
    """Numbers from −1 to 1, or 0 and 1; of truth values at least every other one is true."""
    layout, dtype = Strided.of(spec), spec.dtype
    count = extent(layout)
    if dtype.is_float:
        return arrays.view(rng.uniform(-1, 1, count).astype(dtype.numpy), layout)
    numbers = rng.integers(0, 2, count)
    if dtype.name == "boolean":
        numbers[::2] = 1
    return arrays.view(numbers.astype(dtype.numpy), layout)
