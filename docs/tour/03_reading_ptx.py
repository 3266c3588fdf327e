# %% [markdown]
# # 03 · Reading PTX, registers, SASS
#
# What does a GPU get? First PTX, an assembly language for a machine with endless registers, which
# kdsl prints. Then SASS, the real instructions of one chip, which NVIDIA's `ptxas` makes of it.
# Both are text, and neither needs a GPU to be looked at.

# %%
import re
from collections import Counter
from pathlib import Path

import kdsl_core as kd
from kdsl_runtime.assemble import AssembleOptions, assemble
from kdsl_runtime.disassembly import sass_by_line

THREADS = 128


@kd.kernel
def axpy(
    a: kd.f32,
    x: kd.Tensor["f32", "n"],
    y: kd.Tensor["f32", "n"],
    each: kd.Static = 4,
    fused: kd.Static = False,
):
    """y = a · x + y for whole blocks, `each` neighbours a thread."""
    i = kd.block_idx()[0] * THREADS + kd.thread_idx()[0]
    source, target = kd.local_tile(x, (each,), (i,)), kd.local_tile(y, (each,), (i,))
    xs, ys = kd.rmem_like(source), kd.rmem_like(target)
    kd.copy(source, xs)
    kd.copy(target, ys)
    for k in range(each):
        ys[k] = kd.fma(a, xs[k], ys[k]) if fused else a * xs[k] + ys[k]
    kd.copy(ys, target)


# The first eight threads, and which elements they hold:
_, tv = kd.make_tv_layout(kd.Layout((1, 8)), kd.Layout((1, 4)))
kd.svg(tv, tile=(1, 32))

# %% [markdown]
# ## From a line to PTX
#
# No array is needed, only a description of one.

# %%
x = kd.spec("f32", (4096,))
ptx = axpy.ptx(1.0, x, x, block=THREADS, target="sm_90a")
body = ptx[ptx.index("{\n    .reg") :].splitlines()
print(len(ptx.splitlines()), "lines; the first of the body:")
print("\n".join(body[:18]))

# %% [markdown]
# Read it from the right: `mul.wide.s32 %rd3, %r7, 4` is "offset = 4 · index, in 64 bits",
# `ld.global.v4.b32` fetches four numbers at once. `%r`, `%rd`, `%f` are registers, written once
# each or, where they are variables of the kernel (`ys[k]`), in place.
#
# ## What alignment is worth
#
# Four numbers at once is legal only at addresses that are multiples of 16. kdsl never assumes
# that: it must follow from facts about the arguments, and the facts are part of what was compiled.

# %%
for words, spec in {
    "aligned to 16 bytes": kd.spec("f32", (4096,)),
    "aligned to 8 bytes": kd.spec("f32", (4096,), align=8),
    "aligned to 4 bytes": kd.spec("f32", (4096,), align=4),
    "every other element": kd.spec("f32", (4096,), strides=(2,)),
}.items():
    text = axpy.ptx(1.0, spec, spec, block=THREADS, target="sm_90a")
    print(f"{words:20}", dict(Counter(re.findall(r"(?:ld|st)\.global\S*", text))))

# %% [markdown]
# ## Two roundings or one
#
# `a * x + y` in Python rounds twice, and so does kdsl's kernel: it never contracts behind your
# back, which is why simulator and GPU agree to the bit. Where one rounding will do, say `kd.fma`.


# %%
def built(**statics):
    """The machine code of axpy for an H100 or H200, with the lines that it came from."""
    module = axpy.module(1.0, x, x, block=THREADS, target="sm_90a", lines=True, **statics)
    return assemble(module, "sm_90a", options=AssembleOptions(line_info=True))


def opcodes(cubin):
    """How often each machine instruction occurs, NOPs behind the end left out."""
    texts = [text for lines in sass_by_line(cubin.data).values() for text in lines]
    return Counter(text.split()[0].rstrip(";").split(".")[0] for text in texts if "NOP" not in text)


for fused in (False, True):
    counts = opcodes(built(fused=fused))
    print(f"fused={fused!s:5}", {name: counts[name] for name in ("FMUL", "FADD", "FFMA")})

# %% [markdown]
# ## SASS, by source line
#
# `LDG.E.128` is the load of 16 bytes, `STG.E.128` the store, `S2R` reads a special register such
# as the block's number. The assembler has merged, dropped and reordered; line numbers survive all
# that.

# %%
source = Path(__file__).read_text(encoding="utf-8").splitlines()
for (_, line), instructions in sorted(sass_by_line(built(fused=True).data).items()):
    print(f"{line:4} {source[line - 1].strip()}")
    for text in instructions:
        if "NOP" not in text:
            print("           ", text.rstrip(" ;"))

# %% [markdown]
# ## Registers decide how much runs at once
#
# A multiprocessor has 65 536 registers for all of its threads. More work for each thread means
# more registers, and at some point fewer threads at a time. `ptxas` says what it used; kdsl passes
# that on, names any spill, and knows what fits.

# %%
device = kd.inspect.device_of("H200")
print("elements  registers  spills  blocks that fit")
for each in (1, 4, 16, 64):
    used = built(each=each, fused=True).report
    blocks, limit = device.occupancy(used.registers, THREADS, used.shared)
    spills = used.spill_stores + used.spill_loads
    print(f"{each:8}  {used.registers:9}  {spills:6}  {blocks:6} (limit: {limit})")

# %% [markdown]
# The same three views, for any kernel in a file: `kdsl inspect FILE:KERNEL --ptx --sass --build`
# ([inspect](../inspect.md)). Next, the one instruction that matters most: [tensor
# cores](04_tensor_cores.py).
