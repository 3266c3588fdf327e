"""One life of a process that launches a Hopper GEMM, step by step; prints seconds as JSON.

    python3 benchmarks/startup_steps.py SPAWNED [--gpu [--open]] [--largest] [--next] [--ptxas]
        [--cpu]

The GEMM is the one that kdsl chooses for `SIZE`, or with `--largest` that of the largest tile. The
cache is the one that $KDSL_CACHE_DIR names. SPAWNED is `time.time()` before the process was
started. Without `--gpu` it ends when the machine code is there. With `--open` the first thing is
`kr.open_device()`, so that the driver starts while the rest goes on. With `--next` another
configuration is built first, so that all modules are there; `--ptxas` calls it once more on the
same PTX. With `--cpu` seconds are those of processors, in this process and in those that it
started. It imports as little as it can itself.
"""

import resource
import sys
import time
from typing import Any

STEPS: dict[str, float] = {}
SIZE = 1024  # rows and columns of all matrices


def now() -> float:
    """Seconds since some moment, of the clock or of processors."""
    if "--cpu" not in sys.argv:
        return time.perf_counter()
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


_start = now()


def done(step: str) -> None:
    """The step that ends here."""
    global _start
    STEPS[step] = now() - _start
    _start = now()


def main(options: list[str]) -> None:
    """Import, find or build, and launch."""
    if "--open" in options:
        import kdsl_runtime

        kdsl_runtime.open_device()
        done("open")
    import ml_dtypes  # noqa: F401 - its time is NumPy's

    done("numpy")
    from dataclasses import replace

    import kdsl_runtime as kr
    from kdsl_core import bf16
    from kdsl_fuse.kernels import gemm_sm90_plan
    from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config

    done("kdsl imports")
    plan = gemm_sm90_plan.choose(SIZE, SIZE, SIZE, bf16)
    done("plan")
    if "--next" in options:
        kr.build(lowered_by(replace(plan, config=Sm90Config((128, 128, 64), 4))).module)
        done("another")
    if "--largest" in options:
        plan = replace(plan, config=Sm90Config((128, 256, 64), 4))
    lowered = lowered_by(plan)
    done("PTX")
    kr.build(lowered.module)
    done("machine code")
    if "--ptxas" in options:
        from kdsl_runtime.ptxas import run_ptxas

        module, assembler = lowered.module, kr.find_toolchain()
        run_ptxas(module.text, module.entry, module.target, assembler, kr.AssembleOptions())
        done("ptxas")
    if "--gpu" in options:
        launch(plan, lowered.module)


def lowered_by(plan: Any) -> Any:
    """PTX of the kernel of a plan."""
    import kdsl_core as kd
    from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90, identity

    config = plan.config
    specs = [kd.spec("bf16", (SIZE, SIZE)) for _ in range(3)]
    options = {"block": config.threads, "cluster": plan.cluster}
    needed = gemm_sm90.specialisation(*specs, **options, epilogue=identity, config=config)
    return gemm_sm90.lowered(needed, "sm_90a")


def launch(plan: Any, module: Any) -> None:
    """Load and launch the kernel of a plan."""
    from cuda.bindings import driver  # noqa: F401 - only its time counts

    done("cuda.bindings")
    import kdsl_core as kd
    import kdsl_runtime as kr
    from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90, identity

    kr.require_driver()
    done("cuInit")
    kr.driver.primary_context(0)
    with kr.driver.on_device(0):
        pass
    done("context")
    arrays = [kr.DeviceArray((SIZE, SIZE), kd.bf16) for _ in range(3)]
    done("arrays")
    kr.load(module, 0)
    done("module load")
    config = plan.config
    run = gemm_sm90.configure(grid=plan.grid, block=config.threads, cluster=plan.cluster)
    run(*arrays, epilogue=identity, config=config)
    done("launch")
    kr.driver.call("cuCtxSynchronize")
    done("run")


if __name__ == "__main__":
    STEPS["interpreter"] = time.time() - float(sys.argv[1])
    main(sys.argv[2:])
    STEPS["modules"] = len(sys.modules)
    import json

    print(json.dumps(STEPS))
