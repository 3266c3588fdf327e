"""Kernel times on a GPU: CUDA graphs of many launches on rotating buffers, replayed by turns."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from shapes import launches_per_graph

Launch = Callable[[int], Any]

SOAK_SECONDS = 0.3
LONG_SECONDS = 3e-3  # against the 10 µs in which the host enqueues a graph
FEWEST_TURNS, MOST_TURNS = 7, 101
QUERY = "name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"


@dataclass(frozen=True)
class Times:
    """Seconds of one launch, over the turns."""

    median: float
    low: float
    high: float
    turns: int

    @property
    def spread(self) -> float:
        """(90th − 10th percentile) / median."""
        return (self.high - self.low) / self.median

    def record(self) -> dict[str, float]:
        """For the JSON."""
        return {**asdict(self), "spread": self.spread}


def summary(samples: list[float]) -> Times:
    """Median and the 10th and 90th percentile."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    low, high = ordered[round(0.1 * last)], ordered[round(0.9 * last)]
    return Times(statistics.median(ordered), low, high, len(ordered))


@dataclass(frozen=True)
class Side:
    """A CUDA graph of `launches` launches over all buffer sets; `launch` is kept for its buffers.

    With `lead_in` an untimed replay goes first: the host enqueues the timed one meanwhile, so that
    its own time to do so is not measured.
    """

    graph: Any
    launch: Launch
    launches: int
    lead_in: bool = True

    def seconds(self) -> float:
        """Time of one launch in one replay."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if self.lead_in:
            self.graph.replay()
        start.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return 1e-3 * start.elapsed_time(end) / self.launches


def captured(launch: Launch, launches: int, lead_in: bool = True) -> Side:
    """The launches as a graph; what a launch allocates lives in the graph's pool."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            launch(i)
    return Side(graph, launch, launches, lead_in)


def warmed(launch: Launch, sets: int) -> None:
    """Launch once on every set of buffers, so that nothing is built or encoded later."""
    for i in range(sets):
        launch(i)
    torch.cuda.synchronize()


def prepared(launch: Launch, sets: int, least_seconds: float = 250e-6) -> Side:
    """A graph of at least so many seconds: long against the timer's resolution."""
    warmed(launch, sets)
    once = captured(launch, sets)
    seconds = once.seconds()
    launches = launches_per_graph(seconds, sets, least_seconds)
    lead_in = seconds * launches < LONG_SECONDS
    if launches == sets:
        return replace(once, lead_in=lead_in)
    return captured(launch, launches, lead_in)


def quick(launch: Launch, sets: int) -> float:
    """Seconds of one launch, best of a few replays: to choose what is worth the long run."""
    side = prepared(launch, sets)
    return min(side.seconds() for _ in range(4 if side.lead_in else 2))


def interleaved(sides: dict[str, Side], seconds: float) -> dict[str, Times]:
    """Times of all sides, replayed A B A B … for about `seconds` behind a soak."""
    soak(sides, SOAK_SECONDS)
    samples: dict[str, list[float]] = {name: [] for name in sides}
    start = time.monotonic()
    for turn in range(MOST_TURNS):
        for name, side in sides.items():
            samples[name].append(side.seconds())
        if turn + 1 >= FEWEST_TURNS and time.monotonic() - start > seconds:
            break
    return {name: summary(values) for name, values in samples.items()}


def soak(sides: dict[str, Side], seconds: float) -> None:
    """Keep the chip busy until its clock has settled."""
    end = time.monotonic() + seconds
    while sides and time.monotonic() < end:
        for side in sides.values():
            side.seconds()


def copy_bandwidth(size: int = 1 << 30, replays: int = 15) -> float:
    """Bytes per second, read and written, of a kernel that copies `size` bytes.

    A kernel, for the copies that a graph makes by itself are slower (2.8 of 4.1 TB/s on an H200).
    """
    source = torch.randn(size // 4, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    side = captured(lambda _: torch.mul(source, 1.0, out=target), 4)
    soak({"copy": side}, SOAK_SECONDS)
    return 2 * size / statistics.median(side.seconds() for _ in range(replays))


def busy_record(side: Side) -> dict[str, float]:
    """The clock and the power of the chip while it works, where NVML can be asked."""
    try:
        import pynvml
    except ImportError:
        return {}
    side.graph.replay()
    try:
        pynvml.nvmlInit()
        chip = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
        clock = pynvml.nvmlDeviceGetClockInfo(chip, pynvml.NVML_CLOCK_SM)
        watts = 1e-3 * pynvml.nvmlDeviceGetPowerUsage(chip)
    except pynvml.NVMLError:
        return {}
    torch.cuda.synchronize()
    return {"sm_clock_mhz": clock, "power_w": watts}


def device_record() -> dict[str, str]:
    """Name, driver, clocks and power now, as nvidia-smi gives them, and PyTorch's version."""
    record = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return {**record, "nvidia-smi": str(error)}
    return {
        **record,
        **dict(zip(QUERY.split(","), answer.stdout.strip().split(", "), strict=False)),
    }
