"""One configuration on one problem: built without a GPU, run on arrays, and judged."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from kdsl_core.errors import BuildError, KdslError
from kdsl_core.lang.spec import ArraySpec
from kdsl_core.ptx.module import PtxModule
from kdsl_runtime.assemble import AssembleOptions, KdslBuildWarning
from kdsl_runtime.builds import build, key_of
from kdsl_runtime.dispatch import Config
from kdsl_runtime.problem import Problem
from kdsl_runtime.toolchain import Toolchain, default_toolchain
from kdsl_runtime.tune.space import Arrays, Call, Space, brief

UNASSEMBLED = "none"  # the toolchain where there is none


@dataclass(frozen=True)
class Built:
    """What building found: a hash of all the code that a candidate launches, or a reason.

    The hash changes with the PTX, the target, the assembler and its options.
    """

    code: str = ""
    reason: str = ""


def toolchain_here() -> Toolchain | None:
    """The assembler; None where there is none and PTX is all that can be made."""
    try:
        return default_toolchain()
    except BuildError:
        return None


def toolchain_id() -> str:
    """What records say of the assembler that is here."""
    toolchain = toolchain_here()
    return UNASSEMBLED if toolchain is None else toolchain.id


def build_candidate(space: Space, problem: Problem, config: Config, target: str) -> Built:
    """Trace and assemble what a configuration launches, into the cache; works without a GPU.

    Where there is no assembler, or the driver is it, limits of the target are checked all the same.
    """
    toolchain, options = toolchain_here(), AssembleOptions()
    try:
        modules = modules_of(space, problem, config, target)
        if toolchain is None:
            return Built(_hash(module.text for module in modules))
        if not toolchain.is_driver_jit:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", KdslBuildWarning)  # said where the kernel is used
                for module in modules:
                    build(module, toolchain=toolchain, options=options)
        return Built(_hash(key_of(module, toolchain, options) for module in modules))
    except KdslError as error:
        return Built(reason=brief(error))


def modules_of(space: Space, problem: Problem, config: Config, target: str) -> list[PtxModule]:
    """The PTX of each launch of a configuration.

    Raises: what the kernel's own checks raise, TargetError, ResourceError.
    """
    specs = {**space.tensors(problem), **space.scratch(problem, config)}
    return [
        call.launch.kernel.module(
            *call.args,
            target=target,
            block=call.launch.block,
            cluster=call.launch.cluster,
            **call.statics,
        )
        for call in space.calls(problem, config, specs)
    ]


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


@dataclass(frozen=True)
class Workload:
    """A problem's arguments, and the right results of some of them. Nobody writes them."""

    specs: Mapping[str, ArraySpec]
    arrays: Mapping[str, np.ndarray[Any, Any]]
    expected: Mapping[str, np.ndarray[Any, Any]]

    def copies(self) -> dict[str, np.ndarray[Any, Any]]:
        """Arguments that a launch may write."""
        return {name: array.copy() for name, array in self.arrays.items()}

    def error(self, results: Arrays) -> float:
        """The largest difference from the right results, against their largest element.

        The worst of all results; infinite where one has a NaN that it should not have.
        """
        return max(_difference(results[name], right) for name, right in self.expected.items())


def _difference(got: Any, right: np.ndarray[Any, Any]) -> float:
    exact = np.asarray(right, np.float64)
    off = np.abs(np.asarray(got).astype(np.float64) - exact)
    worst = float(off.max(initial=0.0) / max(np.abs(exact).max(initial=0.0), np.finfo(float).tiny))
    return worst if worst == worst else float("inf")


def workload(space: Space, problem: Problem) -> Workload:
    """The arguments of a problem and its right results, the same every time."""
    return _workload(space.tensors, space.data, space.reference, problem)


@lru_cache(maxsize=1)
def _workload(
    tensors: Callable[..., Any],
    data: Callable[..., Any],
    reference: Callable[..., Any],
    problem: Problem,
) -> Workload:
    specs = tensors(problem)
    arrays = data(problem, specs, np.random.default_rng(0))
    return Workload(specs, arrays, reference(problem, arrays))


def run(calls: Sequence[Call]) -> None:
    """Launch a candidate once, where its arrays are."""
    for call in calls:
        call.launch(*call.args, **call.statics)
