"""Records what the approximate functions of f32 give on this GPU, for a model of every bit.

    python3 benchmarks/gpu/record_functions.py --out recordings
    python3 benchmarks/gpu/record_functions.py --check recordings

Inputs: all f16 and all bf16 numbers, all f32 of one or two binades, random bit patterns with the
special values. One file for each function and set of inputs holds the distances from the correctly
rounded results (`ulps.py`); `functions.json` and the screen say how far the functions are.
`--simulate --bits 10` runs the same in the simulator, on a part of each binade. `--check` needs no
GPU: it says how many results the simulator has wrong. With `--golden FOLDER` it keeps what tests
compare with: the files of 16-bit inputs and a checksum of every file's results.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from ulps import Array, decode, distances, encode

import kdsl_core as kd
from kdsl_core.isa.functions import INSTRUCTIONS
from kdsl_core.isa.math import function
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.tracer import builder

THREADS = 128
MANTISSA_BITS = 23
SEED = 20
# What distances are counted from. It stays as it is when the simulator learns the hardware's bits.
REFERENCES: dict[str, Callable[[Array], Array]] = {
    "exp2": np.exp2,
    "log2": np.log2,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "rcp": lambda x: 1 / x,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
}
# function → exponents of the binades of which every number is an input
BINADES = {
    "exp2": (-1, 0),
    "log2": (-1, 0),
    "rsqrt": (0, 1),
    "sqrt": (0, 1),
    "rcp": (0,),
    "tanh": tuple(range(-8, 3)),  # elsewhere it is x or 1
    "sin": (-1, 0),
    "cos": (-1, 0),
}
COUNTED = (0, 1, 2, 4, 16, 128, 4096)  # distances up to which the histogram counts


def approximately(name: str, x: Any) -> Any:
    """The hardware's instruction for a function, on a scalar of a kernel."""
    return Scalar(function(builder(), name, x.operand, approx=True))


@kd.kernel
def apply(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], name: kd.Static) -> None:
    """y = f(x), element by element; n is a multiple of the block."""
    i = kd.block_idx()[0] * THREADS + kd.thread_idx()[0]
    y[i] = approximately(name, x[i])


# -- inputs ----------------------------------------------------------------------------------------
def sets_of(name: str) -> tuple[str, ...]:
    """The names of a function's sets of inputs."""
    return ("f16", "bf16", "random", *(f"binade{exponent}" for exponent in BINADES[name]))


def inputs(which: str, bits: int = MANTISSA_BITS) -> Array:
    """The f32 inputs of a set; `bits` of the mantissas go through all values, the others are 0."""
    if which in ("f16", "bf16"):
        kind = np.float16 if which == "f16" else ml_dtypes.bfloat16
        step = 1 << max(16 - bits, 0)
        return np.arange(0, 1 << 16, step).astype(np.uint16).view(kind).astype(np.float32)
    if which == "random":
        rng = np.random.default_rng(SEED)
        raw = rng.integers(0, 1 << 32, 1 << min(bits, 20), np.uint32)
        return np.concatenate([special_patterns(), raw])[: len(raw)].view(np.float32)
    exponent = int(which.removeprefix("binade"))
    mantissas = np.arange(1 << bits, dtype=np.uint32) << np.uint32(MANTISSA_BITS - bits)
    return (mantissas | np.uint32((exponent + 127) << MANTISSA_BITS)).view(np.float32)


def special_patterns() -> Array:
    """Bits of the first and last f32 of each exponent, both signs; infinities and NaN too."""
    exponents = np.arange(256, dtype=np.uint32) << np.uint32(MANTISSA_BITS)
    ends = [exponents | np.uint32(low) for low in (0, 1, (1 << MANTISSA_BITS) - 1)]
    positive = np.concatenate(ends)
    return np.concatenate([positive, positive | np.uint32(1 << 31)])


def exact(name: str, x: Array) -> Array:
    """The function in double precision."""
    with np.errstate(all="ignore"):
        return REFERENCES[name](x.astype(np.float64))


# -- recording -------------------------------------------------------------------------------------
def measured(name: str, x: Array, simulate: bool) -> Array:
    """What the instruction gives."""
    launch = apply[len(x) // THREADS, THREADS]
    if simulate:
        y = np.empty_like(x)
        launch(x, y, name=name)
        return y
    from kdsl_runtime.device_array import to_device

    held, result = to_device(x), to_device(np.empty_like(x))
    launch(held, result, name=name)
    return result.read()


def record(folder: Path, name: str, which: str, got: Array, bits: int) -> dict[str, Any]:
    """Write the file of one function and set; its line of the summary."""
    x = inputs(which, bits)
    wide = exact(name, x)
    path = folder / f"{name}-{which}.npz"
    np.savez_compressed(path, mantissa_bits=np.array(bits), **encode(wide, got))
    return summary(name, which, x, wide, got) | {"bytes": path.stat().st_size}


def summary(name: str, which: str, x: Array, wide: Array, got: Array) -> dict[str, Any]:
    """How far results are from the rounded ones, and where they are farthest."""
    far = np.abs(distances(wide, got))
    farthest = int(far.argmax())
    nan = np.isnan(wide) != np.isnan(got)
    histogram = {f"<={limit}": int((far <= limit).sum()) for limit in COUNTED}
    return {
        "function": name,
        "inputs": which,
        "lanes": len(x),
        "max_ulps": int(far[farthest]),
        "at": x[farthest].item().hex(),
        "nan_for_number": int(nan.sum()),
        "nan_bits": sorted(
            {f"{int(word):#x}" for word in got[np.isnan(got)].view(np.uint32)[:999]}
        ),
        "histogram": histogram,
    }


def recorded(path: Path) -> tuple[Array, Array]:
    """The inputs and the results of a file."""
    name, _, which = path.stem.partition("-")
    with np.load(path) as stored:
        x = inputs(which, int(stored["mantissa_bits"]))
        return x, decode(exact(name, x), dict(stored))


def check(folder: Path) -> int:
    """Print how many recorded results the simulator's instructions have wrong, and give that."""
    rows, wrong = {row.name: row for row in INSTRUCTIONS}, 0
    for path in sorted(folder.glob("*.npz")):
        x, got = recorded(path)
        with np.errstate(all="ignore"):
            model = rows[f"{path.stem.partition('-')[0]}_approx"].run(x)
        differ = model.view(np.uint32) != got.view(np.uint32)
        nan = differ & np.isnan(model) & np.isnan(got)
        print(f"{path.stem:<16} {len(x):>8} results, {differ.sum():>8} differ, {nan.sum()} by NaN")
        wrong += int(differ.sum())
    return wrong


def keep(folder: Path, golden: Path) -> None:
    """Copy the files of 16-bit inputs, and write the checksum of each file's results."""
    checksums = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as stored:
            checksums[path.stem] = int(stored["checksum"])
        if path.stem.endswith("f16"):
            shutil.copyfile(path, golden / path.name)
    (golden / "checksums.json").write_text(json.dumps(checksums, indent=1) + "\n")


def results(options: argparse.Namespace) -> Iterator[tuple[str, str, Array]]:
    """(function, set, results), one launch after another."""
    for name in options.functions:
        for which in sets_of(name):
            yield name, which, measured(name, inputs(which, options.bits), options.simulate)


def line(row: dict[str, Any]) -> str:
    """One line of the summary."""
    shares = " ".join(
        f"{limit} {100 * count / row['lanes']:.4g}%" for limit, count in row["histogram"].items()
    )
    where = f"{row['max_ulps']:>10} ulps at {row['at']:<24}"
    return f"{row['function']:<6} {row['inputs']:<9} {row['lanes']:>9} {where} {shares}"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(os.environ.get("OUT", ".")) / "functions"
    words.add_argument("--out", type=Path, default=default, help="folder for the files")
    words.add_argument("--functions", nargs="+", choices=BINADES, default=list(BINADES))
    words.add_argument("--bits", type=int, default=MANTISSA_BITS, help="of the mantissas, from 10")
    words.add_argument("--check", type=Path, metavar="FOLDER", help="compare the simulator")
    words.add_argument("--golden", type=Path, metavar="FOLDER", help="for the tests, with --check")
    words.add_argument("--simulate", action="store_true", help="in the simulator")
    return words


def main(arguments: list[str]) -> None:
    """Record, and print the table."""
    options = parser().parse_args(arguments)
    if options.check:
        if options.golden:
            keep(options.check, options.golden)
        sys.exit(1 if check(options.check) else 0)
    options.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting = [
            pool.submit(record, options.out, *result, options.bits) for result in results(options)
        ]
        rows = [future.result() for future in waiting]
    for row in rows:
        print(line(row))
    (options.out / "functions.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{len(rows)} files, {sum(row['bytes'] for row in rows) / 2**20:.1f} MiB")


if __name__ == "__main__":
    main(sys.argv[1:])
