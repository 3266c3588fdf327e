# %% [markdown]
# # 01 · Layouts by hand
#
# A GPU's memory is one long row of bytes. Everything else (rows, columns, tiles, who reads what)
# is a function from coordinates to places in that row. kdsl calls such a function a **layout** and
# writes it as `shape:stride`. This essay is arithmetic only: no kernel, no GPU.

# %%
import numpy as np

import kdsl_core as kd

rows = kd.Layout((4, 8), (8, 1))
print(rows, "sends (2, 3) to", rows(2, 3))
rows

# %% [markdown]
# The rule is an inner product: coordinate times stride, summed. `(2, 3)` goes to 2·8 + 3·1. Swap
# the strides, and the same 32 numbers lie column by column. The layout is the only thing that
# changed.

# %%
columns = kd.Layout((4, 8), (1, 4))
for layout in (rows, columns):
    by_hand = [[i * layout.stride[0] + j * layout.stride[1] for j in range(8)] for i in range(4)]
    assert by_hand == [[layout(i, j) for j in range(8)] for i in range(4)]
print(f"{rows(2, 3)=}, {columns(2, 3)=}")
columns

# %% [markdown]
# ## A mode may have modes inside
#
# Strides alone cannot say "2 × 2 blocks, one after the other". Nesting can: split the rows into (2
# within a block, 2 blocks), the columns into (2 within, 4 blocks), and give each part its stride.

# %%
blocks = kd.Layout(((2, 2), (2, 4)), ((1, 4), (2, 8)))
print(blocks)
blocks

# %% [markdown]
# Nobody needs to know about the nesting to use it. A nested coordinate, a plain one and a single
# index name the same element; in an index the first mode counts fastest.

# %%
print(blocks((1, 0), (1, 2)), blocks(1, 5), blocks(1 + 4 * 5))
assert blocks((1, 0), (1, 2)) == blocks(1, 5) == blocks(1 + 4 * 5)
print("size", kd.size(blocks), "· rank", kd.rank(blocks), "· depth", kd.depth(blocks))

# %% [markdown]
# ## Layouts compose
#
# A layout is a function, so two of them have a composition: first B, then A. The algebra's promise
# is that the result is *again* `shape:stride`, and that it agrees with the definition everywhere.

# %%
a, b = kd.Layout((6, 2), (8, 2)), kd.Layout((4, 3), (3, 1))
r = kd.composition(a, b)
assert all(r(c) == a(b(c)) for c in range(kd.size(b)))
print(f"{a}  after  {b}  is  {r}")

# %% [markdown]
# Some compositions have no such form. kdsl then says so, with a coordinate at which every
# candidate would be wrong, instead of returning something close.

# %%
try:
    kd.composition(kd.Layout((4, 3), (1, 10)), kd.Layout(3, 3))
except kd.LayoutError as error:
    print(error)

# %% [markdown]
# ## Tiles
#
# Work is dealt out in tiles. Dividing an 8 × 16 matrix by a 4 × 8 tile gives a layout of two
# modes: the place *within* a tile, and *which* tile.

# %%
matrix = kd.make_layout_right((8, 16))
tiles = kd.zipped_divide(matrix, (4, 8))
print(tiles)
within, which = tiles[0], tiles[1]
second_row_of_tiles = which(1)
print("the tile below starts at", second_row_of_tiles)
assert second_row_of_tiles == matrix(4, 0)
within

# %% [markdown]
# ## Who holds what
#
# The same functions say which thread holds which element. Here 32 threads, arranged 4 × 8, hold 2
# × 2 elements each: the result maps (thread, value) to a place in the 8 × 16 tile. T is the
# thread, V the number of its value.

# %%
tile, tv = kd.make_tv_layout(kd.Layout((4, 8), (8, 1)), kd.Layout((2, 2), (2, 1)))
print(tile, tv)
kd.svg(tv, tile=tile)

# %% [markdown]
# That each element has exactly one holder is a property one can test, not a hope:

# %%
held = np.array([tv(thread, value) for thread in range(32) for value in range(4)])
assert sorted(held) == list(range(8 * 16))
print("128 elements, each held once")

# %% [markdown]
# ## Why layouts decide speed
#
# Shared memory has 32 banks of one word each. A warp that reads a *row* of 32 words touches 32
# banks; a warp that reads a *column* of a 32-word-wide tile touches one bank 32 times, and waits
# for 32 passes. The layout knows this before there is a kernel:

# %%
plain = kd.Layout((32, 32), (32, 1))
row, column = plain(0, None), plain(None, 0)
for name, access in (("row", row), ("column", column)):
    print(f"{name:6} {access}: {kd.inspect.bank_conflicts(access, kd.f32)}")

# %% [markdown]
# The remedy is one more function: XOR some bits of the row into the column. kdsl finds the
# smallest such **swizzle** (or padding, if you ask for that) and shows that both ways of reading
# are clean.

# %%
from kdsl_core.inspect import Access

lanes = kd.Layout((32, 32))  # (lane, value) -> index: a lane walks along a row ...
across = kd.Layout((32, 32), (32, 1))  # ... or down a column
reads = Access(lanes, "ld", width=4), Access(across, "ld", width=4)
found = kd.inspect.suggest_swizzle(plain, *reads, dtype=kd.f32)
print(found)

# %% [markdown]
# Small enough to see: 8 × 8 words, coloured as if there were eight banks. Every row and every
# column has all eight.

# %%
small = kd.ComposedLayout(kd.Swizzle(3, 0, 3), 0, kd.Layout((8, 8), (8, 1)))
for i in range(8):
    assert (
        {small(i, j) % 8 for j in range(8)} == {small(j, i) % 8 for j in range(8)} == set(range(8))
    )
small

# %% [markdown]
# Layouts are all there is to *where*. Next comes *when*: [the first kernel](02_first_kernel.py).
