"""Measured configurations of the Hopper GEMM: from the files of tuning runs to one compact file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kdsl_core.dtypes import dtype_of
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan, parse, problem_of
from kdsl_fuse.kernels.gemm_sm90_table import Entry, Key

RESULTS = {"e4m3": "bf16", "e5m2": "bf16", "i8": "i32", "u8": "i32"}  # of the benchmark's cases


@dataclass
class Measured:
    """A product and the microseconds of each plan that was tried, by `str(plan)`.

    `note` says what sets a measurement apart; those with one, or with a pointwise `tail`, are not
    used for fitting.
    """

    m: int
    n: int
    k: int
    us: dict[str, float]
    dtype: str = "bf16"
    result: str = "bf16"
    note: str = ""
    tail: bool = False
    rivals: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """The key of the product in a dispatch table."""
        types = dtype_of(self.dtype), dtype_of(self.result)
        return Key.of(self.m, self.n, self.k, *types, self.tail)

    @property
    def best(self) -> str:
        """The fastest plan's text."""
        return min(self.us, key=self.us.__getitem__)

    def plans(self) -> list[tuple[Sm90Plan, float]]:
        """The plans and their microseconds."""
        problem = problem_of(self.m, self.n, self.k, dtype_of(self.dtype), dtype_of(self.result))
        return [(Sm90Plan(problem, *parse(text)), us) for text, us in self.us.items()]

    def entry(self) -> Entry:
        """The entry of the fastest plan."""
        config, swap = parse(self.best)
        return Entry(self.key, config, swap, self.us[self.best])


def read(paths: Iterable[Path]) -> list[Measured]:
    """What the files hold; where several hold the same product, the last one's."""
    found: dict[Key, Measured] = {}
    for path in paths:
        for measured in _records(path):
            if measured.us:
                found[measured.key] = measured
    return [found[key] for key in sorted(found, key=lambda key: (key.m * key.n * key.k, repr(key)))]


def _records(path: Path) -> Iterator[Measured]:
    """Products of a journal of tuning, a file of `write`, or one of benchmarks/gpu/gemm.py."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        for line in text.splitlines():
            record = json.loads(line)
            yield Measured(
                *record["shape"], record["us"],
                tail=record.get("tail", False), rivals={"cuBLAS": record["cublas"]},
            )  # fmt: skip
        return
    whole = json.loads(text)
    for record in whole.get("products", ()):
        yield Measured(**record)
    for record in whole.get("results", ()):
        if "sides" in record:
            yield _of_benchmark(record)


def _of_benchmark(record: dict[str, Any]) -> Measured:
    us = {
        name.removeprefix("sm90 "): round(1e6 * side["median"], 2)
        for name, side in record["sides"].items()
        if name.startswith("sm90 ") and "median" in side
    }
    dtype = record["dtype"]
    sizes, result = (record["m"], record["n"], record["k"]), RESULTS.get(dtype, dtype)
    tail = record.get("epilogue", "none") != "none"
    return Measured(*sizes, us, dtype, result, tail=tail)


def write(path: Path, products: list[Measured], **facts: str) -> None:
    """One file of all products, a line for each."""
    lines = [json.dumps({k: v for k, v in vars(p).items() if v}) for p in products]
    write_lines(path, facts, "products", lines)


def write_lines(path: Path, facts: dict[str, str], name: str, lines: list[str]) -> None:
    """A JSON object of facts and a list with a line for each element."""
    head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in facts.items())
    body = ",\n".join(lines)
    path.write_text(f'{{\n{head}"{name}": [\n{body}\n]\n}}\n', encoding="utf-8")
