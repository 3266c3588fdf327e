"""Finding the fastest configuration of a kernel: spaces, searches, and where their work is done."""

from __future__ import annotations

from kdsl_runtime.problem import Problem
from kdsl_runtime.tune.cuda import CudaEvents
from kdsl_runtime.tune.executors import Dask, Executor, Inline, LocalProcesses
from kdsl_runtime.tune.measure import Backend, Effort, Place, Trial
from kdsl_runtime.tune.origins import load_space
from kdsl_runtime.tune.predict import Predicted
from kdsl_runtime.tune.search import Budget, Outcome, Progress, find_best
from kdsl_runtime.tune.space import Call, Rejection, Space, random_data
from kdsl_runtime.tune.store import Journal, Record
from kdsl_runtime.tune.worker import Worker, WorkerLost

__all__ = [
    "Backend",
    "Budget",
    "Call",
    "CudaEvents",
    "Dask",
    "Effort",
    "Executor",
    "Inline",
    "Journal",
    "LocalProcesses",
    "Outcome",
    "Place",
    "Predicted",
    "Problem",
    "Progress",
    "Record",
    "Rejection",
    "Space",
    "Trial",
    "Worker",
    "WorkerLost",
    "find_best",
    "load_space",
    "random_data",
]
