"""Tuning on a Dask cluster: two worker processes of this machine stand for a fleet."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pytest

from kdsl_core.errors import ArgumentError
from kdsl_runtime.tune import Dask, Predicted, WorkerLost, find_best

TIME_LIMIT_S = 20.0


@pytest.mark.slow
def test_a_cluster_tunes(spaces, problem):
    """Both workers build and judge; what breaks a candidate's process costs no worker."""
    distributed = pytest.importorskip("distributed", reason="pip install 'kdsl-runtime[fleet]'")
    cluster = distributed.LocalCluster(
        n_workers=2, processes=True, threads_per_worker=1, dashboard_address=None
    )
    with cluster:
        fleet = Dask.at(cluster.scheduler_address, TIME_LIMIT_S)
        try:
            assert fleet.workers == 2
            backend = Predicted("NVIDIA H200")
            (outcome,) = find_best(spaces("SPACE"), [problem], backend, executor=fleet)
            assert outcome.winner.config == {"threads": 32, "step": 1}
            assert len(outcome.records) == 8
            pids = {fleet.submit(os.getpid).result() for _ in range(2)}
            with pytest.raises(WorkerLost, match="SIGABRT"):
                fleet.submit(os.abort).result()
            assert fleet.submit(os.getpid).result() not in {os.getpid(), *cluster_pids(cluster)}
            assert not pids & cluster_pids(cluster)
        finally:
            fleet.close()


def cluster_pids(cluster) -> set[int]:
    """The processes of the workers themselves."""
    return {worker.pid for worker in cluster.workers.values()}


def test_without_dask(monkeypatch):
    """The extra is named."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ArgumentError, match="Dask is not installed") as caught:
        Dask.at("localhost:8786")
    assert caught.value.code == "K767" and "[fleet]" in caught.value.fix


def test_without_a_scheduler(monkeypatch):
    """The address is named."""

    def refuse(address: str) -> None:
        raise OSError(f"Timed out trying to connect to {address}")

    absent = ModuleType("distributed")
    absent.Client = refuse
    monkeypatch.setitem(sys.modules, "distributed", absent)
    with pytest.raises(ArgumentError, match="nowhere:1") as caught:
        Dask.at("nowhere:1")
    assert caught.value.code == "K768"
