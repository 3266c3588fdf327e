"""How the threads of a block begin: one of them makes what all of them wait at."""

from __future__ import annotations

from typing import Any

from kdsl_core.lang.clusters import cluster_dim, cluster_sync
from kdsl_core.lang.functions import func
from kdsl_core.lang.mbarriers import fence_mbarrier_init
from kdsl_core.lang.words import sync_threads, thread_rank


@func
def init_together(*parts: Any) -> None:
    """Let one thread `init` each of the parts, then let all meet.

    Threads: all of the block; where it is in a cluster, all of the cluster.
    Memory: mbarriers that `init` makes are known to all of them afterwards, and to TMA.
    """
    if thread_rank() == 0:
        for part in parts:
            part.init()
        fence_mbarrier_init()
    if cluster_dim() == (1, 1, 1):
        sync_threads()
    else:
        cluster_sync()
