# %% [markdown]
# # 07 · Fuse: from function to kernels, and down again
#
# Nobody writes six kernels for a layer by hand. `kdsl_fuse` takes a function of arrays, finds few
# kernels for it, says why, and lets you take over at any level. Here is half a transformer block:
# RMSNorm, a gated product, a projection, a residual.

# %%
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np

import kdsl_fuse as kf


@kf.fuse(target="sm_90a")
def mlp(x, gain, w_gate, w_up, w_down):
    h = x * kf.rsqrt(kf.mean(x * x, axis=-1, keepdims=True) + 1e-6) * gain
    g = h @ w_gate
    gated = g * (1 / (1 + kf.exp(-g))) * (h @ w_up)
    return x + gated @ w_down


rng = np.random.default_rng(0)


def random(*shape):
    """Normal numbers in bf16."""
    return (rng.standard_normal(shape) / 4).astype(ml_dtypes.bfloat16)


tokens, width, inner = 64, 64, 128
shapes = (tokens, width), (width,), (width, inner), (width, inner), (inner, width)
args = [random(*shape) for shape in shapes]

# %% [markdown]
# ## The graph
#
# Calling the function with stand-ins records what it does: one node an operator, with its type and
# your line.

# %%
graph = mlp.graph(*args)
print(graph.table())

# %% [markdown]
# ## The plan
#
# First the graph is brought to one form. The written-out norm is recognised, and so is g · 1/(1 +
# e⁻ᵍ): it is SiLU. Then patterns offer kernels, and the disjoint ones that save most memory
# traffic and launches are taken. Boxes of one colour are one kernel.

# %%
plan = mlp.plan(*args)
operators = [node for node in graph.table().splitlines()[2:] if "Input" not in node]
print(len(operators) - 1, "operators and constants became", len(plan.calls), "kernels")
plan.draw()

# %% [markdown]
# Every decision has its reason, and its price:

# %%
print(plan.explain())

# %% [markdown]
# ## It is right
#
# With NumPy arrays the plan runs in the simulator, kernel by kernel, checks and all. The sums are
# in f32 and values between kernels in bf16, as the plan says; so compare with f64 at bf16's
# precision.

# %%
x, gain, w_gate, w_up, w_down = (array.astype(np.float64) for array in args)
h = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6) * gain
g = h @ w_gate
exact = x + (g / (1 + np.exp(-g)) * (h @ w_up)) @ w_down
got = mlp(*args).astype(np.float64)
print("largest error", np.abs(got - exact).max(), "of", np.abs(exact).max())
np.testing.assert_allclose(got, exact, rtol=2**-6, atol=0.02)

# %% [markdown]
# ## What stays apart, and why
#
# Return a value from the middle, and it must be stored: the product can no longer swallow what
# follows.


# %%
@kf.fuse(target="sm_90a")
def keeps(x, w):
    y = x @ w
    return y, kf.relu(y)


apart = keeps.plan(args[0], args[2])
print([call.name for call in apart.calls])
for name, reason in apart.cover.apart.items():
    print(name, reason)

# %% [markdown]
# ## Down: a call is a kernel
#
# `plan.calls` are launches of ordinary kernels in the language of the first six essays. The last
# one is the Hopper GEMM with the residual as its epilogue, on the accumulators, before they are
# stored:

# %%
last = plan.calls[-1]
print(last)

# %% [markdown]
# Run one alone, look at its hazards and counters, read its PTX:

# %%
values = plan.values(*args)
for call in plan.calls:
    result = call.simulate(values)
    values[call.output.name] = call.run(values)
    flops = result.profile.totals["tensor_flops_bf16"]
    print(f"{call.name:11} {len(result.hazards)} hazards, {flops:9.0f} FLOP on tensor cores")
assert (values[last.output.name].astype(np.float64) == got).all()
print(last.ptx("sm_90a").count("wgmma.mma_async"), "wgmma in the PTX of", last.name)

# %% [markdown]
# ## Further down: the kernel as a file
#
# `kf.eject` writes a call's kernel with everything that it uses: one file that runs alone, with a
# reference and a test. Say you want the residual scaled, which no pattern knows. Edit, check,
# load:

# %%
folder = Path(tempfile.mkdtemp())
(file,) = kf.eject(plan, folder, calls=[len(plan.calls) - 1])
text = file.read_text()
print(file.name, "has", len(text.splitlines()), "lines; its tail:")
start = text.index("def epilogue(")
print(text[start : text.index("def reference(")])

# %%
file.write_text(text.replace("+ acc", "+ 0.5 * acc"))
kf.load(plan, folder)
halved = plan.run(*args).astype(np.float64)
np.testing.assert_allclose(halved - x, (exact - x) / 2, rtol=2**-6, atol=0.02)
print("the plan now runs the edited kernel: x + 0.5 · (…)")

# %% [markdown]
# Other doors lead to the same plan: `torch.compile(model, backend="kdsl")` and ONNX files ([front
# doors](../frontends.md)); `kf.register` adds a kernel of your own for a whole family
# ([fusion](../fusion.md)). What is left is to ship it: [the last essay](08_cache_to_tuning.py).
