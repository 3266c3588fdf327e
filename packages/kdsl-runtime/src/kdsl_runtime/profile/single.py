"""One launch on the GPU with the lines of its source, for a profiler to count.

    python -m kdsl_runtime.profile.single JSON

JSON is the recipe of `kdsl profile`: target, specs, statics, seed and sizes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kdsl_core.ir import target_of
from kdsl_core.lang.arguments import bind
from kdsl_core.lang.kernel import KernelFunction
from kdsl_core.lang.launch import cluster_of, extent
from kdsl_runtime import driver, recipe


def chosen(choices: Mapping[str, Any]) -> tuple[KernelFunction, dict[str, Any]]:
    """The kernel and the keyword arguments of `kd.simulate` that a recipe stands for.

    Raises: ArgumentError K750 … K753.
    """
    path, _, name = choices["target"].partition(":")
    module = recipe.load(Path(path))
    kernel = recipe.find(module, name)
    given = {what: recipe.sizes_of(text) for what, text in choices["sizes"].items()}
    arguments = recipe.arguments_of(choices["specs"], choices["statics"], choices["seed"])
    return kernel, recipe.launch_of(module, kernel, given, arguments)


def launch(kernel: KernelFunction, stated: Mapping[str, Any]) -> None:
    """Copy the arrays to the first GPU, launch once, and wait.

    Raises: KdslError of the build or of the driver.
    """
    from kdsl_runtime.assemble import AssembleOptions
    from kdsl_runtime.device_array import to_device
    from kdsl_runtime.launch import load

    def placed(value: Any) -> Any:
        return to_device(value) if isinstance(value, np.ndarray) else value

    args = [placed(value) for value in stated["args"]]
    kwargs = {name: placed(value) for name, value in stated.get("kwargs", {}).items()}
    bound = bind(kernel.signature, args, kwargs)
    sizes = stated["grid"]
    grid = extent(sizes(*args, **kwargs) if callable(sizes) else sizes, "grid")
    cluster = cluster_of(stated.get("cluster"), grid)
    traced = kernel.trace(bound, extent(stated["block"], "block"), cluster)
    module = kernel.built(traced, target_of(driver.device().target), lines=True)
    loaded = load(module, options=AssembleOptions(line_info=True))
    loaded.launch(grid, extent(stated["block"], "block"), traced.values(bound), cluster=cluster)
    with driver.on_device(0):
        driver.call("cuCtxSynchronize")


if __name__ == "__main__":
    launch(*chosen(json.loads(sys.argv[1])))
