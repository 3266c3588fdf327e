"""`@kf.fuse`: a plain Python function of arrays becomes a plan of kernels per signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, overload

from kdsl_core.errors import ArgumentError, FusionError, KdslError
from kdsl_fuse import arrays
from kdsl_fuse.frontends.traced import Trace, TracedArray
from kdsl_fuse.graph import Graph
from kdsl_fuse.origin import author_loc, locate
from kdsl_fuse.patterns import Options
from kdsl_fuse.patterns.base import DEFAULT_TARGET, F32_PRECISIONS, Chip, GemmKernels
from kdsl_fuse.plan import Plan, make_plan

Leaf = tuple[str, Any]


class Fused:
    """A function that runs as fused kernels.

    It is traced once per signature: dtypes, shapes and strides of its arrays, the target, and the
    values of all other arguments. Arrays and numbers that it reads from globals or closures are
    taken when it is traced. `options.target` stands where `target` is None and no GPU decides.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Options,
        fallback: str | None = None,
        target: str | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.options = options
        self.fallback = fallback
        self.target = target
        self.plans: dict[Any, Plan] = {}
        self._signature = inspect.signature(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run: NumPy arrays in the simulator, CUDA arrays on their GPU."""
        bound = self._bind(args, kwargs)
        leaves = list(_leaves(bound.arguments))
        if any(isinstance(value, TracedArray) for _, value in leaves):
            return self.function(*args, **kwargs)  # inside another fused function: inlined
        try:
            plan = self._plan(bound, leaves)
            return plan.run(*(value for _, value in leaves if arrays.spec_of(value) is not None))
        except KdslError as problem:
            locate(problem)
            raise

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for arrays, or for `kd.spec(dtype, shape)`s where there is no data.

        Raises: FusionError K909 for operators without a kernel; DriverError for CUDA arrays where
        there is no GPU and no target was stated.
        """
        bound = self._bind(args, kwargs)
        try:
            return self._plan(bound, list(_leaves(bound.arguments)))
        except KdslError as problem:
            locate(problem)
            raise

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The operator graph as the function was written, before any rewrite."""
        return self._trace(self._bind(args, kwargs))[0]

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as problem:
            name = self.function.__name__
            raise ArgumentError(
                f"{name}: {problem}",
                code="K929",
                loc=author_loc(),
                fix=f"call {name}({', '.join(self._signature.parameters)})",
            ) from None
        bound.apply_defaults()
        return bound

    def _plan(self, bound: inspect.BoundArguments, leaves: list[Leaf]) -> Plan:
        options = self._options([value for _, value in leaves])
        key = (options, *((path, _key(path, value)) for path, value in leaves))
        plan = self.plans.get(key)
        if plan is None:
            graph, pack = self._trace(bound)
            plan = make_plan(graph, options, fallback=self.fallback, pack=pack)
            self.plans[key] = plan
        return plan

    def _options(self, values: Sequence[Any]) -> Options:
        """The options with the target: the one stated, else the GPU of the arrays decides."""
        held = [value for value in values if arrays.library(value)]
        if self.target is not None or not held:
            return self.options
        gpu = arrays.gpu_of(arrays.common_place(held))
        if gpu is None:
            return self.options
        return replace(self.options, target=gpu.target, chip=Chip(gpu.name, gpu.multiprocessors))

    def _trace(self, bound: inspect.BoundArguments) -> tuple[Graph, Callable[[list[Any]], Any]]:
        name = self.function.__name__
        trace = Trace(name)

        def enter(path: str, value: Any) -> Any:
            spec = arrays.spec_of(value)
            if spec is None:
                return value
            graph = trace.graph
            node = graph.input(path, spec.shape, spec.dtype, strides=spec.strides, loc=loc)
            return TracedArray(trace, node)

        loc = author_loc()
        for key, value in bound.arguments.items():
            bound.arguments[key] = _map(enter, key, value)
        if not trace.graph.inputs:
            raise FusionError(
                f"{name} got no array", code="K921", loc=loc, fix="pass NumPy or CUDA arrays"
            )
        result = self.function(*bound.args, **bound.kwargs)
        outputs, pack = _outputs(name, result)
        trace.graph.outputs = [output.node for output in outputs]
        return trace.graph, pack


def _key(path: str, value: Any) -> Any:
    spec = arrays.spec_of(value)
    if spec is not None:
        return spec
    if isinstance(value, float):
        return float, repr(value)  # 0.0 and −0.0 are equal, but not the same constant
    try:
        hash(value)
    except TypeError:
        raise FusionError(
            f"argument {path} is a {type(value).__name__}, which is neither an array nor hashable",
            code="K922",
            loc=author_loc(),
            fix="pass arrays, numbers, strings, functions, or tuples, lists and dicts of them",
        ) from None
    return type(value), value


def _leaves(value: Any, path: str = "") -> Iterator[Leaf]:
    """Every array and other value in nested tuples, lists and dicts, with the path to it."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value


def _map(function: Callable[[str, Any], Any], path: str, value: Any) -> Any:
    """The same nest with `function(path, leaf)` in place of each leaf."""
    if isinstance(value, dict):
        return {key: _map(function, f"{path}.{key}", item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_map(function, f"{path}[{index}]", item) for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    return function(path, value)


def _outputs(name: str, result: Any) -> tuple[list[TracedArray], Callable[[list[Any]], Any]]:
    """The traced arrays that a function returned, and how to put the computed ones in place."""
    items = list(result) if isinstance(result, tuple | list) else [result]
    for item in items:
        if not isinstance(item, TracedArray):
            raise FusionError(
                f"{name} must return arrays, or a tuple or list of them, got {type(item).__name__}",
                code="K908",
                loc=author_loc(),
                fix="return values computed from the arguments",
            )
    if isinstance(result, TracedArray):
        return items, lambda computed: computed[0]
    return items, tuple if isinstance(result, tuple) else list


@overload
def fuse(function: Callable[..., Any], /) -> Fused: ...
@overload
def fuse(
    *,
    fallback: str | None = None,
    target: str | None = None,
    f32_precision: str = "ieee",
    gemm: GemmKernels | None = None,
) -> Callable[[Callable[..., Any]], Fused]: ...


def fuse(
    function: Callable[..., Any] | None = None,
    /,
    *,
    fallback: str | None = None,
    target: str | None = None,
    f32_precision: str = "ieee",
    gemm: GemmKernels | None = None,
) -> Any:
    """Make a Python function of arrays run as fused kernels.

    `fallback="numpy"` lets operators without a kernel run in NumPy, which `plan.explain()` shows;
    without it they are an error.

    `target` decides which kernels there are ("sm_90a": `gemm_sm90` for f16 and bf16) and how large
    their tiles may be; left out, the GPU of the arguments decides, and for NumPy arrays and
    `kd.spec`s "sm_80", whose kernels run on everything newer.

    `f32_precision="tf32"` lets products of f32 matrices use the tensor cores: faster on a GPU, with
    the operands rounded to 10 mantissa bits (relative error 2⁻¹¹ each); sums stay in f32. "ieee"
    keeps every bit.

    `gemm` replaces the shipped GEMM kernel.

    Raises: FusionError K923 for a fallback, K928 for a precision that there is not.
    """
    if fallback not in (None, "numpy"):
        raise FusionError(
            f'fallback is None or "numpy", got {fallback!r}', code="K923", loc=author_loc()
        )
    if f32_precision not in F32_PRECISIONS:
        raise FusionError(
            f"f32_precision is one of {', '.join(F32_PRECISIONS)}, got {f32_precision!r}",
            code="K928",
            loc=author_loc(),
        )
    options = Options(target or DEFAULT_TARGET, gemm, f32_precision)
    if function is not None:
        return Fused(function, options, fallback, target)
    return lambda plain: Fused(plain, options, fallback, target)
