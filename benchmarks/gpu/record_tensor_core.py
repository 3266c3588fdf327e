"""Records what single `mma.sync` and `wgmma` give where their model is not settled, bit by bit.

    python3 benchmarks/gpu/record_tensor_core.py --out tensor_core.npz
    python3 benchmarks/gpu/record_tensor_core.py --check tensor_core.npz

The file holds A, B, C and D of each instruction and kind of problem (`tensor_core_inputs.py`) as
"instruction/kind/A", raw bits in unsigned integers. `--check` needs no GPU: it compares D with the
simulator's model and says kind by kind how many outputs differ. `--simulate` records the simulator,
`--thin FILE --rows 16 --columns 32` keeps a part of a recording: outputs do not depend on each
other.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tensor_core_inputs import Array, atoms, kinds_of, problems

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_core.errors import DriverError
from kdsl_core.isa.tensor_core import multiply_accumulate

WIDE = 16  # from this N on an instruction is asked normal numbers only
COUNT = {"mma": 8, "wgmma": 3, "wide": 1}  # problems of each kind
SHOWN = 2
OPERANDS = "f16|bf16|f32|e4m3|e5m2|i8|u8"


# -- kernels ---------------------------------------------------------------------------------------
@kd.kernel
def warp_products(
    a: kd.Tensor[OPERANDS, "p 16 k"],
    b: kd.Tensor[OPERANDS, "p 8 k"],
    c: kd.Tensor["f16|f32|i32", "p 16 8"],
    d: kd.Tensor["=c", "p 16 8"],
    atom: kd.Static,
) -> None:
    """Each block, of one warp, does one `mma.sync` whose operands come from global memory."""
    p, depth = kd.block_idx()[0], atom.shape_mnk[2]
    mma = kd.tiled_mma(atom)
    part = mma.get_slice(kd.thread_idx()[0])
    left, right = mma.make_fragment_A((16, depth)), mma.make_fragment_B((8, depth))
    acc = mma.make_fragment_C((16, 8))
    kd.copy(part.partition_A(a[p, None, None].tile((16, depth), (0, 0))), left.as_dtype(a.dtype))
    kd.copy(part.partition_B(b[p, None, None].tile((8, depth), (0, 0))), right.as_dtype(b.dtype))
    kd.copy(part.partition_C(c[p, None, None].tile((16, 8), (0, 0))), acc)
    kd.gemm(mma, left, right, acc)
    kd.copy(acc, part.partition_C(d[p, None, None].tile((16, 8), (0, 0))))


@kd.func
def stage(source: Any, tile: Any) -> None:
    """All threads copy a matrix to shared memory, bit by bit."""
    for turn in kd.range(-(-kd.size(tile) // 128)):
        index = turn * 128 + kd.thread_rank()
        if index < kd.size(tile):
            at = (index % kd.size(tile, 0), index // kd.size(tile, 0))
            tile[at] = source[at].bitcast(tile.dtype)


@kd.kernel
def group_products(
    a: kd.Tensor[OPERANDS, "p 64 k"],
    b: kd.Tensor[OPERANDS, "p n k"],
    c: kd.Tensor["f16|f32|i32", "p 64 n"],
    d: kd.Tensor["=c", "p 64 n"],
    atom: kd.Static,
) -> None:
    """Each block, of one warp group, does one `wgmma`."""
    p, (m, n, depth) = kd.block_idx()[0], atom.shape_mnk
    layouts = (
        kd.atoms.shared_operand(atom.a, (m, depth), swizzle=0),
        kd.atoms.shared_operand(atom.b, (n, depth), swizzle=0),
    )
    tiles = [
        kd.smem(atom.a, layouts[0], name="a")[..., 0],
        kd.smem(atom.b, layouts[1], name="b")[..., 0],
    ]
    stage(a[p, None, None], tiles[0])
    stage(b[p, None, None], tiles[1])
    kd.fence_proxy_async()
    kd.sync_threads()
    mma = kd.tiled_mma(atom)
    view = mma.get_slice(kd.thread_rank())
    left, right = view.partition_A(tiles[0]), view.partition_B(tiles[1])
    if atom.a_from == "registers":
        held = mma.make_fragment_A((m, depth))
        for i in range(kd.size(held)):
            held[i] = left[i]
        left = held
    acc = mma.make_fragment_C((m, n))
    kd.copy(view.partition_C(c[p, None, None].tile((m, n), (0, 0))), acc)
    kd.wgmma_fence()
    kd.gemm(mma, left, right, acc)
    kd.wgmma_commit()
    kd.wgmma_wait(0)
    kd.copy(acc, view.partition_C(d[p, None, None].tile((m, n), (0, 0))))


# -- recording -------------------------------------------------------------------------------------
def is_group(name: str) -> bool:
    """Whether an instruction is one of warp groups."""
    return name.startswith("SM90")


def asked(options: argparse.Namespace) -> Iterator[tuple[Any, str, int]]:
    """(instruction, kind, number of problems)."""
    for name, atom in atoms().items():
        if options.only and not any(word in name for word in options.only):
            continue
        wide = is_group(name) and atom.shape_mnk[1] >= WIDE
        size = "wide" if wide else "wgmma" if is_group(name) else "mma"
        kinds = list(kinds_of(atom))[:1] if wide else kinds_of(atom)
        for kind in kinds:
            yield atom, kind, min(COUNT[size], options.problems)


def products(atom: Any, a: Array, b: Array, c: Array, simulate: bool) -> Array:
    """D of each problem, by the instruction."""
    kernel, threads = (group_products, 128) if is_group(atom.name) else (warp_products, 32)
    launch, d = kernel[len(a), threads], np.zeros_like(c)
    if simulate:
        launch(a, b, c, d, atom=atom)
        return d
    from kdsl_runtime.device_array import to_device

    held = [to_device(array) for array in (a, b, c, d)]
    launch(*held, atom=atom)
    return held[3].read()


def record(options: argparse.Namespace) -> dict[str, Array]:
    """The arrays of the file, as raw bits; where the GPU traps, those from before."""
    found: dict[str, Array] = {}
    for atom, kind, count in asked(options):
        a, b, c = problems(atom, kind, count)
        try:
            d = products(atom, a, b, c, options.simulate)
        except DriverError as trap:
            print(f"{atom.name}, {kind}: {trap}; what follows is not asked", file=sys.stderr)
            break
        for name, array in zip("ABCD", (a, b, c, d), strict=True):
            found[f"{atom.name}/{kind}/{name}"] = array.view(f"u{array.dtype.itemsize}")
    return found


def thinned(path: Path, options: argparse.Namespace) -> dict[str, Array]:
    """Some groups of a file, of each some problems, rows and columns of D, enough for a golden."""
    with np.load(path) as recorded:
        arrays = {
            key: recorded[key][: options.problems]
            for key in recorded.files
            if not options.only or any(word in key for word in options.only)
        }
    for key, array in arrays.items():
        rows = array[
            :, :: step(array.shape[1], options.columns if key[-1] == "B" else options.rows)
        ]
        columns = step(array.shape[2], options.columns) if key[-1] in "CD" else 1
        arrays[key] = rows[:, :, ::columns]
    return arrays


def step(size: int, most: int) -> int:
    """The stride that leaves at most so many of `size` places."""
    return -(-size // most)


# -- checking --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Check:
    """How the model's outputs of one instruction and kind compare with the recorded ones."""

    instruction: str
    kind: str
    outputs: int
    differ: int
    nan_bits: int
    shown: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = f"{self.instruction:<36} {self.kind:<12} {self.outputs:>7} {self.differ:>7}"
        return "\n    ".join([f"{head} {self.nan_bits:>8}", *self.shown])


def checks(path: Path) -> list[Check]:
    """The model against a file, instruction by instruction and kind by kind."""
    known = atoms()
    with np.load(path) as recorded:
        arrays = dict(recorded)
    groups = sorted({key.rpartition("/")[0] for key in arrays})
    return [
        check(known[name], kind, *(arrays[f"{name}/{kind}/{x}"] for x in "ABCD"))
        for name, kind in (group.split("/") for group in groups)
    ]


def check(atom: Any, kind: str, *arrays: Array) -> Check:
    """Which outputs of the model have other bits; a NaN for a NaN counts apart."""
    a, b, c, d = (
        x.view(t.numpy) for x, t in zip(arrays, (atom.a, atom.b, atom.d, atom.d), strict=True)
    )
    family: Any = "wgmma" if is_group(atom.name) else "mma.sync"
    with np.errstate(all="ignore"):
        model = multiply_accumulate(a, b, c, family)
    raw = np.dtype(f"u{d.dtype.itemsize}")
    differ = model.view(raw) != d.view(raw)
    both = is_nan(model, atom.d) & is_nan(d, atom.d) & differ
    wrong = differ & ~both
    shown = [
        f"problem {p} at ({i}, {j}): recorded {d.view(raw)[p, i, j]:#x} = {d[p, i, j]!s}, "
        f"model {model.view(raw)[p, i, j]:#x} = {model[p, i, j]!s}"
        for p, i, j in [*np.argwhere(wrong)[:SHOWN], *np.argwhere(both)[:SHOWN]]
    ]
    counts = d.size, int(wrong.sum()), int(both.sum())
    return Check(atom.name, kind, *counts, tuple(shown))


def is_nan(values: Array, dtype: DType) -> Array:
    """Which numbers are NaN; no integer is."""
    return np.isnan(values) if dtype.is_float else np.zeros(values.shape, bool)


def report(path: Path) -> int:
    """Print the sums of each kind, then what differs; gives how many groups differ."""
    found = checks(path)
    print(f"{'kind':<49} {'outputs':>7} {'differ':>7} {'NaN bits':>8}")
    for kind in sorted({row.kind for row in found}):
        rows = [row for row in found if row.kind == kind]
        sums = (
            sum(getattr(row, name) for row in rows) for name in ("outputs", "differ", "nan_bits")
        )
        print(Check(f"{len(rows)} instructions", kind, *sums))
    wrong = [row for row in found if row.differ or row.nan_bits]
    print(*wrong, f"{len(wrong)} of {len(found)} groups differ from the model", sep="\n")
    return len(wrong)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(os.environ.get("OUT", ".")) / "tensor_core.npz"
    words.add_argument("--out", type=Path, default=default, help="the file")
    words.add_argument("--check", type=Path, metavar="FILE", help="compare the model with a file")
    words.add_argument("--thin", type=Path, metavar="FILE", help="write a part of that file")
    words.add_argument("--only", nargs="+", metavar="WORD", help="instructions with these in names")
    words.add_argument("--problems", type=int, default=8, help="at most so many of each kind")
    words.add_argument("--rows", type=int, default=256, help="of D, when a part is written")
    words.add_argument("--columns", type=int, default=256, help="of D, when a part is written")
    words.add_argument("--simulate", action="store_true", help="in the simulator")
    return words


def main(arguments: list[str]) -> None:
    """Record or check; the exit status of a check says whether every bit is the model's."""
    options = parser().parse_args(arguments)
    if options.check:
        sys.exit(1 if report(options.check) else 0)
    found = thinned(options.thin, options) if options.thin else record(options)
    np.savez_compressed(options.out, **found)  # type: ignore[arg-type] # arrays by name
    print(f"{len(found) // 4} groups, {options.out.stat().st_size / 2**20:.2f} MiB")
    report(options.out)


if __name__ == "__main__":
    main(sys.argv[1:])
