"""What a launch costs the host, beside the bare call of the driver and beside Triton.

    OUT=results python3 benchmarks/gpu/launch_path.py

The same kernel, an elementwise sum in one block, is put on torch's current stream in one process:
by `cuLaunchKernelEx` of cuda-bindings with everything prepared, by the same function through
ctypes (with a pointer for each parameter, and with all in one buffer), by a bound launch, by
`kernel[grid, block](…)` with every guard, by the same `kernel[…]` kept, and by Triton's launch of a
kernel of the same arguments. Sides take turns; each turn is a batch without a synchronisation, and
the time of a launch is the median of the batches. `$OUT/launch_path.json` gets it all.
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
from typing import Any

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


def sides(count: int) -> dict[str, Callable[[], Any]]:
    """What is measured for so many tensors, each run once."""
    kernel = KERNELS[count]
    tensors = [torch.full(SHAPE, float(i + 1), device="cuda") for i in range(count)]
    for _ in range(8):
        kernel[1, THREADS](*tensors)
    torch.cuda.synchronize()
    assert torch.all(tensors[-1][0] == sum(range(1, count))).item()
    (form,) = kernel.calls.values()
    (plan,) = form.plans.values()  # type: ignore[attr-defined] # which the runtime's forms have
    values = [
        tensors[[*kernel.signature.by_name].index(name)].data_ptr()
        if kind == "pointer"
        else SHAPE[mode[0]]
        if kind == "size"
        else tensors[0].stride()[mode[0]]
        for kind, name, *mode in plan.ready.lowered.origins
    ]
    bound, kept = kernel[1, THREADS].bind(*tensors), kernel[1, THREADS]
    found = {
        "bare": bare(plan.ready.loaded, values),
        "bound": lambda: bound(*tensors),
        "unbound": lambda: kernel[1, THREADS](*tensors),
        "unbound, kernel[…] kept": lambda: kept(*tensors),
        "ctypes": through_ctypes(plan.ready.loaded, values, one_buffer=False),
        "ctypes, one buffer": through_ctypes(plan.ready.loaded, values, one_buffer=True),
        "bare again": bare(plan.ready.loaded, values),
    }
    triton = triton_launch(tensors)
    return found if triton is None else {**found, "Triton": triton}


def measured(found: dict[str, Callable[[], Any]], turns: int, batch: int) -> dict[str, list[float]]:
    """Microseconds of one launch, for each turn of each side."""
    times: dict[str, list[float]] = {name: [] for name in found}
    gc.disable()
    for _ in range(turns):
        for name, launch in found.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(batch):
                launch()
            times[name].append((time.perf_counter() - start) / batch * 1e6)
    gc.enable()
    torch.cuda.synchronize()
    return times


def main(words: list[str]) -> int:
    """Measure both numbers of tensors; exit code 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=101)
    parser.add_argument("--batch", type=int, default=200)  # below the 1024 that a stream holds
    options = parser.parse_args(words)
    report: dict[str, Any] = {"python": sys.version, "device": torch.cuda.get_device_name()}
    missed, lines = 0, []
    for count in KERNELS:
        times = measured(sides(count), options.turns, options.batch)
        medians = {name: statistics.median(each) for name, each in times.items()}
        report[str(count)] = {
            name: {"median_us": medians[name], "turns_us": each} for name, each in times.items()
        }
        for name, us in medians.items():
            over, target = us - medians["bare"], TARGETS_US.get((count, name))
            missed += target is not None and over > target
            wanted = "" if target is None else f"  at most +{target}"
            lines.append(f"{count} tensors  {name:26}{us:8.2f} µs {over:+7.2f}{wanted}")
    folder = Path(os.environ.get("OUT", "results"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "launch_path.json").write_text(json.dumps(report, indent=1))
    print("\n".join(lines))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
