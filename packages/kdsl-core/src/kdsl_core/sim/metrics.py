"""What Nsight Compute calls each counter, and whether the two must be equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_SASS = "the assembler chooses the machine instructions: it merges, splits, drops and predicates"


@dataclass(frozen=True)
class Metric:
    """Counters of a profile and the metrics of Nsight Compute whose sums are the same number.

    `names` and `ncu` are sums; `page` is the column of ncu's source page that has the number by
    line. `exact` says that they must be equal on Hopper, unless the assembler removes an access or
    spills, or one of the counters `unless` is not 0; without it ours is an estimate. Where one of
    the counters `beside` is not 0 in the kernel, ncu gives neighbouring lines a part, and only the
    total must be equal. `why` says what stands against it, or what to mind.
    """

    names: tuple[str, ...]
    ncu: tuple[str, ...]
    exact: bool
    why: str = ""
    page: str = ""
    unless: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    def binds(self, counts: Mapping[str, float]) -> bool:
        """Whether the two must be equal where these were counted, in total or in a line."""
        return self.exact and not any(counts.get(name) for name in self.unless)

    def binds_by_line(self, counts: Mapping[str, float], totals: Mapping[str, float]) -> bool:
        """Whether the two must be equal in a line, which has `counts` of the kernel's `totals`."""
        return self.binds(counts) and not any(totals.get(name) for name in self.beside)


def _global(kinds: tuple[str, ...], *ops: str, why: str = "") -> tuple[Metric, ...]:
    """Requests and sectors of some kinds of access to global memory."""
    return tuple(
        Metric(
            tuple(f"{kind}_{measure}" for kind in kinds),
            tuple(f"l1tex__t_{measure}_pipe_lsu_mem_global_op_{op}.sum" for op in ops),
            True,
            why,
        )
        for measure in ("requests", "sectors")
    )


def _shared(name: str, op: str, exact: bool = True, why: str = "") -> Metric:
    """Wavefronts of one kind of access to shared memory."""
    metric = f"smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum"
    return Metric((f"{name}_wavefronts",), (metric,), exact, why)


def _pipe(name: str, exact: bool = False, why: str = _SASS) -> Metric:
    return Metric((f"pipe_{name}",), (f"smsp__inst_executed_pipe_{name}.sum",), exact, why)


def _tma(name: str, metric: str, exact: bool, why: str = "") -> Metric:
    return Metric(
        (f"tma_{name}_bytes", f"bulk_{name}_bytes"), (f"l1tex__{metric}.sum",), exact, why
    )


def _cluster(name: str, op: str) -> tuple[Metric, ...]:
    return tuple(
        Metric(
            (f"cluster_{name}_{measure}",),
            (f"l1tex__t_{measure}_pipe_lsu_mem_dshared_op_{op}.sum",),
            True,
        )
        for measure in ("requests", "sectors")
    )


_MERGES_DATA = "what arrives from L2 in pieces is written in pieces: ours is the least"
_ACCESSES = ("global_load", "global_store", "global_atomic", "async_copy")
_LDGSTS = "pipe_lsu_mem_global_op_ldgsts_cache"
_EXPANDS = "divisions and roots become sequences with fused multiply-adds of their own"
METRICS: tuple[Metric, ...] = (
    *_global(("global_load", "async_copy"), "ld", why="ncu counts `cp.async` as loads, too"),
    *_global(("global_store",), "st"),
    *_global(("global_atomic",), "atom", "red"),
    *(
        Metric(
            (f"async_copy_{measure}",),
            tuple(
                f"sm__sass_l1tex_t_{measure}_{_LDGSTS}_{how}.sum" for how in ("access", "bypass")
            ),
            True,
            "copies of which `source_bytes` leaves nothing move no sector",
        )
        for measure in ("requests", "sectors")
    ),
    _shared("shared_load", "ld"),
    _shared("shared_store", "st"),
    _shared("ldmatrix", "ldsm"),
    _shared("stmatrix", "stsm"),
    _shared("async_copy", "ldgsts", False, _MERGES_DATA),
    _shared(
        "shared_atomic",
        "atom",
        False,
        "lanes of a word are served at once where 1 is added and nobody reads the result; "
        "elsewhere they are counted one by one, and what the hardware merges is not known",
    ),
    Metric(
        ("wavefronts",),
        ("memory_l1_wavefronts_shared",),
        True,
        "but for `cp.async` and atomics, as above; wgmma reads its operands once a warp group, and "
        "ncu gives the line of a fence or store near it half of that",
        page="L1 Wavefronts Shared",
        unless=("async_copy_wavefronts", "shared_atomic_wavefronts"),
        beside=("wgmma_wavefronts",),
    ),
    Metric(
        ("ideal_wavefronts",),
        ("memory_l1_wavefronts_shared_ideal",),
        True,
        "of instructions in which every lane takes part; wgmma's by line as above",
        page="L1 Wavefronts Shared Ideal",
        beside=("wgmma_wavefronts",),
    ),
    Metric(
        tuple(f"{kind}_tag_requests" for kind in _ACCESSES),
        ("memory_l1_tag_requests_global",),
        True,
        "a request has one for each line of 128 bytes that it touches",
        page="L1 Tag Requests Global",
    ),
    Metric(
        tuple(f"{kind}_sectors" for kind in _ACCESSES),
        ("memory_l2_theoretical_sectors_global",),
        True,
        page="L2 Theoretical Sectors Global",
    ),
    _tma("load", "m_xbar2l1tex_read_bytes_mem_global_op_tma_ld", True, "whole sectors in ncu"),
    _tma("store", "m_l1tex2xbar_write_bytes_mem_global_op_tma_st", True),
    _tma("reduce", "m_l1tex2xbar_write_bytes_mem_global_op_tma_red", True),
    *_cluster("load", "ld"),
    *_cluster("store", "st"),
    Metric(
        ("cluster_send_sectors",),
        ("l1tex__m_l1tex2xbar_write_sectors_mem_dshared_op_tma_st.sum",),
        True,
    ),
    Metric(
        ("pipe_tensor_op_hmma", "pipe_tensor_op_gmma"),
        ("smsp__inst_executed_pipe_tensor_op_hmma.sum",),
        False,
        "ncu counts wgmma here as well, and `HFMA2.MMA`, with which the assembler makes constants "
        "where it likes; fp8 `mma.sync` is emulated, with other instructions",
    ),
    _pipe("tensor_op_gmma", True, ""),
    _pipe("tensor_op_imma", True, ""),
    Metric(
        ("tensor_flops_bf16",),
        ("sm__ops_path_tensor_src_bf16_dst_fp32.sum",),
        True,
        "of `mma.sync` and of wgmma",
    ),
    Metric(
        ("tensor_flops_f16",),
        ("sm__ops_path_tensor_src_fp16_dst_fp32.sum", "sm__ops_path_tensor_src_fp16_dst_fp16.sum"),
        False,
        "never compared: ncu lists no such metrics for GH100",
    ),
    *(
        Metric(
            (f"thread_{op}",),
            (f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum",),
            op != "ffma",
            _EXPANDS,
        )
        for op in ("fadd", "fmul", "ffma")
    ),
    *(_pipe(name) for name in ("fma", "alu", "xu", "fp64", "lsu", "adu", "cbu", "tma")),
    Metric(("instructions",), ("smsp__inst_executed.sum",), False, _SASS, "Instructions Executed"),
    Metric(
        ("threads",),
        ("smsp__thread_inst_executed.sum",),
        False,
        _SASS,
        "Thread Instructions Executed",
    ),
    Metric(
        ("divergent_branches",),
        ("smsp__sass_branch_targets_threads_divergent.sum",),
        False,
        "the assembler turns short branches into predicates",
        "Divergent Branches",
    ),
)
"""Every comparison; counters that are not here have no metric: `barrier_waits` and the other waits
(ncu samples how long warps stall, it does not count waits), `ideal_sectors` (ncu takes every lane's
bytes for distinct), `footprint_…` (a lower bound of DRAM traffic, which caches decide)."""
