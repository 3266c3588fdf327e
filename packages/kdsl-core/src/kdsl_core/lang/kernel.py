"""`@kd.kernel`: a function that runs on the GPU or in the simulator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, overload

from kdsl_core.errors import ArgumentError
from kdsl_core.ir import Target, target_of
from kdsl_core.lang import watch
from kdsl_core.lang.arguments import Bound, bind, classify
from kdsl_core.lang.dependencies import Dependencies
from kdsl_core.lang.functions import Staged
from kdsl_core.lang.launch import Dim3, KnownCalls, Launch, Place, extent
from kdsl_core.lang.lowered import Lowered
from kdsl_core.lang.signature import Signature
from kdsl_core.lang.specialisation import Specialisation
from kdsl_core.lang.tensor_class import TensorClass

if TYPE_CHECKING:
    from kdsl_core.lang.traced import Traced
    from kdsl_core.ptx import PtxModule

# Traces kept of one specialisation whose globals, closures or helpers were rebound in between.
_MOST_KEPT = 8
_MOST_SHAPES = 1024
_WIDEST_BYTES = 16  # of one access: what is known of a pointer ends there


class KernelFunction:
    """An entry of the GPU, written as a Python function.

    ``kernel[grid, block](*args)`` launches it: NumPy arrays run in the simulator, CUDA arrays on
    the GPU. Traces are kept per specialisation: the classes of the arguments, the trace-time
    arguments, the block, and everything of the author's code that the trace read.

    Threads: launches are safe from several threads.
    """

    def __init__(
        self, function: Any, min_blocks_per_sm: int | None = None, name: str | None = None
    ) -> None:
        self.staged = Staged(function, "kernel")
        self.signature = Signature(function, name)
        self.min_blocks_per_sm = min_blocks_per_sm
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__qualname__ = function.__qualname__
        self.__wrapped__ = function
        self.__kdsl_staged__ = self.staged  # how dependencies see through it
        self._traces: dict[Any, list[tuple[Dependencies, Traced]]] = {}
        self._lowered: dict[Any, list[tuple[Dependencies, Lowered]]] = {}
        self._classes: dict[Any, tuple[TensorClass, ...]] = {}
        self._launches: dict[Any, Launch] = {}
        self._places: dict[Any, Place] = {}
        self.calls: dict[tuple[Any, ...], KnownCalls] = {}  # by how they were written

    def __repr__(self) -> str:
        return f"<kernel {self.__name__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: a kernel runs on a grid of blocks."""
        refused = ArgumentError(
            f"{self.__name__} is a kernel and was called like a function",
            code="K625",
            fix=f"say how many blocks and threads: {self.__name__}[grid, block](…)",
        )
        refused.locate()
        raise refused

    def __getitem__(self, launch: Any) -> Launch:
        """A launch on a grid of blocks: ``kernel[grid, block]``."""
        try:
            return self._launches[launch]
        except (KeyError, TypeError):  # new, or with a list in it
            pass
        if not isinstance(launch, tuple) or len(launch) != 2:
            raise ArgumentError(
                f"{self.__name__}[…] takes grid and block, got {launch!r}",
                code="K620",
                fix=f"write {self.__name__}[(blocks_x, blocks_y), threads](…)",
            )
        return Launch(self, *launch, kept=True)

    def keep(self, sizes: tuple[Any, Any], launch: Launch) -> None:
        """Give this launch again for grid and block that are equal, and were checked."""
        with contextlib.suppress(TypeError):
            _keep(self._launches, sizes, launch)

    def place(self, grid: Dim3, block: Dim3, cluster: Dim3 | None, overlap: bool) -> Place:
        """The one object for these sizes."""
        key = grid, block, cluster, overlap
        found = self._places.get(key)
        if found is None:
            found = Place(*key)
            _keep(self._places, key, found)
        return found

    def configure(
        self,
        *,
        grid: Any,
        block: Any,
        cluster: Any = None,
        stream: int | None = None,
        overlap: bool = False,
    ) -> Launch:
        """A launch with a cluster shape or a stream (a `CUstream` handle) of one's own.

        `overlap` lets it start before the launch ahead of it in the stream has ended; the kernel
        then orders itself behind that one with `kd.wait_for_dependencies()`.
        """
        return Launch(self, grid, block, cluster, stream, overlap)

    # -- what it becomes, without a GPU -------------------------------------------------------
    def trace(self, bound: Bound, block: Dim3, cluster: Dim3 | None = None) -> Traced:
        """The optimised IR for the class of the arguments."""
        return self.traced(self.specialised(bound, block, cluster))

    def specialised(self, bound: Bound, block: Dim3, cluster: Dim3 | None) -> Specialisation:
        """The specialisation that bound arguments need."""
        return Specialisation.of(self._classified(bound), bound.statics, block, cluster)

    def _classified(self, bound: Bound) -> tuple[TensorClass, ...]:
        """The classes of the arrays; those whose facts passed every check before are known."""
        facts = tuple(
            (name, f.dtype.name, f.shape, f.strides, f.pointer & (_WIDEST_BYTES - 1))
            for name, f in bound.arrays.items()
        )
        found = self._classes.get(facts)
        if found is None:
            found = classify(self.signature, bound.arrays)
            _keep(self._classes, facts, found)
        return found

    def traced(self, needed: Specialisation) -> Traced:
        """The optimised IR of a specialisation; traced when it is new or what it read changed."""
        for dependencies, traced in self._traces.get(needed, ()):
            if dependencies.unchanged():
                return traced
        return self.traced_anew(needed, contextlib.nullcontext())[1]

    def traced_anew(
        self, needed: Specialisation, within: AbstractContextManager[Any]
    ) -> tuple[Dependencies, Traced]:
        """The same traced in any case, with what it depends on.

        The trace runs inside of `within`, for somebody who watches what the author's code reads;
        the passes, which run none of it, come after.
        """
        kept = self._traces.setdefault(needed, [])
        for watcher in watch.watchers:
            watcher.tracing(self, needed, [dependencies for dependencies, _ in kept])
        from kdsl_core.lang.compilation import optimised  # not needed where PTX was recalled

        traced = optimised(self, needed, within)
        # Taken afterwards: meta code may have filled a cache of its own.
        statics = [value for _, _, value in needed.statics]
        made = Dependencies(self.staged.function, statics), traced
        kept[:] = [made, *kept[: _MOST_KEPT - 1]]
        return made

    def specialisations(self) -> list[Specialisation]:
        """Those that were traced in this process."""
        return [needed for needed, kept in list(self._traces.items()) if kept]

    def lowered(self, needed: Specialisation, target: str | Target) -> Lowered:
        """The PTX of a specialisation: known, kept by an earlier process, or new.

        Raises: as `module`; ArgumentError K602 without the package kdsl-runtime.
        """
        return self.obtained(needed, target)[1]

    def obtained(
        self, needed: Specialisation, target: str | Target
    ) -> tuple[Dependencies, Lowered]:
        """The same with what it depends on."""
        kept = self._lowered.setdefault((needed, str(target)), [])
        for found in kept:
            if found[0].unchanged():
                return found
        from kdsl_core.lang.recipes import obtain

        made = obtain(self, needed, target_of(target))
        kept[:] = [made, *kept[: _MOST_KEPT - 1]]
        return made

    def clear(self) -> None:
        """Forget what was traced, so that the next use traces again or asks the cache."""
        self._traces.clear()
        self._lowered.clear()
        self.calls = {}  # a new one: a launch looks whether it is the one that it knows

    def ir(self, *args: Any, block: Any, cluster: Any = None, **statics: Any) -> str:
        """The IR as text, for arrays or `kd.spec`s."""
        from kdsl_core.ir.printer import print_kernel

        return print_kernel(self._inspected(args, statics, block, cluster).kernel)

    def module(
        self,
        *args: Any,
        target: str | Target,
        block: Any,
        cluster: Any = None,
        lines: bool = False,
        **statics: Any,
    ) -> PtxModule:
        """The PTX with what a launch needs to know, for arrays or `kd.spec`s.

        Raises: TargetError when the target lacks an instruction, ResourceError beyond its limits.
        """
        traced = self._inspected(args, statics, block, cluster)
        return self.built(traced, target_of(target), lines)

    def _inspected(
        self, args: tuple[Any, ...], statics: dict[str, Any], block: Any, cluster: Any
    ) -> Traced:
        return self.traced(self.specialisation(*args, block=block, cluster=cluster, **statics))

    def built(self, traced: Traced, target: Target, lines: bool = False) -> PtxModule:
        """The PTX of a trace for a target."""
        module: PtxModule | None = traced.modules.get((target, lines))
        if module is None:
            for watcher in watch.watchers:
                watcher.emitting(self, traced, target)
            from kdsl_core.lang.compilation import emitted

            module = traced.modules[target, lines] = emitted(self, traced, target, lines)
        return module

    def ptx(
        self, *args: Any, target: str | Target, block: Any, cluster: Any = None, **statics: Any
    ) -> str:
        """The PTX text."""
        return self.module(*args, target=target, block=block, cluster=cluster, **statics).text

    def cubin(
        self, *args: Any, target: str | Target, block: Any, cluster: Any = None, **statics: Any
    ) -> bytes:
        """The machine code, from the cache or the assembler.

        Raises: BuildError without an assembler.
        """
        from kdsl_core.lang.host import runtime

        host = runtime("building a cubin")
        needed = self.specialisation(*args, block=block, cluster=cluster, **statics)
        module = self.lowered(needed, target).module
        payload: bytes = host.build(module, origin=(self, needed)).payload
        return payload

    def specialisation(
        self, *args: Any, block: Any, cluster: Any = None, **statics: Any
    ) -> Specialisation:
        """What a call with these arguments, arrays or `kd.spec`s, needs to be built."""
        bound = bind(self.signature, args, statics)
        blocks = None if cluster is None else extent(cluster, "cluster")
        return self.specialised(bound, extent(block, "block"), blocks)

    def keys(self, *args: Any, block: Any, cluster: Any = None, **statics: Any) -> list[str]:
        """The specialisations that a call with these arguments needs, as text."""
        needed = self.specialisation(*args, block=block, cluster=cluster, **statics)
        return [f"{self.signature.name}{needed}"]

    def explain_key(self, a: Sequence[Any], b: Sequence[Any], **statics: Any) -> list[str]:
        """Which arguments put two calls into different specialisations, and how."""
        first, second = (self.specialisation(*args, block=1, **statics) for args in (a, b))
        return [
            f"{found.name}: {found.fact} {found.before} and {found.after}"
            for found in first.differences(second)
        ]


@overload
def kernel(function: Callable[..., Any], /) -> KernelFunction: ...
@overload
def kernel(
    *, name: str | None = None, min_blocks_per_sm: int | None = None
) -> Callable[[Callable[..., Any]], KernelFunction]: ...
def kernel(
    function: Any = None, /, *, name: str | None = None, min_blocks_per_sm: int | None = None
) -> KernelFunction | Callable[[Callable[..., Any]], KernelFunction]:
    """Make a function an entry of the GPU; `name` is the entry's, by default the function's.

    Units: `min_blocks_per_sm` asks the assembler for registers few enough that so many blocks fit
    on a multiprocessor.
    """
    if function is not None:
        return KernelFunction(function)
    return lambda function: KernelFunction(function, min_blocks_per_sm, name)


def _keep(known: dict[Any, Any], key: Any, value: Any) -> None:
    if len(known) >= _MOST_SHAPES:
        known.clear()
    known[key] = value
