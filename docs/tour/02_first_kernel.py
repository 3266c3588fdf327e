# %% [markdown]
# # 02 · A first kernel, in the simulator
#
# A kernel is a Python function. Called with NumPy arrays it runs in a simulated GPU, which is
# slow, exact and suspicious: it checks every access of every thread against what GPU hardware
# promises.

# %%
import numpy as np

import kdsl_core as kd

BLOCK = 128


@kd.kernel
def axpy(a: kd.f32, x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"]):
    """y = a · x + y, one element a thread."""
    i = kd.block_idx()[0] * BLOCK + kd.thread_idx()[0]
    if i < x.shape[0]:
        y[i] = a * x[i] + y[i]


rng = np.random.default_rng(0)
x, y = (rng.standard_normal(1000).astype(np.float32) for _ in range(2))
expected = 2 * x + y
axpy[kd.ceil_div(1000, BLOCK), BLOCK](2.0, x, y)  # [grid, block](arguments)
np.testing.assert_array_equal(y, expected)
print("8 blocks of 128 threads computed", y.size, "elements")

# %% [markdown]
# ## Three kinds of code
#
# The function ran **once**, to be traced. What works on Python values is done then; what works on
# scalars and tensors becomes the kernel. So `for i in range(4)` is unrolled, `for i in
# kd.range(n)` is a loop on the GPU, and you can look at what was recorded:

# %%
ir = axpy.ir(2.0, x, y, block=BLOCK)
print(ir)

# %% [markdown]
# ## Forget the edge
#
# 1000 is no multiple of 128. Without the `if`, the last 24 threads write past the end. On a GPU
# that may go unnoticed for months; here it is an error at your line.


# %%
@kd.kernel
def careless(a: kd.f32, x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"]):
    i = kd.block_idx()[0] * BLOCK + kd.thread_idx()[0]
    y[i] = a * x[i] + y[i]


try:
    careless[8, BLOCK](2.0, x, y)
except kd.HazardError as error:
    print(error)

# %% [markdown]
# ## Forget the barrier
#
# Threads of a block share memory. This kernel turns 128 numbers around through it, and one line is
# missing: nobody waits until the others have written.


# %%
@kd.kernel
def reverse(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], sync: kd.Static = False):
    tile = kd.smem(kd.f32, BLOCK, name="tile")
    i = kd.thread_idx()[0]
    tile[i] = x[i]
    if sync:  # a Python value: decided while tracing
        kd.sync_threads()
    y[i] = tile[BLOCK - 1 - i]


x, y = np.arange(BLOCK, dtype=np.float32), np.empty(BLOCK, np.float32)
result = kd.simulate(reverse, grid=1, block=BLOCK, args=(x, y), on_hazard="collect")
print("the numbers are", "right" if (result.outputs[1] == x[::-1]).all() else "wrong")
print(result.hazards[0])

# %% [markdown]
# The numbers came out right, and the kernel is wrong: a hazard is about *order*, and nothing
# orders the write of thread 127 before the read of thread 0. The report names both lines, the
# element by its coordinate, and the word that is missing. With it:

# %%
reverse[1, BLOCK](x, y, sync=True)
np.testing.assert_array_equal(y, x[::-1])
print("no hazard")

# %% [markdown]
# ## Count what it costs
#
# A transpose reads rows and writes columns. Through a shared tile both sides of global memory see
# rows, but then somebody reads a column of the tile, and the first essay said what that costs.

# %%
TILE, STEP = 32, 8


@kd.kernel
def transpose(x: kd.Tensor["f32", "m n"], y: kd.Tensor["f32", "n m"], swizzle: kd.Static):
    layout = kd.Layout((TILE, TILE), (TILE, 1))
    if swizzle:
        layout = kd.ComposedLayout(kd.Swizzle(5, 0, 5), 0, layout)
    tile = kd.smem(kd.f32, layout, name="tile")
    column, row = kd.thread_idx()[0] % TILE, kd.thread_idx()[0] // TILE
    bx, by = kd.block_idx()[:2]
    for step in range(0, TILE, STEP):
        tile[row + step, column] = x[by * TILE + row + step, bx * TILE + column]
    kd.sync_threads()
    for step in range(0, TILE, STEP):
        y[bx * TILE + row + step, by * TILE + column] = tile[column, row + step]


x = rng.standard_normal((64, 64)).astype(np.float32)
y = np.empty_like(x)
launch = {"grid": (2, 2), "block": TILE * STEP, "args": (x, y)}
for swizzle in (False, True):
    result = kd.simulate(transpose, **launch, kwargs={"swizzle": swizzle})
    np.testing.assert_array_equal(result.outputs[1], x.T)
    taken, ideal = (result.profile.totals[n] for n in ("wavefronts", "ideal_wavefronts"))
    print(f"swizzle {swizzle!s:5}: {taken:5.0f} passes through shared memory, {ideal:.0f} needed")

# %% [markdown]
# The same counts stand beside the source, line by line, with the least time that a real device
# would need. Without the swizzle one line is the whole story:

# %%
before = kd.inspect.report(transpose, **launch, kwargs={"swizzle": False}, device="H200")
print(before.roofline)
before

# %% [markdown]
# With it, every line is at its least, and the bound is what the passes must take:

# %%
after = kd.inspect.report(transpose, **launch, kwargs={"swizzle": True}, device="H200")
print(after.roofline)
fewer = before.totals["wavefronts"] / after.totals["wavefronts"]
print(f"{fewer:.1f} times fewer passes")

# %% [markdown]
# `kdsl inspect examples/transpose.py` prints such a report for a kernel in a file, and
# [testing](../testing.md) says how a test of a kernel is three lines. What the GPU would get is
# next: [reading PTX, registers and SASS](03_reading_ptx.py).
