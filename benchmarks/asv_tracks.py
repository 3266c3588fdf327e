"""Tracks of asv that come from files: figures of a commit, put among the results that asv ran.

asv starts a process for each number, which suits times; what one process collects as hundreds of
figures goes into the same results here, so that one site shows both.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asv import util
from asv.benchmarks import Benchmarks
from asv.config import Config
from asv.machine import Machine
from asv.repo import get_repo
from asv.results import Results
from asv.runner import BenchmarkResult

HERE = Path(__file__).resolve().parent
CONFIG = HERE / "asv.conf.json"
Cell = tuple[str, ...]


@dataclass
class Track:
    """Numbers of which less is better, by the values of some parameters; `samples` are repetitions
    of one number, of which the median counts."""

    name: str
    unit: str
    parameters: Sequence[str]
    about: str
    samples: dict[Cell, Sequence[float]] = field(default_factory=dict)

    def axes(self, before: Sequence[Sequence[str]] = ()) -> list[list[str]]:
        """The values of each parameter, as asv spells them: those `before`, then new ones."""
        found = []
        for i, _ in enumerate(self.parameters):
            new = (repr(cell[i]) for cell in self.samples)
            found.append(list(dict.fromkeys([*(before[i] if before else ()), *new])))
        return found


def config(root: Path) -> Any:
    """asv's settings for a checkout: its history, and results and site below its `.asv`."""
    loaded = Config.load(str(CONFIG))
    loaded.repo = str(root)
    loaded.results_dir, loaded.html_dir = str(root / ".asv/results"), str(root / ".asv/html/asv")
    return loaded


def here() -> dict[str, str]:
    """This machine as asv describes it."""
    return {name: str(value) for name, value in Machine.get_defaults().items()}


def put(root: Path, machine: Mapping[str, str], commit: str, tracks: Sequence[Track]) -> None:
    """Put a commit's tracks, measured on a machine, into the results of a checkout.

    The checkout has the commit.
    """
    settings = config(root)
    repo = get_repo(settings)
    described = _described(settings, tracks)
    results = Path(settings.results_dir)
    (results / machine["machine"]).mkdir(parents=True, exist_ok=True)
    util.write_json(str(results / machine["machine"] / "machine.json"), dict(machine), 1)
    kept = Results(dict(machine), {}, commit, repo.get_date_from_name(commit), "3", "files", {})
    kept.load_data(str(results))
    for track in tracks:
        kept.add_result(described[track.name], _result(described[track.name], track))
    kept.save(str(results))


def _described(settings: Any, tracks: Sequence[Track]) -> dict[str, dict[str, Any]]:
    """The tracks among asv's benchmarks; parameters only ever get more values."""
    path = Path(settings.results_dir) / "benchmarks.json"
    known = util.load_json(str(path), Benchmarks.api_version) if path.exists() else {}
    known.pop("version", None)
    for track in tracks:
        before = known.get(track.name, {}).get("params", ())
        known[track.name] = {
            "name": track.name, "type": "track", "unit": track.unit, "version": "1",
            "code": track.about, "param_names": list(track.parameters), "timeout": 60,
            "params": track.axes(before),
        }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    util.write_json(str(path), known, Benchmarks.api_version)
    return known


def _result(benchmark: Mapping[str, Any], track: Track) -> BenchmarkResult:
    cells = {tuple(map(repr, cell)): list(samples) for cell, samples in track.samples.items()}
    samples = [cells.get(cell) for cell in itertools.product(*benchmark["params"])]
    values = [math.nan if taken is None else statistics.median(taken) for taken in samples]
    repeated = [taken if taken and len(taken) > 1 else None for taken in samples]
    numbers = [None if taken is None else 1 for taken in repeated]
    return BenchmarkResult(values, repeated, numbers, 0, "", None)


# -- figures of `facts.py` -------------------------------------------------------------------------
FIGURES = {
    "registers": "registers", "spill_bytes": "bytes", "stack_bytes": "bytes",
    "shared_bytes": "bytes", "sm_share": "multiprocessors", "ptx_instructions": "instructions",
    "sass_instructions": "instructions", "run_instructions": "instructions",
    "wavefronts_over_ideal": "times", "sectors_over_ideal": "times", "roofline_us": "µs",
}  # fmt: skip
KIND = re.compile(r"(ptx|sass)_(?!instructions$)(\w+)")


def of_facts(facts: Mapping[str, Any]) -> list[Track]:
    """What `facts.py` found, as tracks: one for each figure of kernels, two of their kinds of
    instructions, one of kdsl itself."""
    kernels = {
        figure: Track(f"kernels.{figure}", unit, ("kernel",), "benchmarks/facts.py")
        for figure, unit in FIGURES.items()
    }
    kinds = {
        form: Track(f"kernels.{form}_kinds", "instructions", ("kernel", "kind"), "by what they do")
        for form in ("ptx", "sass")
    }
    itself = Track("kdsl.counters", "units", ("subject", "figure"), "benchmarks/facts.py")
    for subject, figures in facts["subjects"].items():
        if "registers" not in figures:
            itself.samples |= {(subject, name): [n] for name, n in figures.items()}
            continue
        for name, value in {**figures, **ratios(figures)}.items():
            if name in kernels:
                kernels[name].samples[subject,] = [value]
            elif kind := KIND.fullmatch(name):
                kinds[kind[1]].samples[subject, kind[2]] = [value]
    return [track for track in (*kernels.values(), *kinds.values(), itself) if track.samples]


def ratios(figures: Mapping[str, float]) -> dict[str, float]:
    """What figures say together: passes and sectors over the least, a block's share of a chip."""
    found = {}
    for name in ("wavefronts", "sectors"):
        ideal = figures.get(f"run_ideal_{name}", 0)
        found[f"{name}_over_ideal"] = figures[f"run_{name}"] / ideal if ideal else 1.0
    if blocks := figures.get("blocks_per_sm"):
        found["sm_share"] = 1 / blocks
    return found
