"""`@kd.kernel`: a function that runs on the GPU or in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, overload

from kdsl_core.errors import ArgumentError
from kdsl_core.ir import Target, target_of
from kdsl_core.ir.printer import print_kernel
from kdsl_core.lang import dump
from kdsl_core.lang.arguments import Bound, TensorClass, bind, classify
from kdsl_core.lang.dependencies import Dependencies
from kdsl_core.lang.functions import Staged
from kdsl_core.lang.launch import Dim3, Launch, extent
from kdsl_core.lang.lowered import Lowered
from kdsl_core.lang.signature import Signature
from kdsl_core.lang.traced import Traced, trace
from kdsl_core.loc import here
from kdsl_core.passes import check_resources, check_target, optimise
from kdsl_core.ptx import PtxModule, emit

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
        self.__wrapped__ = function
        self.__kdsl_staged__ = self.staged  # how dependencies see through it
        self._traces: dict[Any, list[tuple[Dependencies, Traced]]] = {}
        self._lowered: dict[Any, list[tuple[Dependencies, Lowered]]] = {}
        self._classes: dict[Any, tuple[TensorClass, ...]] = {}

    def __repr__(self) -> str:
        return f"<kernel {self.__name__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: a kernel runs on a grid of blocks."""
        raise ArgumentError(
            f"{self.__name__} is a kernel and was called like a function",
            code="K625",
            loc=here(depth=1),
            fix=f"say how many blocks and threads: {self.__name__}[grid, block](…)",
        )

    def __getitem__(self, launch: Any) -> Launch:
        """A launch on a grid of blocks: ``kernel[grid, block]``."""
        if not isinstance(launch, tuple) or len(launch) != 2:
            raise ArgumentError(
                f"{self.__name__}[…] takes grid and block, got {launch!r}",
                code="K620",
                fix=f"write {self.__name__}[(blocks_x, blocks_y), threads](…)",
            )
        return Launch(self, *launch)

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
        return self.traced(self._key(self._classified(bound), bound.statics, block, cluster))

    def _classified(self, bound: Bound) -> tuple[TensorClass, ...]:
        """The classes of the arrays; those whose facts passed every check before are known."""
        facts = tuple(
            (name, f.dtype.name, f.shape, f.strides, f.pointer & (_WIDEST_BYTES - 1))
            for name, f in bound.arrays.items()
        )
        found = self._classes.get(facts)
        if found is None:
            found = classify(self.signature, bound.arrays)
            if len(self._classes) >= _MOST_SHAPES:
                self._classes.clear()
            self._classes[facts] = found
        return found

    def _key(
        self,
        classes: tuple[TensorClass, ...],
        statics: dict[str, Any],
        block: Dim3,
        cluster: Dim3 | None,
    ) -> tuple[Any, ...]:
        # 1, 1.0 and True are equal keys of a dict, and different code.
        items = tuple((name, type(value), value) for name, value in statics.items())
        return classes, items, block, cluster

    def traced(self, key: tuple[Any, ...]) -> Traced:
        """The optimised IR of a specialisation; traced when it is new or what it read changed."""
        kept = self._traces.setdefault(key, [])
        for dependencies, traced in kept:
            if dependencies.unchanged():
                return traced
        classes, items, block, cluster = key
        statics = {name: value for name, _, value in items}
        traced = trace(
            self.staged,
            self.signature,
            classes,
            statics,
            block=block,
            cluster=cluster,
            min_blocks_per_sm=self.min_blocks_per_sm,
        )
        optimise(traced.kernel)
        if dump.wanted("ir"):
            dump.write(self.__name__, "ir", print_kernel(traced.kernel))
        # Taken afterwards: meta code may have filled a cache of its own.
        dependencies = Dependencies(self.staged.function, statics.values())
        kept[:] = [(dependencies, traced), *kept[: _MOST_KEPT - 1]]
        return traced

    def lowered(
        self, bound: Bound, block: Dim3, cluster: Dim3 | None, target: str | Target
    ) -> Lowered:
        """The PTX for the class of the arguments: known, kept by an earlier process, or new.

        Raises: as `module`; ArgumentError K602 without the package kdsl-runtime.
        """
        key = self._key(self._classified(bound), bound.statics, block, cluster)
        kept = self._lowered.setdefault((key, str(target)), [])
        for dependencies, lowered in kept:
            if dependencies.unchanged():
                return lowered
        from kdsl_core.lang.recipes import obtain

        dependencies, lowered = obtain(self, key, target_of(target))
        kept[:] = [(dependencies, lowered), *kept[: _MOST_KEPT - 1]]
        return lowered

    def forget(self, key: tuple[Any, ...]) -> None:
        """Forget the traces of one specialisation."""
        self._traces.pop(key, None)

    def clear(self) -> None:
        """Forget what was traced, so that the next use traces again or asks the cache."""
        self._traces.clear()
        self._lowered.clear()

    def ir(self, *args: Any, block: Any, cluster: Any = None, **statics: Any) -> str:
        """The IR as text, for arrays or `kd.spec`s."""
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
        bound = bind(self.signature, args, statics)
        blocks = None if cluster is None else extent(cluster, "cluster")
        return self.trace(bound, extent(block, "block"), blocks)

    def built(self, traced: Traced, target: Target, lines: bool = False) -> PtxModule:
        """The PTX of a trace for a target."""
        module: PtxModule | None = traced.modules.get((target, lines))
        if module is None:
            check_target(traced.kernel, target)
            check_resources(traced.kernel, target)
            module = emit(traced.kernel, target, lines=lines)
            if dump.wanted("ptx"):
                dump.write(f"{self.__name__}.{target}", "ptx", module.text)
            traced.modules[target, lines] = module
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
        bound = bind(self.signature, args, statics)
        blocks = None if cluster is None else extent(cluster, "cluster")
        lowered = self.lowered(bound, extent(block, "block"), blocks, target)
        payload: bytes = host.build(lowered.module).payload
        return payload

    def keys(self, *args: Any, block: Any, cluster: Any = None, **statics: Any) -> list[str]:
        """The specialisations that a call with these arguments needs, as text."""
        bound = bind(self.signature, args, statics)
        parts = [str(item) for item in self._classified(bound)]
        parts += [f"{name} = {type(v).__name__} {v!r}" for name, v in bound.statics.items()]
        sizes = f"{extent(block, 'block')}"
        if cluster is not None:
            sizes += f", cluster {extent(cluster, 'cluster')}"
        return [f"{self.signature.name}[{sizes}]({'; '.join(parts)})"]

    def explain_key(self, a: Sequence[Any], b: Sequence[Any], **statics: Any) -> list[str]:
        """Which arguments put two calls into different specialisations, and how."""
        calls = [bind(self.signature, args, statics) for args in (a, b)]
        first, second = ({c.name: c for c in self._classified(bound)} for bound in calls)
        lines = []
        for name in {**first, **second}:
            if name in first and name in second:
                lines += first[name].differences(second[name])
            else:
                lines.append(f"{name}: in one of the calls only")
        for name, value in calls[0].statics.items():
            other = calls[1].statics[name]
            if type(value) is not type(other) or value != other:
                lines.append(f"{name}: {value!r} and {other!r}")
        return lines


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
