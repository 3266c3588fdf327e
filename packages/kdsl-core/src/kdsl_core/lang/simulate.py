"""`kd.simulate`: run a kernel in the simulator and look at what it found and counted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kdsl_core import sim
from kdsl_core.errors import ArgumentError
from kdsl_core.lang.arguments import Bound, bind, facts_of, wrong_arrays
from kdsl_core.lang.launch import Dim3, Place, cluster_of, extent
from kdsl_core.ptx.costs import costs
from kdsl_core.records import dataclass

if TYPE_CHECKING:
    from kdsl_core.lang.kernel import KernelFunction
    from kdsl_core.lang.traced import Traced


@dataclass(frozen=True, eq=False, repr=False)
class Simulated(sim.Result):
    """The array arguments after a run, the hazards found, and the counters.

    `print(result)` shows what was found, `result.report(profile=True)` the counters as well.
    `names` are those of the arguments in `outputs`.
    """

    outputs: tuple[np.ndarray[Any, Any], ...]
    names: tuple[str, ...]


def simulate(
    kernel: KernelFunction,
    *,
    grid: Any,
    block: Any,
    cluster: Any = None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    overlap: bool | Collection[str] = False,
    checks: str | Collection[str] = "all",
    on_hazard: str = "raise",
    order: str = "linear",
    seed: int = 0,
    numerics: str = "exact",
    profile: bool = True,
    footprint: bool = False,
    writers: bool = False,
) -> Simulated:
    """Run a kernel on NumPy arrays, which it writes as a GPU would.

    `cluster` is the shape of a cluster of blocks, in which the grid is cut.
    `overlap` says that the launch ahead may still use the arrays, or those of these names: they
    must not be touched before `kd.wait_for_dependencies()`.
    `checks` is "all" or the hazard codes to look for, ("all", "unwritten") looks for elements of
    outputs that nobody wrote as well, `on_hazard` "raise" or "collect",
    `order` "linear" or "shuffle" (blocks and warps in an order drawn from `seed`), `numerics`
    "exact" (the bits of the tensor core) or "fast". `profile` counts what the hardware would
    count, `footprint` besides which sectors of global memory are touched at all. With `writers`,
    `.writers.of("C", (3, 5))` says which thread wrote an element last, from which register.

    Raises: HazardError for the first hazard when `on_hazard` is "raise".
    """
    bound = bind(kernel.signature, args, kwargs or {})
    names = overlap if isinstance(overlap, Collection) else bound.arrays if overlap else ()
    options = {
        "overlap": tuple(names),
        "checks": checks,
        "on_hazard": on_hazard,
        "order": order,
        "seed": seed,
        "numerics": numerics,
        "profile": profile,
        "footprint": footprint,
        "writers": writers,
    }
    sizes = grid(*args, **(kwargs or {})) if callable(grid) else grid
    blocks = extent(sizes, "grid")
    shape = cluster_of(cluster, blocks)
    return simulate_bound(kernel, blocks, extent(block, "block"), bound, options, shape)


def simulate_bound(
    kernel: KernelFunction,
    grid: Dim3,
    block: Dim3,
    bound: Bound,
    options: Mapping[str, Any] | None = None,
    cluster: Dim3 | None = None,
) -> Simulated:
    """Run a kernel on arguments that are bound already."""
    return simulate_traced(kernel.trace(bound, block, cluster), grid, bound, options)


def launch_bound(kernel: KernelFunction, place: Place, bound: Bound) -> None:
    """A launch on NumPy arrays."""
    unseen = {"profile": False}  # nobody gets to look at it
    simulate_bound(kernel, place.grid, place.block, bound, unseen, place.cluster)


def bound_in_simulator(kernel: KernelFunction, place: Place, bound: Bound) -> Callable[..., None]:
    """What `Launch.bind` gives for NumPy arrays: everything is looked at, since nothing hurries."""
    needed = kernel.specialised(bound, place.block, place.cluster)

    def run(*arrays: Any) -> None:
        if len(arrays) != len(bound.arrays):
            raise wrong_arrays(kernel.__name__, bound.arrays, arrays)
        facts = {n: facts_of(a, n) for n, a in zip(bound.arrays, arrays, strict=True)}
        given = Bound(facts, bound.scalars, bound.statics)
        same = all(
            (f.dtype, f.shape, f.device) == (facts[n].dtype, facts[n].shape, facts[n].device)
            for n, f in bound.arrays.items()
        )
        if not same or kernel.specialised(given, place.block, place.cluster) != needed:
            raise wrong_arrays(kernel.__name__, bound.arrays, arrays)
        launch_bound(kernel, place, given)

    return run


def simulate_traced(
    traced: Traced, grid: Dim3, bound: Bound, options: Mapping[str, Any] | None = None
) -> Simulated:
    """Run a trace on arguments that have every fact that it was made for."""
    memory = sim.GlobalMemory()
    addresses = {
        name: memory.add(name, _array(name, facts.owner), facts.dtype)
        for name, facts in bound.arrays.items()
    }
    values = traced.values(bound, addresses)
    params = {p.name: value for p, value in zip(traced.kernel.params, values, strict=True)}
    wanted = {"costs": partial(costs, traced.kernel), **(options or {})}
    result = sim.run(traced.kernel, grid, params, memory.buffers, **wanted)
    outputs = tuple(facts.owner for facts in bound.arrays.values())
    return Simulated(**vars(result), outputs=outputs, names=tuple(bound.arrays))


def _array(name: str, owner: Any) -> np.ndarray[Any, Any]:
    if isinstance(owner, np.ndarray):
        return owner
    got = "a kd.spec, which has no data" if owner is None else type(owner).__name__
    raise ArgumentError(
        f"{name}: the simulator runs on NumPy arrays, got {got}",
        code="K623",
        fix="copy it to the host: numpy.asarray(x.cpu())",
    )
