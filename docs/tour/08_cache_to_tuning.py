# %% [markdown]
# # 08 · Cache, warm-up, pins, tuning
#
# A kernel that is right and fast today must start at once tomorrow, and must not change because a
# machine has another assembler. Four small steps see to that; a fifth finds the fastest
# configuration. No step here needs a GPU. The program is a file of its own, as yours will be:

# %%
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

WORK = Path(tempfile.mkdtemp())
os.environ["KDSL_CACHE_DIR"] = str(WORK / "cache")
APP = """
import numpy as np

import kdsl_core as kd


@kd.kernel
def scale(x: kd.Tensor["f32|f16", "n"], y: kd.Tensor["=x", "n"], by: kd.f32, each: kd.Static = 4):
    first = (kd.block_idx()[0] * 128 + kd.thread_idx()[0]) * each
    for i in range(each):
        if first + i < kd.size(x):
            y[first + i] = x[first + i] * by.to(x.dtype)


def answer(x):
    y = np.empty_like(x)
    scale[-(-x.size // 512), 128](x, y, 0.5)
    return y
"""
(WORK / "app.py").write_text(APP)
sys.path.insert(0, str(WORK))

import app

import kdsl_core as kd
import kdsl_runtime as kr


def shell(*words):
    """What a command prints, run in the program's folder."""
    done = subprocess.run(words, cwd=WORK, capture_output=True, text=True, check=False)
    print(done.stdout.strip(), f"[exit code {done.returncode}]")


def kdsl(*words):
    """The command `kdsl`."""
    print("$ kdsl", *words)
    shell(sys.executable, "-m", "kdsl_runtime.cli", *words)


# %% [markdown]
# ## What is built for what
#
# Sizes are not part of a kernel; facts about them are. `keys` says what a call needs, and
# `explain_key` which argument made two calls differ.

# %%
even, odd = np.ones(4096, np.float32), np.ones(1001, np.float32)
for x in (even, odd):
    print(*app.scale.keys(x, x, 0.5, block=128))
print(app.scale.explain_key((even, even, 0.5), (odd, odd, 0.5)))

# %% [markdown]
# ## The cache
#
# Building is two steps, Python → PTX and PTX → machine code, and the disk remembers both. A second
# process neither traces nor assembles:

# %%
BUILD = """
import numpy as np
import app
import kdsl_runtime as kr
x = np.ones(4096, np.float32)
cubin = app.scale.cubin(x, x, 0.5, block=128, target="sm_90a")
seen = kr.metrics.snapshot()
print(len(cubin), "bytes;", {name: int(seen[name]) for name in ("builds", "disk_hits", "misses")})
"""
for process in ("first", "second"):
    print(process, "process:", end=" ", flush=True)
    shell(sys.executable, "-c", BUILD)

# %% [markdown]
# What invalidates an entry is *content*: the kernel and every helper, global and file that tracing
# it read, the assembler, kdsl itself. Never a comment, a path or a date ([cache](../cache.md)).
#
# ## Record, and warm up
#
# Run the program once, wherever. What it launched is written down as facts, in a file for reviews.

# %%
with kr.record(WORK / "manifest.toml", target="sm_90a"):
    app.answer(even)
    app.answer(np.ones(4096, np.float16))
print((WORK / "manifest.toml").read_text())

# %% [markdown]
# The image is built where there is no GPU; then every kernel is in it:

# %%
kdsl("warmup", "manifest.toml", "--target", "sm_90a", "-j", "1")

# %% [markdown]
# ## Freeze
#
# A process that serves should not build. Frozen, it refuses, and says what is new about the key:

# %%
with kr.freeze():
    app.answer(np.ones(512, np.float32))  # the same facts: nothing to build
    try:
        app.answer(np.ones(1001, np.float32))
    except kd.BuildError as error:
        print(error.message)

# %% [markdown]
# ## Pin, and check
#
# A pin is what a kernel was when you found it good: hashes, registers, spills, and a digest of its
# numbers from the simulator. `kdsl check` builds everything anew and ranks what changed.

# %%
kdsl("pin", "manifest.toml", "-j", "1")

# %% [markdown]
# Now somebody makes the kernel "more exact": multiply in f32, round once. For f32 nothing changes;
# for f16 the check lists what does, the worst first, and its exit code says how bad it is:

# %%
(WORK / "app.py").write_text(
    APP.replace("x[first + i] * by.to(x.dtype)", "(x[first + i].to(kd.f32) * by).to(x.dtype)")
)
kdsl("check", "-j", "1")

# %% [markdown]
# ## Tune
#
# What may be chosen is a **space** beside the kernel: options, launches, what is right. The tuner
# builds all, runs each once against the reference, times by turns, and remembers the winner.
# Without a GPU a roofline over the simulator's counters stands in for the clock.

# %%
from kdsl_runtime.tune import Budget, Call, Inline, Predicted, Problem, Space, find_best


@kd.kernel
def transpose(
    x: kd.Tensor["f32", "m n"], y: kd.Tensor["f32", "n m"], tile: kd.Static, pad: kd.Static
):
    shared = kd.smem(kd.f32, kd.Layout((tile, tile), (tile + pad, 1)))
    bx, by, _ = kd.block_idx()
    column, row, _ = kd.thread_idx()
    for i in range(0, tile, 8):
        shared[row + i, column] = x[by * tile + row + i, bx * tile + column]
    kd.sync_threads()
    for i in range(0, tile, 8):
        y[bx * tile + row + i, by * tile + column] = shared[column, row + i]


def tensors(problem):
    m, n = problem.size("m"), problem.size("n")
    return {"x": kd.spec("f32", (m, n)), "y": kd.spec("f32", (n, m))}


def calls(problem, config, arrays):
    tile = config["tile"]
    launch = transpose[(problem.size("n") // tile, problem.size("m") // tile), (tile, 8)]
    return [Call(launch, (arrays["x"], arrays["y"]), config)]


space = Space(
    "transpose",
    options={"tile": (32, 64, 128), "pad": (0, 1)},
    constraints=(
        lambda problem, config: (
            None
            if problem.size("n") % config["tile"] == 0
            else f"n is no multiple of {config['tile']}"
        ),
    ),
    tensors=tensors,
    calls=calls,
    reference=lambda problem, arrays: {"y": arrays["x"].T},
    bound=0.0,
)
problem = Problem.of(m=128, n=192, dtype="f32")
(outcome,) = find_best(
    space, [problem], Predicted("NVIDIA H200"), executor=Inline(), budget=Budget(points=8)
)
for record in sorted(outcome.records, key=lambda record: record.trial.us if record.trial else 9e9):
    print(record.config, f"{record.trial.us:.3f} µs, error {record.trial.error}")
print("out:", dict(outcome.reasons))
print("best:", outcome.winner.config)
assert outcome.winner.config["pad"] == 1

# %% [markdown]
# Padding wins, for the reason of the first essay: without it a column of the tile is one bank.
# With a GPU the same search measures (`kdsl tune`), and a table keeps the winners
# ([tuning](../tuning.md)). How all of this runs as a routine, from profile to guarded release:
# [the workflow](../workflow.md).
