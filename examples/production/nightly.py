"""Each night: tune what the service asks for, compare with what was good, and say how it went.

python nightly.py --state /state --manifest manifest.toml [--predict "NVIDIA H200"]

`--state` keeps, from night to night, the table of winners and `kdsl.lock`.
Exit code 1: a kernel changed for the worse, or a winner got slower. `kdsl.prom` in the same folder
has the numbers for Prometheus. Lock and best times stay as they were: the next night fails, too.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import prometheus_client as prometheus
import transposes

import kdsl_runtime as kr
from kdsl_runtime import dispatch, pins, tune

PROBLEMS = ("m=128,n=192,dtype=f32", "m=64,n=64,dtype=f32")
SLOWER = 1.03  # times as long as before, beyond the spread of its own repetitions
WORST_ALLOWED = pins.Severity.BINARY  # other instructions are news, more registers a failure


def tuned(backend: tune.Backend, seconds: float) -> Iterator[tune.Record]:
    """The winner for each problem, measured anew, without a journal of other nights.

    Raises: LookupError where no configuration is right.
    """
    problems = [tune.Problem.parse(text) for text in PROBLEMS]
    budget = tune.Budget(seconds)
    for outcome in tune.find_best(
        transposes.space, problems, backend, executor=tune.Inline(), budget=budget
    ):
        if outcome.winner is None:
            raise LookupError(f"{outcome.problem}: no configuration is right")
        yield outcome.winner


def slower(winner: tune.Record, table: Path) -> float:
    """How many times as long as the table says the winner takes, at the least; 0 if it is new."""
    before = dispatch.read_table(table).get(winner.problem)
    return winner.trial.low / before.us if before else 0.0


def compared(state: Path, manifest: Path) -> pins.Report:
    """What changed since the lock was written; the first night writes it."""
    path = state / "kdsl.lock"
    if not path.exists():
        pins.Lock(pins.pin(variant) for variant in kr.Manifest.load(manifest)).save(path)
    lock = pins.Lock.load(path)
    return pins.report_of(lock, list(pins.rebuilt(lock)))


def exported(state: Path, winners: list[tuple[tune.Record, float]], report: pins.Report) -> None:
    """Write the numbers of this night, and the counters of this process, for Prometheus."""
    registry = prometheus.CollectorRegistry()
    kr.prometheus.register(registry)
    labels = ("kernel", "problem", "device")
    fastest = prometheus.Gauge(
        "kdsl_nightly_fastest_us", "Microseconds of the winner.", labels, registry=registry
    )
    ratio = prometheus.Gauge(
        "kdsl_nightly_slowdown", "Least time ÷ that of before.", labels, registry=registry
    )
    for winner, times in winners:
        problem = str(winner.problem)
        fastest.labels(winner.kernel, problem, winner.device).set(winner.trial.us)
        ratio.labels(winner.kernel, problem, winner.device).set(times)
    facts = {
        "severity": ("Worst change of a pinned kernel, as `kdsl check` exits.", report.worst or 0),
        "kernels": ("Pinned kernels that were built again.", report.checked),
        "finished_seconds": ("When this night ended, in Unix time.", time.time()),
    }
    for name, (what, value) in facts.items():
        prometheus.Gauge(f"kdsl_nightly_{name}", what, registry=registry).set(value)
    prometheus.write_to_textfile(str(state / "kdsl.prom"), registry)


def night(state: Path, manifest: Path, backend: tune.Backend, seconds: float) -> bool:
    """Do all of it; whether everything is as good as it was."""
    state.mkdir(parents=True, exist_ok=True)
    winners: list[tuple[tune.Record, float]] = []
    for winner in tuned(backend, seconds):
        table = state / dispatch.file_name(winner.kernel, winner.device)
        times = slower(winner, table)
        winners.append((winner, times))
        print(f"{winner.problem}: {dict(winner.config)}, {winner.trial.us:.2f} µs, ×{times:.2f}")
        if times < 1.0:  # the best of all nights stays, or slow drift would pass unseen
            dispatch.put(table, winner.device, winner.entry())
    report = compared(state, manifest)
    print(report)
    exported(state, winners, report)
    as_fast = all(times <= SLOWER for _, times in winners)
    return as_fast and (report.worst or 0) <= WORST_ALLOWED


def main() -> int:
    """Read the command line and run one night."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--manifest", type=Path, default=Path("manifest.toml"))
    parser.add_argument("--predict", metavar="DEVICE", help="without a GPU")
    parser.add_argument("--seconds", type=float, default=600.0, help="for the search")
    chosen = parser.parse_args()
    backend = tune.Predicted(chosen.predict) if chosen.predict else tune.CudaEvents()
    return 0 if night(chosen.state, chosen.manifest, backend, chosen.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
