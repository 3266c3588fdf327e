# %% [markdown]
# # 06 · Hopper
#
# On sm_90a one thread can start the copy of a whole tile (TMA), four warps together the product of
# two tiles that stay in shared memory (`wgmma`), and both go on by themselves. What is left of a
# kernel is mostly *waiting*, and saying who waits for what. This essay builds up to a ring in
# which one warp fetches and four multiply.

# %%
import ml_dtypes
import numpy as np

import kdsl_core as kd

rng = np.random.default_rng(0)

# %% [markdown]
# ## TMA: a tile in one instruction
#
# `kd.tma_load(tensor, shared layout, tile)` describes the copy; the 128-byte descriptor that
# hardware wants is made by the host. One thread starts it, an **mbarrier** counts the bytes. What
# hangs over the edge of the matrix arrives as zeros, so there is no predicate.


# %%
@kd.kernel
def row_sums(x: kd.Tensor["f32", "m n"], sums: kd.Tensor["f32", "m"]):
    tile = kd.smem(kd.f32, kd.make_layout_right((32, 32)), name="tile")
    load = kd.tma_load(x, tile, (32, 32))
    arrived = kd.mbarrier(name="arrived")
    if kd.thread_rank() == 0:
        arrived.init()
        kd.fence_mbarrier_init()
    kd.sync_threads()
    row, total = kd.block_idx()[0] * 32, 0.0
    for step in kd.range(kd.ceil_div(x.shape[1], 32)):
        if kd.thread_rank() == 0:
            arrived.arrive_expect(load.bytes)  # this phase ends when so many bytes have come
            load(tile, (row, step * 32), arrived)
        arrived.wait(step % 2)  # phases have parities 0, 1, 0, ...
        for column in range(32):  # lane i reads row i, each at another column: no bank conflict
            total = total + tile[kd.lane_idx(), (column + kd.lane_idx()) % 32]
        kd.sync_threads()  # all have read, the tile may be filled again
    if row + kd.lane_idx() < x.shape[0]:
        sums[row + kd.lane_idx()] = total


x = rng.standard_normal((50, 76)).astype(np.float32)  # no multiple of 32 anywhere
sums = np.empty(50, np.float32)
result = kd.simulate(row_sums, grid=2, block=32, args=(x, sums))
np.testing.assert_allclose(result.outputs[1], x.sum(axis=1), rtol=1e-4, atol=1e-5)
totals = result.profile.totals
print(f"{totals['tma_load_copies']:.0f} TMA copies, {totals['tma_load_bytes']:.0f} bytes")

# %% [markdown]
# ## wgmma: operands in shared memory
#
# A `wgmma` atom multiplies 64 × N × 16 (of 16-bit types). A and B lie in shared memory in one of a
# few swizzled forms; 64 bits, the *descriptor*, tell the hardware which. kdsl derives them from
# the layout, and refuses a layout that has no such form.

# %%
eight_rows = kd.atoms.smem_atom(kd.bf16, "K", 128)
code, leading_bytes, stride_bytes = kd.atoms.descriptor_fields(eight_rows, kd.bf16, "K")
print(kd.atoms.wgmma(16, "bf16").name, "reads eight rows as", eight_rows)
print(
    f"descriptor: {code=} (128-byte swizzle), {leading_bytes=}, {stride_bytes=} to the next eight"
)
kd.svg(eight_rows, dtype=kd.bf16)

# %% [markdown]
# Each row is 128 bytes, and its 16-byte units are moved about so that eight rows at one unit lie
# in different banks. TMA writes this form, `wgmma` reads it.
#
# ## Producer and consumers
#
# The ring has two mbarriers a stage. `full`: the bytes have come. `empty`: they have been read.
# The producer waits for `empty`, the consumers for `full`; in the very first round nothing has to
# be emptied, and parity 1 names the phase *before* the first, which counts as over.

# %%
M, N, K, STAGES, GROUP = 64, 64, 64, 3, 128


@kd.kernel(min_blocks_per_sm=1)
def gemm(
    A: kd.Tensor["bf16", "m k"],
    B: kd.Tensor["bf16", "n k"],
    C: kd.Tensor["f32", "m n"],
    wait_for_full: kd.Static = True,
    first_parity: kd.Static = 1,
):
    """C = A · Bᵀ, one tile of C a block; warp 4 fetches, warps 0 to 3 multiply."""
    a = kd.smem(A.dtype, kd.atoms.shared_operand(A.dtype, (M, K), stages=STAGES), name="a")
    b = kd.smem(B.dtype, kd.atoms.shared_operand(B.dtype, (N, K), stages=STAGES), name="b")
    load_a, load_b = kd.tma_load(A, a[..., 0], (M, K)), kd.tma_load(B, b[..., 0], (N, K))
    full = kd.mbarrier(1, count=STAGES, name="full")
    empty = kd.mbarrier(1, count=STAGES, name="empty")
    if kd.thread_rank() == 0:
        full.init()
        empty.init()
        kd.fence_mbarrier_init()
    kd.sync_threads()

    m, n, _ = kd.block_idx()
    steps = kd.ceil_div(A.shape[1], K)
    if kd.warp_uniform(kd.warp_idx()) == 4:
        with kd.role("producer"):
            if kd.elect_one():
                for k in kd.range(steps):
                    stage, turn = k % STAGES, k // STAGES
                    empty[stage].wait((turn + first_parity) % 2)
                    full[stage].arrive_expect(load_a.bytes + load_b.bytes)
                    load_a(a[..., stage], (m * M, k * K), full[stage])
                    load_b(b[..., stage], (n * N, k * K), full[stage])
    else:
        with kd.role("consumer"):
            mma = kd.tiled_mma(kd.atoms.wgmma(N, A.dtype))
            part = mma.get_slice(kd.thread_rank())
            a_part, b_part = part.partition_A(a), part.partition_B(b)  # descriptors
            acc = mma.make_fragment_C((M, N))
            for k in kd.range(steps):
                stage, turn = k % STAGES, k // STAGES
                if wait_for_full:
                    full[stage].wait(turn % 2)
                kd.wgmma_fence()  # earlier uses of the accumulators come first
                kd.gemm(mma, a_part[..., stage], b_part[..., stage], acc, accumulate=k > 0)
                kd.wgmma_commit()
                kd.wgmma_wait(0)  # the product is done, and the stage has been read
                empty[stage].arrive(pred=kd.thread_rank() == 0)
            kd.copy(acc, part.partition_C(kd.local_tile(C, (M, N), (m, n))))


m, n, k = 128, 64, 320  # five steps through a ring of three
a, b = (rng.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
c = np.empty((m, n), np.float32)
launch = {"grid": (m // M, n // N), "block": GROUP + 32, "args": (a, b, c)}
result = kd.simulate(gemm, **launch)
exact = a.astype(np.float64) @ b.astype(np.float64).T
np.testing.assert_allclose(result.outputs[2], exact, rtol=1e-5, atol=1e-4)
ptx = gemm.ptx(a, b, c, block=GROUP + 32, target="sm_90a")
counts = {
    w: ptx.count(w) for w in ("cp.async.bulk.tensor", "wgmma.mma_async", "ld.shared", "mbarrier")
}
print("right, and in its PTX:", counts)

# %% [markdown]
# No `ld.shared`: operands never pass through registers.
#
# ## Forget to wait
#
# Leave out the wait for `full`: the product may read before the bytes are there.

# %%
found = kd.simulate(gemm, **launch, kwargs={"wait_for_full": False}, on_hazard="collect")
print(found.hazards[0])
assert found.hazards[0].code == "inflight"

# %% [markdown]
# ## Wait for the wrong phase
#
# Let the producer begin with parity 0. On a GPU that is a hang, and a hang says nothing. Here:

# %%
found = kd.simulate(gemm, **launch, kwargs={"first_parity": 0}, on_hazard="collect")
print(found.hazards[0])
assert found.hazards[0].code == "deadlock"

# %% [markdown]
# Every waiting party, the phase and parity it waits for, what is missing, who could still bring
# it, and the parity that would have been right.
#
# ## Refused before it runs
#
# Some mistakes need no run. Accumulators used while a product is under way would make `ptxas`
# serialise everything, with a warning that few read; kdsl refuses at your line.


# %%
@kd.kernel
def impatient(C: kd.Tensor["f32", "64 16"]):
    a = kd.smem(kd.bf16, kd.atoms.shared_operand(kd.bf16, (64, 64)), name="a")[..., 0]
    b = kd.smem(kd.bf16, kd.atoms.shared_operand(kd.bf16, (16, 64)), name="b")[..., 0]
    mma = kd.tiled_mma(kd.atoms.wgmma(16, "bf16"))
    part = mma.get_slice(kd.thread_rank())
    acc = mma.make_fragment_C((64, 16))
    kd.wgmma_fence()
    kd.gemm(mma, part.partition_A(a), part.partition_B(b), acc, accumulate=False)
    kd.wgmma_commit()
    kd.copy(acc, part.partition_C(C))


try:
    impatient.ptx(kd.spec("f32", (64, 16)), block=128, target="sm_90a")
except kd.KdslError as error:
    print(error)

# %% [markdown]
# The real thing (persistent, multicast in clusters, two consumers that take turns) is an ordinary
# kernel too: [how the Hopper GEMM works](../gemm_sm90.md). But who wants to write one for every
# layer? [From function to kernels](07_fuse.py).
