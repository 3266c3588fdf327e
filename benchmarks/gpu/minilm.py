"""all-MiniLM-L6-v2 with random weights: torch.compile(backend="kdsl") against torch, by turns.

    python3 benchmarks/gpu/minilm.py --seconds 200 --shapes 1x16 8x128 64x256

Sides are torch eager, torch.compile's default and kdsl, as CUDA graphs (the table) and called from
Python one behind the other (`wall_us` in the JSON, and printed). Each is checked against f32.
The ratio is the fastest of PyTorch's over kdsl's. `--explain` prints what kdsl took.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sides import Result, Sides, run

import kdsl_fuse as kf

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/minilm"))
from model import MiniLM

SIZES = {
    "hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12,
    "num_hidden_layers": 6, "vocab_size": 30522, "max_position_embeddings": 512,
    "type_vocab_size": 2, "layer_norm_eps": 1e-12,
}  # fmt: skip
SETS, CALLS = 4, 30


@dataclass(frozen=True)
class Case:
    """A batch of sentences of one length."""

    batch: int
    words: int
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """One of a kind."""
        return f"{self.batch}x{self.words} {str(self.dtype).removeprefix('torch.')}"

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products, with attention's."""
        each = 4 * 384 * 384 + 2 * 384 * 1536 + 2 * 384 * self.words
        return 2 * 6 * self.batch * self.words * each

    @property
    def bytes(self) -> int:
        """Weights of the layers, once."""
        return 2 * 6 * (4 * 384 * 384 + 2 * 384 * 1536)


def measure(case: Case, options: argparse.Namespace) -> Result:
    """All sides of one case."""
    exact_model = MiniLM(SIZES).eval().cuda()
    model = MiniLM(SIZES).eval().cuda().to(case.dtype)
    model.load_state_dict(exact_model.state_dict())
    shape = case.batch, case.words
    seen = torch.ones(shape, dtype=torch.int64, device="cuda")
    sets = [torch.randint(0, 30522, shape, device="cuda") for _ in range(SETS)]
    sides = Sides(sets, exact_model(sets[0], seen).double(), lambda y: y, lambda ids: ())
    programs: dict[str, Any] = {
        "torch eager": model,
        "torch.compile": torch.compile(model, dynamic=False),
        "kdsl": torch.compile(model, backend="kdsl", dynamic=False, fullgraph=True),
    }
    for name, program in programs.items():
        sides.add(name, lambda ids, program=program: program(ids, seen))
    if options.explain and kf.compiled_graphs():
        print(kf.compiled_graphs()[-1].explain().split("\n\n")[0], flush=True)
    wall = {name: wall_us(programs[name], sets, seen) for name in sides.launches}
    timed = sides.timed(sides.launches, options.each)
    facts = {"name": case.name, "flops": case.flops, "bytes": case.bytes, "chosen": "kdsl"}
    told = ", ".join(f"{name} {us:.0f} µs" for name, us in wall.items())
    print(f"wall {case.name}: {told}", flush=True)
    return {**facts, **timed, "wall_us": wall}


def wall_us(program: Any, sets: list[Any], seen: Any) -> float:
    """Microseconds of a call, many behind each other, the last one waited for."""
    for ids in sets:
        program(ids, seen)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for call in range(CALLS):
        program(sets[call % SETS], seen)
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - begun) / CALLS


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--each", type=float, default=2, help="seconds of timing for each case")
    parser.add_argument("--shapes", nargs="+", default=["1x16", "8x128", "64x256"])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"])
    parser.add_argument("--explain", action="store_true")
    options = parser.parse_args()
    cases = [
        Case(*map(int, shape.split("x")), getattr(torch, dtype))
        for dtype in options.dtypes
        for shape in options.shapes
    ]
    # `torch_dynamo_backends` entry points need an installed package; from a checkout, say it here.
    if "kdsl" not in torch._dynamo.list_backends():
        from kdsl_fuse.frontends.torch.backend import kdsl

        torch._dynamo.register_backend(kdsl, name="kdsl")
    run(cases, lambda case: measure(case, options), options.seconds, "minilm")


if __name__ == "__main__":
    main()
