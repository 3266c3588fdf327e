"""What the tuner and the dispatch tables cost beside the candidates themselves."""

from __future__ import annotations

import os
import resource

import kdsl_core as kd
from kdsl_fuse.kernels import gemm_sm90_table as table
from kdsl_fuse.kernels.gemm_sm90_plan import DEVICE
from kdsl_fuse.kernels.gemm_sm90_space import SPACE
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune import Worker


class Watched:
    """A process that runs candidates."""

    def setup(self) -> None:
        """One that has started."""
        self.worker = Worker()
        self.worker.run(os.getpid)

    def teardown(self) -> None:
        """End it."""
        self.worker.close()

    def time_call(self) -> None:
        """A function that does nothing, there and back."""
        self.worker.run(os.getpid)

    def track_start_cpu_ms(self) -> float:
        """Processor time from nothing to the first answer, and the end."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        worker = Worker()
        worker.run(os.getpid)
        worker.close()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    for benchmark in (time_call, track_start_cpu_ms):
        benchmark.version = "1"
    del benchmark


class Choosing:
    """Choices for one product of 4096³."""

    def setup(self) -> None:
        """A table that was read once."""
        self.key = table.Key.of(4096, 4096, 4096, kd.bf16, kd.bf16)
        self.problem = Problem.parse("m=4096,n=4096,k=4096,dtype=bf16")
        table.find(DEVICE, self.key)

    def time_entry(self) -> None:
        """The entry of the product."""
        table.find(DEVICE, self.key)

    def time_points(self) -> None:
        """All configurations of the space, ranked."""
        SPACE.points(self.problem)

    for benchmark in (time_entry, time_points):
        benchmark.version = "1"
    del benchmark
