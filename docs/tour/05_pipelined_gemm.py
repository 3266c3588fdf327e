# %% [markdown]
# # 05 · A pipelined GEMM, and its hazards
#
# A fast matrix product fetches the next tiles while it multiplies the present ones. That is where
# GPU code goes wrong: the numbers are right in every test until a clock, a driver or a shape
# changes. Here is such a kernel, then two classic mistakes, planted; then what it costs.

# %%
import ml_dtypes
import numpy as np

import kdsl_core as kd

M, N, K = TILE = (64, 64, 32)
STAGES = 3
MMA = kd.tiled_mma(kd.atoms.SM80_16x8x16_F32BF16BF16F32_TN, warps=(2, 2), permutation=(32, 32))
THREADS = MMA.size

# %% [markdown]
# ## The parts
#
# **Fill.** 128 threads copy a 64 × 32 tile with `cp.async`, 16 bytes each: the copy goes to shared
# memory without passing through registers, and the thread goes on at once. **Ring.** Three stages,
# swizzled. **Read.** `ldmatrix`, from essay 4. That filling and reading both meet no bank conflict
# is a property of the layouts:

# %%
FILL = kd.tiled_copy(kd.atoms.cp_async(16), kd.bf16, kd.Layout((32, 4), (4, 1)), kd.Layout((1, 8)))
READ_A = kd.tiled_copy_A(kd.atoms.ldmatrix(4), MMA)
READ_B = kd.tiled_copy_B(kd.atoms.ldmatrix(4), MMA)
RING = kd.collective.shared_tile(kd.bf16, M, K, contiguous=1, stages=STAGES)
print("ring:", RING)
stage = kd.ComposedLayout(RING.outer, 0, kd.Layout((M, K), (K, 1)))
for name, access in (("fill", FILL), ("read A", READ_A)):
    print(f"{name:7}", kd.inspect.bank_conflicts(access, stage))
FILL

# %% [markdown]
# ## The kernel
#
# `cp_async_commit` closes a group of copies; `cp_async_wait(n)` waits until at most the last `n`
# groups are unfinished. With three stages two groups are under way when the loop begins, so one
# may stay unfinished while the first is read. Then a barrier: a thread has waited for *its own*
# copies only, and reads what others have copied.


# %%
@kd.kernel
def gemm(
    A: kd.Tensor["bf16", "m k"],
    B: kd.Tensor["bf16", "n k"],
    C: kd.Tensor["f32", "m n"],
    unfinished: kd.Static = STAGES - 2,
    barrier: kd.Static = True,
):
    """C = A · Bᵀ for whole tiles."""
    bm, bn, _ = kd.block_idx()
    thread = kd.thread_rank()
    a, b = kd.smem(A.dtype, RING, name="a"), kd.smem(B.dtype, RING, name="b")

    fill = FILL.get_slice(thread)
    from_a = fill.partition_S(kd.local_tile(A, (M, K), (bm, None)))
    from_b = fill.partition_S(kd.local_tile(B, (N, K), (bn, None)))
    to_a, to_b = fill.partition_D(a), fill.partition_D(b)

    read_a, read_b = READ_A.get_slice(thread), READ_B.get_slice(thread)
    a_part, b_part = read_a.partition_S(a), read_b.partition_S(b)
    a_held, b_held = MMA.make_fragment_A((M, K)), MMA.make_fragment_B((N, K))
    acc = MMA.make_fragment_C((M, N)).fill(0.0)

    steps = kd.ceil_div(A.shape[1], K)
    for stage in range(STAGES - 1):  # unrolled: the first two tiles
        kd.copy(from_a[..., stage], to_a[..., stage], atom=FILL)
        kd.copy(from_b[..., stage], to_b[..., stage], atom=FILL)
        kd.cp_async_commit()
    for k in kd.range(steps):
        kd.cp_async_wait(unfinished)
        if barrier:
            kd.sync_threads()
        ahead = k + STAGES - 1
        if ahead < steps:  # into the stage that everybody has read one step ago
            kd.copy(from_a[..., ahead], to_a[..., ahead % STAGES], atom=FILL)
            kd.copy(from_b[..., ahead], to_b[..., ahead % STAGES], atom=FILL)
        kd.cp_async_commit()
        kd.copy(a_part[..., k % STAGES], read_a.retile(a_held), atom=READ_A)
        kd.copy(b_part[..., k % STAGES], read_b.retile(b_held), atom=READ_B)
        kd.gemm(MMA, a_held, b_held, acc)
    kd.cp_async_wait(0)
    kd.copy(acc, MMA.get_slice(thread).partition_C(kd.local_tile(C, (M, N), (bm, bn))))


rng = np.random.default_rng(0)
m, n, k = 128, 128, 256
a, b = (rng.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
c = np.empty((m, n), np.float32)
launch = {"grid": (m // M, n // N), "block": THREADS, "args": (a, b, c)}
result = kd.simulate(gemm, **launch, on_hazard="collect")
exact = a.astype(np.float64) @ b.astype(np.float64).T
np.testing.assert_allclose(result.outputs[2], exact, rtol=1e-5, atol=1e-4)
print("largest error", np.abs(result.outputs[2] - exact).max(), "·", len(result.hazards), "hazards")
assert not result.hazards


# %% [markdown]
# ## Mistake one: wait for one group too few
#
# `cp_async_wait(2)` instead of `1`. The tile that is read may still be on its way. On a GPU it has
# usually arrived, since memory is fast and there were other things to do.


# %%
def planted(**mistake):
    """What the simulator says of a wrong version, and whether its numbers were wrong."""
    found = kd.simulate(gemm, **launch, kwargs=mistake, on_hazard="collect")
    wrong = np.abs(found.outputs[2] - exact).max() > 1e-3
    print(f"{len(found.hazards)} hazards; the numbers are {'wrong' if wrong else 'right'} here")
    return found


found = planted(unfinished=STAGES - 1)
print(found.hazards[0])
assert {hazard.code for hazard in found.hazards} == {"inflight"}

# %% [markdown]
# An asynchronous copy counts as finished at the latest moment that the program allows. So reading
# one step early is found every time, whatever the timing.
#
# ## Mistake two: no barrier
#
# Each thread waits for its own copies and reads everybody's. The numbers may well be right:

# %%
found = planted(barrier=False)
for hazard in found.hazards[:2]:
    print(hazard, "\n")
assert found.hazards

# %% [markdown]
# One missing line, reported where A and where B are read, with both parties, the stage, and the
# word to put there. A number that came out right refutes neither: hazards are about order.
#
# ## What it costs
#
# Now the correct kernel, line by line. The bars show each line's share of what decides.

# %%
report = kd.inspect.report(gemm, **launch, device="A100")
print(report.roofline)
report

# %%
totals = report.totals
for what in ("wavefronts", "sectors"):
    print(f"{what}: {totals[what]:.0f}, and at least {totals[f'ideal_{what}']:.0f} are needed")
assert totals["tensor_flops_bf16"] == 2 * m * n * k

# %% [markdown]
# Every element of A is fetched once for each column of blocks: larger tiles fetch less, and need
# more shared memory and registers. That trade is what tuning decides ([essay
# 8](08_cache_to_tuning.py)). `kdsl_fuse/kernels/gemm_sm80.py` is this kernel grown up; on Hopper
# everything changes once more: [the sixth essay](06_hopper.py).
