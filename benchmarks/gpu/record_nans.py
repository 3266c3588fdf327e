"""Records what NaN become in conversions to narrower types.

    python3 benchmarks/gpu/record_nans.py --out nans.npz
    python3 benchmarks/gpu/record_nans.py --check nans.npz

4096 NaN of every sign and payload go through each conversion; the file holds inputs and results as
"f64.f32.rn/x" and "f64.f32.rn/d". The table says of each how many results there are, whether they
keep the sign and nine bits of the payload, and how many the simulator has otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import kdsl_core as kd
from kdsl_core.dtypes import BY_NAME, DType, f16, f32, f64, tf32
from kdsl_core.isa.conversions import direct

Array: TypeAlias = np.ndarray[Any, Any]
THREADS, COUNT = 128, 4096
MANTISSA = {"f64": 52, "f32": 23, "tf32": 23, "f16": 10}
CASES = [
    (f32, tf32, None),
    *((f64, to, how) for to in (f32, f16) for how in ("rn", "rz", "rm", "rp")),
]


@kd.kernel
def conversions(
    x: kd.Tensor["f64|f32", "n"],
    d: kd.Tensor["f32|f16", "n"],
    to: kd.Static,
    rounding: kd.Static,
) -> None:
    """Each thread converts one number; n is a multiple of the block."""
    i = kd.block_idx()[0] * THREADS + kd.thread_idx()[0]
    d[i] = x[i].to(to, rounding=rounding).bitcast(d.dtype)


def inputs(dtype: DType) -> Array:
    """NaN of a type: one bit of payload each, then random payloads, both signs in turn."""
    bits, width = MANTISSA[dtype.name], dtype.bits
    raw = np.random.default_rng(bits).integers(1, 1 << bits, COUNT, np.uint64)
    raw[: 2 * bits] = np.uint64(1) << (np.arange(2 * bits, dtype=np.uint64) // np.uint64(2))
    raw |= np.uint64((1 << width - 1) - (1 << bits))
    raw[1::2] |= np.uint64(1 << width - 1)
    return raw.astype(f"u{dtype.bytes}").view(dtype.numpy)


def converted(x: Array, to: DType, rounding: str | None, simulate: bool) -> Array:
    """What the instruction gives."""
    launch, d = conversions[len(x) // THREADS, THREADS], np.zeros(len(x), to.numpy)
    if simulate:
        launch(x, d, to=to, rounding=rounding)
        return d
    from kdsl_runtime.device_array import to_device

    held, result = to_device(x), to_device(d)
    launch(held, result, to=to, rounding=rounding)
    return result.read()


def record(simulate: bool) -> dict[str, Array]:
    """The arrays of the file."""
    found = {}
    for source, to, rounding in CASES:
        x = inputs(source)
        d, name = converted(x, to, rounding, simulate), f"{source}.{to}.{rounding}"
        found |= {f"{name}/{key}": y.view(f"u{y.itemsize}") for key, y in (("x", x), ("d", d))}
    return found


def report(path: Path) -> int:
    """Print what each conversion did; gives how many results the simulator has otherwise."""
    wrong = 0
    print("conversion      results  an example  sign kept  payload kept  differ from the simulator")
    with np.load(path) as recorded:
        for name in sorted({key.partition("/")[0] for key in recorded.files}):
            source, to, rounding = name.split(".")
            x, d = recorded[f"{name}/x"], recorded[f"{name}/d"]
            differ = int((model(x, BY_NAME[source], BY_NAME[to], rounding) != d).sum())
            kept = [f"{100 * share:.0f}%" for share in kept_of(x, d, source, to)]
            print(
                f"{name:<15} {len(np.unique(d)):>7}  {int(d[0]):#10x}  {kept[0]:>9}  {kept[1]:>12}"
                f"  {differ:>5}"
            )
            wrong += differ
    return wrong


def kept_of(x: Array, d: Array, source: str, to: str) -> tuple[float, float]:
    """Shares of results with the sign, and with the nine bits of payload behind the quiet bit."""
    signs = x >> (x.itemsize * 8 - 1) == d >> (d.itemsize * 8 - 1)
    nine = [y >> (MANTISSA[t] - 10) & 0x1FF for y, t in ((x, source), (d, to))]
    return float(signs.mean()), float((nine[0] == nine[1]).mean())


def model(x: Array, source: DType, to: DType, rounding: str) -> Array:
    """The bits that the simulator gives."""
    row = direct(source, to, None if rounding == "None" else rounding, False)
    assert row is not None, "the recorded conversions are instructions"
    with np.errstate(all="ignore"):
        d = row.run(x.view(source.numpy))
    return d.view(f"u{d.itemsize}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(os.environ.get("OUT", ".")) / "nans.npz"
    words.add_argument("--out", type=Path, default=default, help="the file")
    words.add_argument("--check", type=Path, metavar="FILE", help="compare the simulator with it")
    words.add_argument("--simulate", action="store_true", help="in the simulator")
    return words


def main(arguments: list[str]) -> None:
    """Record or check; the exit status of a check says whether every bit is the simulator's."""
    options = parser().parse_args(arguments)
    if options.check:
        sys.exit(1 if report(options.check) else 0)
    np.savez_compressed(options.out, **record(options.simulate))  # type: ignore[arg-type] # by name
    report(options.out)


if __name__ == "__main__":
    main(sys.argv[1:])
