"""A kernel loaded on a device, and its launch on the caller's stream."""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from types import ModuleType
from typing import Any

from kdsl_core.errors import ArgumentError, BuildError
from kdsl_core.lang import watch
from kdsl_runtime import driver, locking, metrics
from kdsl_runtime.arrays import current_stream
from kdsl_runtime.assemble import AssembleOptions, ResourceReport
from kdsl_runtime.builds import build, key_of
from kdsl_runtime.cache import Cache
from kdsl_runtime.ptx_module import PtxModule
from kdsl_runtime.resources import check_block
from kdsl_runtime.submission import Attribute, Dim3, Encode, Submission
from kdsl_runtime.toolchain import Toolchain, default_toolchain

_MOST_SUBMISSIONS = 1024
_PORTABLE_CLUSTER_BLOCKS = 8
_loaded: dict[Hashable, LoadedKernel] = {}
_guard = threading.Lock()


class LoadedKernel:
    """A kernel on one device, ready to launch.

    Threads: safe; the driver copies the arguments before a launch returns.
    """

    def __init__(
        self,
        module: PtxModule,
        function: Any,
        bindings: ModuleType,
        device: int = 0,
        report: ResourceReport | None = None,
        image: Any = None,
        launcher: Callable[..., int] | None = None,
    ) -> None:
        self.module = module
        self.function = function
        self.device = device
        self.report = report
        self._bindings = bindings
        self._image = image
        self._launcher = launcher or driver.launcher()
        # A CUfunction is a pointer; a reference costs ctypes less than a c_void_p does.
        self._handle = ctypes.byref(ctypes.c_char.from_address(int(function)))
        self._submissions: dict[Any, Submission] = {}
        self._launches = itertools.count()  # raised by C code at once, so that threads lose none

    @property
    def launches(self) -> int:
        """How often it was launched in this process."""
        return int(repr(self._launches)[len("count(") : -1])  # what the next one would be

    def launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        values: Sequence[Any],
        stream: int = 0,
        cluster: int | Sequence[int] | None = None,
        overlap: bool = False,
    ) -> None:
        """Put one launch on `stream` and return; nothing is waited for or allocated on the device.

        `overlap` lets it start before the launch ahead of it has ended (programmatic dependent
        launch); the kernel then waits itself.

        Memory: safe while the stream is captured into a graph.
        Raises: ArgumentError K653, K654, K656, K658; DriverError K803.
        """
        place = (
            grid if isinstance(grid, int) else tuple(grid),
            block if isinstance(block, int) else tuple(block),
            cluster if cluster is None or isinstance(cluster, int) else tuple(cluster),
            overlap,
        )
        found = self._submissions.get(place)
        if found is None:
            found = self.submission(*place)
            if len(self._submissions) >= _MOST_SUBMISSIONS:
                self._submissions.clear()
            self._submissions[place] = found
        bits = found.block.bits(values)
        try:
            found.submit(stream, *bits)
        except (struct.error, OverflowError) as problem:
            raise found.block.misfit(values) from problem

    def submission(
        self,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        cluster: int | tuple[int, ...] | None = None,
        overlap: bool = False,
        constants: Mapping[int, Any] | None = None,
        encode: tuple[int, Encode] | None = None,
        *,
        typed: bool = False,
    ) -> Submission:
        """What launches it again and again; `constants` are parameters that stay, by position.

        `encode` is the number of tensor maps, which are the last parameters, and what makes them.
        `typed` says that values have their parameters' types.
        Raises: ArgumentError K653, K656, K658.
        """
        blocks, threads = _dim3(grid, "grid"), _dim3(block, "block")
        if prod(threads) != self.module.threads:
            raise _wrong_threads(self.module, threads)
        return Submission(
            self.module.params,
            (blocks, threads, self.module.shared_bytes),
            self._attributes(None if cluster is None else _dim3(cluster, "cluster"), overlap),
            constants or {},
            (self._launcher, self._handle, self._failed, self._launches.__next__),
            encode,
            typed=typed,
        )

    def _failed(self, code: int, config: Any, pointers: Any) -> None:
        """Try again in a thread that has no context yet, or another device's.

        Raises: DriverError K803 for any other reason.
        """
        codes = self._bindings.CUresult
        if code in (codes.CUDA_ERROR_INVALID_CONTEXT, codes.CUDA_ERROR_INVALID_HANDLE):
            with driver.on_device(self.device):
                code = self._launcher(config, self._handle, pointers, None)
        driver.check(self._bindings, f"launch of {self.module.entry}", (codes(code),))

    def _attributes(self, cluster: Dim3 | None, overlap: bool) -> list[Attribute]:
        """The launch attributes for a cluster shape and for an early start."""
        ids, attributes = self._bindings.CUlaunchAttributeID, []
        if cluster is not None:
            if prod(cluster) > _PORTABLE_CLUSTER_BLOCKS:
                kinds = self._bindings.CUfunction_attribute
                allowed = kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
                driver.call("cuFuncSetAttribute", self.function, allowed, 1)
            number = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attributes.append(Attribute.of(number, *cluster))
        if overlap:
            number = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attributes.append(Attribute.of(number, 1))
        return attributes


def load(
    module: PtxModule,
    device: int = 0,
    *,
    toolchain: Toolchain | None = None,
    options: AssembleOptions | None = None,
    cache: Cache | None = None,
    origin: watch.Origin | None = None,
) -> LoadedKernel:
    """`module` on `device`: from this process's table, the cache, or assembled now.

    `origin` is the kernel and the specialisation that it is the PTX of.

    Threads: safe. Memory: allowed during graph capture, but slow; load before.
    Raises: BuildError (K743 and K744 in a locked process), ResourceError, DriverError.
    """
    toolchain = toolchain or default_toolchain()
    options = options or AssembleOptions()
    key = key_of(module, toolchain, options)
    # Dynamic shared memory and parameter names need not show in the text that the key covers.
    place = (key, module.shared_bytes, module.threads, module.params, device)
    found = _loaded.get(place)
    if found is None:
        _check_target(module, device)
        image, report = _image(module, toolchain, options, cache, origin)
        locking.verify(module, image, origin)
        loaded = _load_on_device(module, image, report, device)
        with _guard:
            found = _loaded.setdefault(place, loaded)
    return found


def loaded_kernels() -> list[LoadedKernel]:
    """Those of this process."""
    return list(_loaded.values())


def run(
    module: PtxModule,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    values: Sequence[Any],
    *,
    device: int = 0,
    stream: int | None = None,
    cluster: int | Sequence[int] | None = None,
) -> LoadedKernel:
    """Load `module` on `device` and launch it on `stream`, by default the caller's current one."""
    kernel = load(module, device)
    kernel.launch(
        grid, block, values, current_stream(device) if stream is None else stream, cluster
    )
    return kernel


def _image(
    module: PtxModule,
    toolchain: Toolchain,
    options: AssembleOptions,
    cache: Cache | None,
    origin: watch.Origin | None,
) -> tuple[bytes, ResourceReport | None]:
    if toolchain.is_driver_jit:
        check_block(module, module.target)
        return module.text.encode(), None
    entry = build(module, toolchain=toolchain, options=options, cache=cache, origin=origin)
    return entry.payload, ResourceReport.from_json(entry.metadata["report"])


def _load_on_device(
    module: PtxModule, image: bytes, report: ResourceReport | None, device: int
) -> LoadedKernel:
    loaded = driver.load_module(image, device)
    function = driver.kernel_function(loaded, module.entry, device, module.shared_bytes)
    metrics.add("kernels_loaded")
    return LoadedKernel(module, function, driver.require_driver(), device, report, loaded)


def _check_target(module: PtxModule, device: int) -> None:
    has = driver.device(device)
    wanted = module.target.removeprefix("sm_")
    exact, number = wanted.endswith("a"), int(wanted.rstrip("af"))
    major, minor = number // 10, number % 10
    same = has.capability == (major, minor)
    if not same and (exact or major != has.capability[0] or minor > has.capability[1]):
        raise BuildError(
            f"kernel {module.entry} was built for {module.target}, device {device} "
            f"({has.name}) is {has.target}",
            code="K709",
            fix=f"build it for target={has.target!r}",
        )


@functools.lru_cache(maxsize=4096)
def _dim3(sizes: int | tuple[int, ...], what: str) -> Dim3:
    given = (sizes,) if isinstance(sizes, int) else sizes
    if not 1 <= len(given) <= 3 or any(size < 1 for size in given):
        raise ArgumentError(
            f"expected {what} to be one to three sizes of at least 1, got {sizes!r}",
            code="K656",
            fix="an empty grid is no launch: leave the call out",
        )
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def _wrong_threads(module: PtxModule, block: Dim3) -> ArgumentError:
    return ArgumentError(
        f"kernel {module.entry} was built for {module.threads} threads per block, "
        f"got block {block} = {prod(block)} threads",
        code="K658",
        fix="launch it with the block that it was traced with",
    )
