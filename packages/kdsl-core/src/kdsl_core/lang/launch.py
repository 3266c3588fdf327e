"""A launch: checks the arguments, and runs them where they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kdsl_core.errors import ArgumentError, KdslError, ResourceError
from kdsl_core.ir.target import MAX_THREADS_PER_BLOCK
from kdsl_core.lang import watch
from kdsl_core.lang.arguments import Bound, bind
from kdsl_core.lang.host import runtime

if TYPE_CHECKING:
    from kdsl_core.lang.dependencies import Dependencies
    from kdsl_core.lang.kernel import KernelFunction
    from kdsl_core.lang.lowered import Lowered
    from kdsl_core.lang.specialisation import Specialisation

Dim3 = tuple[int, int, int]
_MOST_BLOCKS = (2**31 - 1, 65535, 65535)
_MOST_OF_CLUSTER = 8  # blocks that every chip with clusters can run together


def extent(sizes: Any, what: str) -> Dim3:
    """One to three sizes as (x, y, z).

    Raises: ArgumentError K621, ResourceError K404 for a block of too many threads, K435 for a
    cluster of too many blocks.
    """
    kind = type(sizes)
    if kind is int:
        return _checked(sizes, (), what)
    if kind is tuple or kind is list:
        return _checked(tuple(sizes), tuple(map(type, sizes)), what)
    return _extent(sizes, what)


def _extent(sizes: Any, what: str) -> Dim3:
    given = sizes if isinstance(sizes, (tuple, list)) else (sizes,)
    whole = [int(n) for n in given if not isinstance(n, (bool, float))]
    most = _MOST_BLOCKS if what == "grid" else (1024, 1024, 64)
    full = (*whole, 1, 1, 1)[:3]
    fits = len(whole) == len(given) and 1 <= len(whole) <= 3
    if not fits or any(not 1 <= n <= m for n, m in zip(full, most, strict=True)):
        raise ArgumentError(
            f"the {what} is one to three sizes from 1 to {most}, got {sizes!r}",
            code="K621",
            fix="round up: -(-n // tile) blocks cover n elements"
            if what == "grid"
            else "launch more, smaller blocks",
        )
    if what == "block" and math.prod(full) > MAX_THREADS_PER_BLOCK:
        raise ResourceError(
            f"a block has at most {MAX_THREADS_PER_BLOCK} threads, got {sizes!r} = "
            f"{math.prod(full)} threads",
            code="K404",
            fix="launch more, smaller blocks",
        )
    if what == "cluster" and math.prod(full) > _MOST_OF_CLUSTER:
        raise ResourceError(
            f"a cluster has at most {_MOST_OF_CLUSTER} blocks, got {sizes!r} = {math.prod(full)}",
            code="K435",
            fix="launch smaller clusters",
        )
    return full[0], full[1], full[2]


@lru_cache(maxsize=4096)
def _checked(sizes: Any, kinds: Any, what: str) -> Dim3:
    """`_extent`, kept; `kinds` are the types, for True and 1.0 are no sizes although 1 is."""
    return _extent(sizes, what)


def cluster_of(sizes: Any, grid: Dim3) -> Dim3 | None:
    """The shape of a cluster that the grid is a multiple of; None when there are no clusters.

    Raises: ArgumentError K636 when the grid is none.
    """
    if sizes is None:
        return None
    shape = extent(sizes, "cluster")
    if any(blocks % part for blocks, part in zip(grid, shape, strict=True)):
        raise ArgumentError(
            f"the grid is no whole number of clusters: {grid} blocks, clusters of {shape}",
            code="K636",
            fix="round each size of the grid up to a multiple of the cluster's; blocks with "
            "nothing to do may return",
        )
    return shape


class Place:
    """Grid, block and cluster of a launch, checked; a kernel has one object for equal ones."""

    __slots__ = ("block", "cluster", "grid", "overlap")

    def __init__(self, grid: Dim3, block: Dim3, cluster: Dim3 | None, overlap: bool) -> None:
        self.grid, self.block, self.cluster, self.overlap = grid, block, cluster, overlap


class Launch:
    """A kernel with its grid and block, waiting for arguments.

    `overlap` lets it start before the launch ahead of it in the stream has ended; `kept` asks the
    kernel to keep it for the next use of the same sizes.
    """

    __slots__ = (
        "_kept", "_place", "again", "block", "cluster", "grid", "kernel", "overlap", "stream",
    )  # fmt: skip

    def __init__(
        self,
        kernel: KernelFunction,
        grid: Any,
        block: Any,
        cluster: Any = None,
        stream: int | None = None,
        overlap: bool = False,
        *,
        kept: bool = False,
    ) -> None:
        self.kernel, self.grid, self.block, self.cluster = kernel, grid, block, cluster
        self.stream, self.overlap, self._kept = stream, overlap, kept
        self._place: Place | None = None
        self.again: KnownCall | None = None  # makes a call like the latest one

    def __repr__(self) -> str:
        return f"<launch of {self.kernel.__name__} on {self.grid} blocks of {self.block}>"

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run on the arguments: in the simulator for NumPy arrays, else on their GPU.

        Raises: ArgumentError for arguments that do not fit, HazardError from the simulator.
        """
        try:
            again = self.again
            if _diversions and (stand_in := _stand_in.get()) is not None:
                stand_in(self, args, kwargs)
            elif again is None or not again(self, args, kwargs):
                self._find(args, kwargs)
        except KdslError as error:
            error.locate()
            raise

    def bind(self, *args: Any, **kwargs: Any) -> Callable[..., None]:
        """A function of the arrays alone, by position, with all else as it is in this call.

        The kernel is built and loaded now, and not launched. What the function is given must have
        the types, shapes, strides and device of the arrays here: on a GPU it looks at addresses
        and their alignment, and at nothing else. It runs what the kernel's code is now, also when
        a global or a helper is bound anew later.

        Raises: ArgumentError for arguments that do not fit; the function, K624 for another number
        or kind of arrays and K628 for one that is aligned to less.
        """
        try:
            bound = bind(self.kernel.signature, args, kwargs)
            place = self.place(*args, **kwargs)
            if self._device(bound) != "cpu":
                ready = self._ready(bound, place)
                answer: Callable[..., None] = runtime("a launch on the GPU").bound(
                    self, place, bound, ready
                )
                return answer
        except KdslError as error:
            error.locate()
            raise
        from kdsl_core.lang.simulate import bound_in_simulator

        return bound_in_simulator(self.kernel, place, bound)

    def bind_addresses(
        self, *args: Any, **kwargs: Any
    ) -> tuple[Callable[..., None], Specialisation]:
        """The same for arrays on a GPU, as a function of the stream and the arrays' addresses.

        It looks at nothing: addresses must be aligned as those here are, of memory on the same
        device that lives until the launch has ended. No watcher is told; beside the function is
        what one would be told of.
        """
        bound = bind(self.kernel.signature, args, kwargs)
        place = self.place(*args, **kwargs)
        ready = self._ready(bound, place)
        host = runtime("a launch on the GPU")
        submit: Callable[..., None] = host.bound_addresses(place, bound, ready)
        return submit, ready.needed

    def on(self, stream: int | None) -> Launch:
        """The same launch on this stream, a `CUstream` handle; None is the caller's current one."""
        return Launch(self.kernel, self.grid, self.block, self.cluster, stream, self.overlap)

    def place(self, *args: Any, **kwargs: Any) -> Place:
        """Where the blocks are in a call with these arguments.

        Raises: ArgumentError K621, K636; ResourceError K404, K435.
        """
        if self._place is not None:
            return self._place
        varies = callable(self.grid)
        grid = extent(self.grid(*args, **kwargs) if varies else self.grid, "grid")
        block, cluster = extent(self.block, "block"), cluster_of(self.cluster, grid)
        place = self.kernel.place(grid, block, cluster, self.overlap)
        if not varies:
            self._place = place
            if self._kept:
                self.kernel.keep((self.grid, self.block), self)
        return place

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        known = self.kernel.calls.get(kinds_of(args, kwargs))
        if known is None or not known.call(self, args, kwargs):
            self._run(args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kernel = self.kernel
        bound = bind(kernel.signature, args, kwargs)
        place = self.place(*args, **kwargs)
        if self._device(bound) == "cpu":
            from kdsl_core.lang.simulate import launch_bound

            launch_bound(kernel, place, bound)
        else:
            self._on_gpu(bound, place, args, kwargs)
        if watch.watchers:
            watch.launched(kernel, kernel.specialised(bound, place.block, place.cluster))

    def _device(self, bound: Bound) -> str:
        places = {name: facts.device[0] for name, facts in bound.arrays.items()}
        kinds = set(places.values())
        if len(kinds) > 1 or "spec" in kinds:
            listed = ", ".join(f"{name} on {place}" for name, place in places.items())
            raise ArgumentError(
                f"{self.kernel.__name__} needs its arrays in one place, got {listed}",
                code="K622",
                fix="move them: all NumPy arrays for the simulator, all on one GPU otherwise",
            )
        return kinds.pop() if kinds else "cpu"

    def _on_gpu(
        self, bound: Bound, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        host = runtime("a launch on the GPU")
        ready = self._ready(bound, place)
        stream = self.stream
        if stream is None:
            stream = host.launch_stream(bound.arrays.values(), ready.device)
        values = ready.lowered.values(bound)
        ready.loaded.launch(place.grid, place.block, values, stream, place.cluster, self.overlap)
        host.remember(self, place, args, kwargs, bound, ready)

    def _ready(self, bound: Bound, place: Place) -> Ready:
        """The kernel built for the arguments and loaded on their device."""
        host = runtime("a launch on the GPU")
        device = host.common_device(bound.arrays)[1]
        needed = self.kernel.specialised(bound, place.block, place.cluster)
        target = host.driver.device(device).target
        dependencies, lowered = self.kernel.obtained(needed, target)
        loaded = lowered.loaded.get(device)
        if loaded is None:
            origin = self.kernel, needed
            loaded = lowered.loaded[device] = host.load(lowered.module, device, origin=origin)
        return Ready(needed, dependencies, lowered, loaded, device)


StandIn = Callable[[Launch, tuple[Any, ...], dict[str, Any]], None]
_stand_in: ContextVar[StandIn | None] = ContextVar("stand_in", default=None)
# One for each `launches_go_to` of any thread: without any, no launch need ask its context.
_diversions: list[StandIn] = []


@contextmanager
def launches_go_to(stand_in: StandIn) -> Iterator[None]:
    """Let launches call `stand_in(launch, args, kwargs)` instead of running.

    Threads: those of other threads run.
    """
    _diversions.append(stand_in)
    before = _stand_in.set(stand_in)
    try:
        yield
    finally:
        _stand_in.reset(before)
        _diversions.remove(stand_in)


# Makes the call of a launch with these arguments; False when none like it was made.
KnownCall = Callable[[Launch, tuple[Any, ...], dict[str, Any]], bool]


class KnownCalls(Protocol):
    """One way to write a kernel's call, of which some were made."""

    @property
    def call(self) -> KnownCall:
        """Makes a call that is written so."""


class Ready(NamedTuple):
    """A kernel that can be launched, and what its code depends on."""

    needed: Specialisation
    dependencies: Dependencies
    lowered: Lowered
    loaded: Any
    device: int


def kinds_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """How a call is written: the types of its arguments, and the names of those that have one."""
    return (*map(type, args), *kwargs, *map(type, kwargs.values()))
