# %% [markdown]
# # 04 · Tensor cores: an atom taken apart
#
# A tensor core multiplies small matrices whose elements lie in the registers of 32 threads. Which
# thread must hold which element is fixed by the instruction, and famously odd. In kdsl an
# instruction is a row of data, an **atom**: name, sizes, types, three layouts, mnemonic.

# %%
import ml_dtypes
import numpy as np

import kdsl_core as kd

atom = kd.atoms.SM80_16x8x16_F32BF16BF16F32_TN
print(atom.mnemonic)
print("M × N × K", atom.shape_mnk, "·", atom.threads, "threads, from", f"sm_{atom.need.sm} on")
for operand in "ABC":
    print(operand, atom.dtype(operand), atom.tv(operand))
atom

# %% [markdown]
# A is on the left, B above (drawn as K × N), C where they meet. T0V0 is value 0 of thread 0; a
# thread has one colour. Rows of C go to groups of four threads, and each thread has pairs of
# neighbours: that is what `(T,V)` strides say in a line.
#
# ## A second opinion
#
# The PTX manual states the same map in words: with `group = lane // 4` and `within = lane % 4`,
# value v of C is at row `group + 8·(v // 2)`, column `2·within + v % 2`. Two statements of one
# fact are worth comparing; the tests do so for every atom.

# %%
for lane in range(32):
    for v in range(4):
        row, column = lane // 4 + 8 * (v // 2), 2 * (lane % 4) + v % 2
        assert atom.tv_c(lane, v) == row + 16 * column  # first mode fastest, as in every layout
print("32 × 4 places agree with the formula")

# %% [markdown]
# ## Load it by hand
#
# One warp, one instruction. Each thread fetches its own eight elements of A and four of B,
# straight from the layouts, multiplies, and stores its four of C.


# %%
@kd.kernel
def by_hand(
    A: kd.Tensor["bf16", "16 16"], B: kd.Tensor["bf16", "8 16"], C: kd.Tensor["f32", "16 8"]
):
    mma = kd.tiled_mma(atom)
    a, b = mma.make_fragment_A((16, 16)), mma.make_fragment_B((8, 16))
    acc = mma.make_fragment_C((16, 8)).fill(0.0)
    lane = kd.lane_idx()
    group, within = lane // 4, lane % 4
    for v in range(8):
        a[v] = A[group + 8 * (v // 2 % 2), 2 * within + v % 2 + 8 * (v // 4)]
    for v in range(4):
        b[v] = B[group, 2 * within + v % 2 + 8 * (v // 2)]
    kd.gemm(mma, a, b, acc)  # acc += A · Bᵀ
    for v in range(4):
        C[group + 8 * (v // 2), 2 * within + v % 2] = acc[v]


rng = np.random.default_rng(0)
a, b = (rng.standard_normal((rows, 16)).astype(ml_dtypes.bfloat16) for rows in (16, 8))
c = np.empty((16, 8), np.float32)
by_hand[1, 32](a, b, c)
exact = a.astype(np.float64) @ b.astype(np.float64).T
print("largest error", np.abs(c - exact).max(), "at a largest element of", np.abs(exact).max())
np.testing.assert_allclose(c, exact, atol=1e-5)

# %% [markdown]
# ## Let the layouts do it
#
# `partition_A` is that index arithmetic, derived from the atom. The kernel says *what*, the atom
# *where*, and both give the same instructions for the product.


# %%
@kd.kernel
def by_layout(
    A: kd.Tensor["bf16", "16 16"], B: kd.Tensor["bf16", "8 16"], C: kd.Tensor["f32", "16 8"]
):
    mma = kd.tiled_mma(atom)
    part = mma.get_slice(kd.thread_rank())
    a, b = mma.make_fragment_A((16, 16)), mma.make_fragment_B((8, 16))
    acc = mma.make_fragment_C((16, 8)).fill(0.0)
    kd.copy(part.partition_A(A), a)
    kd.copy(part.partition_B(B), b)
    kd.gemm(mma, a, b, acc)
    kd.copy(acc, part.partition_C(C))


again = np.empty_like(c)
by_layout[1, 32](a, b, again)
assert (again == c).all()
loads = {}
for kernel in (by_hand, by_layout):
    ptx = kernel.ptx(a, b, c, block=32, target="sm_90a")
    loads[kernel.__name__] = ptx.count("ld.global"), ptx.count("mma.sync")
print("(loads, mma.sync):", loads)

# %% [markdown]
# The second loads pairs at once, because the layout proves that they are neighbours.
#
# ## How it rounds
#
# A tensor core does not add as a CPU does. It forms all products exactly, cuts each (and C) 25
# bits below the *largest* of them, adds, and truncates. So it keeps what a plain f32 loop loses
# one by one, and drops what is smaller still. The simulator follows these rules, recorded on an
# H200, to the bit.

# %%
a, b = np.zeros((16, 16), ml_dtypes.bfloat16), np.ones((8, 16), ml_dtypes.bfloat16)
for row, small in enumerate(2.0**-k for k in range(22, 28)):
    a[row, 0], a[row, 1:] = 1, small  # 1 + 15 · small
by_layout[1, 32](a, b, c)
print("1 + 15 · 2^-k    exact − 1    tensor core − 1    f32 sum one by one − 1")
for row, k in enumerate(range(22, 28)):
    one_by_one = np.float32(1)
    for _ in range(15):
        one_by_one = np.float32(one_by_one + np.float32(2.0**-k))
    print(f"k = {k:2}        {15 * 2.0**-k:12.4e} {c[row, 0] - 1:14.4e} {one_by_one - 1:20.4e}")

# %% [markdown]
# ## Tile it over warps
#
# Four warps as 2 × 2, and each warp's rows and columns next to each other: one line makes the
# instruction a 32 × 32 × 16 product of 128 threads.

# %%
mma = kd.tiled_mma(atom, warps=(2, 2), permutation=(32, 32))
print(mma.tile_shape, "by", mma.size, "threads")
mma

# %% [markdown]
# ## Feed it
#
# Fragments come from shared memory by `ldmatrix`: a warp fetches four 8 × 8 matrices, each lane
# naming one row of 16 bytes. From a plain tile the rows collide in the banks, under a swizzle they
# do not, and that can be known before there is a kernel.

# %%
read = kd.tiled_copy_A(kd.atoms.ldmatrix(4), mma)
plain = kd.Layout((64, 64), (64, 1))
swizzled = kd.ComposedLayout(kd.Swizzle(3, 3, 3), 0, plain)
for name, tile in (("plain", plain), ("swizzled", swizzled)):
    print(f"{name:8}", str(kd.inspect.bank_conflicts(read, tile)).splitlines()[0])
kd.svg(kd.ComposedLayout(kd.Swizzle(3, 3, 3), 0, kd.Layout((8, 64), (64, 1))), dtype=kd.bf16)

# %% [markdown]
# ## Others
#
# `kd.atoms.find` picks by types and chip; [the reference](../reference/atoms.md) has them all.

# %%
for a, acc, arch in (
    ("f16", "f32", "sm_80"),
    ("tf32", "f32", "sm_80"),
    ("i8", "i32", "sm_80"),
    ("e4m3", "f32", "sm_89"),
):
    print(f"{a:5} on {arch}: {kd.atoms.find(arch=arch, a=a, acc=acc).name}")

# %% [markdown]
# Now many of these, fed in time: [a pipelined GEMM](05_pipelined_gemm.py).
