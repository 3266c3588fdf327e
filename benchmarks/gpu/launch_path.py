"""What a launch costs the host, beside the bare call of the driver and beside Triton.

    OUT=results python3 benchmarks/gpu/launch_path.py

The same kernel, an elementwise sum in one block, is put on torch's current stream in one process:
by `cuLaunchKernelEx` of cuda-bindings with everything prepared, by the same function through
ctypes (with a pointer for each parameter, and with all in one buffer), by a bound launch, by
`kernel[grid, block](…)` with every guard, by the same `kernel[…]` kept, and by Triton's launch of a
kernel of the same arguments. Calls are written out with their tensors, as in a program; "in turns"
is on two sets of tensors alternately, where a launch cannot use what the one before has written.

Every side of both numbers of tensors has a turn in each round, after rounds that do not count: a
batch without a synchronisation. A row is the median, over the rounds, of what a launch took more
than the bare calls of the same round, so that a host that is slow for a while is slow for all.
`$OUT/launch_path.json` gets it all.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kdsl_runtime import driver
from kdsl_runtime.launch import LoadedKernel
from kdsl_runtime.parameters import ParameterBlock
from kdsl_runtime.submission import Config

sys.path.insert(0, str(Path(__file__).parents[1]))
from launch_kernels import KERNELS, SHAPE, THREADS  # the folder above

TARGETS_US = {(3, "bound"): 1.5, (8, "bound"): 1.5, (3, "unbound"): 3.0, (8, "unbound"): 6.0}


def bare(loaded: LoadedKernel, values: list[Any]) -> Callable[[], Any]:
    """The driver's call through cuda-bindings, with all that it takes prepared."""
    cuda = driver.require_driver()
    block = ParameterBlock(loaded.module.params)
    memory = ctypes.create_string_buffer(block.pack(values), block.size)
    base = ctypes.addressof(memory)
    pointers = (ctypes.c_void_p * len(values))(*(base + offset for offset in block.offsets))
    config = cuda.CUlaunchConfig()
    config.gridDimX = config.gridDimY = config.gridDimZ = 1
    config.blockDimX, config.blockDimY, config.blockDimZ = THREADS, 1, 1
    config.hStream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
    address, function, call = ctypes.addressof(pointers), loaded.function, cuda.cuLaunchKernelEx

    def launch(held: Any = (memory, pointers)) -> Any:
        return call(config, function, address, 0)

    (code,) = launch()
    assert code == 0, code
    return launch


def through_ctypes(
    loaded: LoadedKernel, values: list[Any], *, one_buffer: bool
) -> Callable[[], Any]:
    """The driver's call through ctypes, with pointers to the parameters or with their bytes."""
    block = ParameterBlock(loaded.module.params)
    memory = ctypes.create_string_buffer(block.pack(values), block.size)
    base = ctypes.addressof(memory)
    pointers = (ctypes.c_void_p * len(values))(*(base + offset for offset in block.offsets))
    size = ctypes.c_size_t(block.size)
    extra = (ctypes.c_void_p * 5)(1, base, 2, ctypes.addressof(size), 0)  # CU_LAUNCH_PARAM_…
    config = Config((1, 1, 1), (THREADS, 1, 1), 0, torch.cuda.current_stream().cuda_stream)
    function = ctypes.byref(ctypes.c_char.from_address(int(loaded.function)))
    given = (None, ctypes.byref(extra)) if one_buffer else (ctypes.byref(pointers), None)
    call, stated, (first, second) = driver.launcher(), ctypes.byref(config), given

    def launch(held: Any = (memory, size)) -> Any:
        return call(stated, function, first, second)

    assert launch() == 0
    return launch


def triton_launch(tensors: list[Any]) -> Callable[[], Any] | None:
    """Triton's launch of a kernel with the same tensors and sizes; None without Triton."""
    try:
        import triton_sums
    except ImportError:
        return None
    kernel = triton_sums.BY_COUNT[len(tensors)]
    m, n = SHAPE

    def launch() -> Any:
        return kernel[(1,)](*tensors, m, n, BLOCK=THREADS)

    launch()
    return launch


def written_out(call: str, function: Any, *sets: list[Any]) -> Callable[[], Any]:
    """A function that makes `call` on each set of tensors, as one line of a program would."""
    names = [[f"x{i}_{j}" for j in range(len(tensors))] for i, tensors in enumerate(sets)]
    lines = "; ".join(f"{call}({', '.join(each)})" for each in names)
    given = ", ".join(name for each in names for name in each)
    space: dict[str, Any] = {}
    exec(f"def make(f, threads, {given}):\n def launch():\n  {lines}\n return launch", space)
    made: Callable[[], Any] = space["make"](function, THREADS, *(t for each in sets for t in each))
    return made


class Side(NamedTuple):
    """What is measured: a function, and how many launches it makes."""

    launch: Callable[[], Any]
    launches: int = 1


def sides(count: int) -> dict[str, Side]:
    """What is measured for so many tensors, each run once."""
    kernel = KERNELS[count]
    first, second = (
        [torch.full(SHAPE, float(i + 1), device="cuda") for i in range(count)] for _ in range(2)
    )
    for tensors in (first, second) * 4:
        kernel[1, THREADS](*tensors)
    torch.cuda.synchronize()
    assert all(torch.all(each[-1][0] == sum(range(1, count))).item() for each in (first, second))
    (form,) = kernel.calls.values()
    (plan,) = form.plans.values()  # type: ignore[attr-defined] # which the runtime's forms have
    values = [
        first[[*kernel.signature.by_name].index(name)].data_ptr()
        if kind == "pointer"
        else SHAPE[mode[0]]
        if kind == "size"
        else first[0].stride()[mode[0]]
        for kind, name, *mode in plan.ready.lowered.origins
    ]
    bound, kept = kernel[1, THREADS].bind(*first), kernel[1, THREADS]
    found = {
        "bare": Side(bare(plan.ready.loaded, values)),
        "bound": Side(written_out("f", bound, first)),
        "bound, in turns": Side(written_out("f", bound, first, second), 2),
        "unbound": Side(written_out("f[1, threads]", kernel, first)),
        "unbound, in turns": Side(written_out("f[1, threads]", kernel, first, second), 2),
        "unbound, kernel[…] kept": Side(written_out("f", kept, first)),
        "ctypes": Side(through_ctypes(plan.ready.loaded, values, one_buffer=False)),
        "ctypes, one buffer": Side(through_ctypes(plan.ready.loaded, values, one_buffer=True)),
        "bare again": Side(bare(plan.ready.loaded, values)),
    }
    triton = triton_launch(first)
    return found if triton is None else {**found, "Triton": Side(triton)}


Key = tuple[int, str]


def measured(found: dict[Key, Side], rounds: int, batch: int) -> dict[Key, list[float]]:
    """Microseconds of one launch, for each round of each side."""
    times: dict[Key, list[float]] = {key: [] for key in found}
    gc.disable()
    for _ in range(rounds):
        for key, side in found.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(batch // side.launches):
                side.launch()
            times[key].append((time.perf_counter() - start) / batch * 1e6)
    gc.enable()
    torch.cuda.synchronize()
    return times


def over_bare(times: dict[Key, list[float]], key: Key) -> float:
    """Median over the rounds of the difference to the mean of the round's bare calls."""
    bares = zip(times[key[0], "bare"], times[key[0], "bare again"], strict=True)
    return statistics.median(
        us - statistics.mean(pair) for us, pair in zip(times[key], bares, strict=True)
    )


def main(words: list[str]) -> int:
    """Measure both numbers of tensors; exit code 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=201)
    parser.add_argument("--warm-up", type=int, default=40, help="rounds that do not count")
    parser.add_argument("--batch", type=int, default=200)  # below the 1024 that a stream holds
    options = parser.parse_args(words)
    found = {(count, name): side for count in KERNELS for name, side in sides(count).items()}
    measured(found, options.warm_up, options.batch)
    times = measured(found, options.rounds, options.batch)
    report: dict[str, Any] = {"python": sys.version, "device": torch.cuda.get_device_name()}
    missed, lines = 0, []
    for (count, name), each in times.items():
        over, median = over_bare(times, (count, name)), statistics.median(each)
        row = {"median_us": median, "over_bare_us": over, "rounds_us": [round(t, 3) for t in each]}
        report.setdefault(str(count), {})[name] = row
        target = TARGETS_US.get((count, name))
        missed += target is not None and over > target
        wanted = "" if target is None else f"  at most +{target}"
        lines.append(f"{count} tensors  {name:26}{median:8.2f} µs {over:+7.2f}{wanted}")
    folder = Path(os.environ.get("OUT", "results"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "launch_path.json").write_text(json.dumps(report, indent=1))
    print("\n".join(lines))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
