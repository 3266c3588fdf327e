"""What Nsight Compute calls each counter, and whether the two must be equal."""

from __future__ import annotations

from dataclasses import dataclass

_SASS = "the assembler chooses the machine instructions: it merges, splits, drops and predicates"


@dataclass(frozen=True)
class Metric:
    """Counters of a profile and the metrics of Nsight Compute whose sums are the same number.

    `names` and `ncu` are sums; `page` is the column of ncu's source page that has the number by
    line. `exact` says that they must be equal on Hopper, unless the assembler removes an access or
    spills; `why` says what stands against it, or what to mind.
    """

    names: tuple[str, ...]
    ncu: tuple[str, ...]
    exact: bool
    why: str = ""
    page: str = ""


def _global(name: str, *ops: str) -> tuple[Metric, ...]:
    """Requests and sectors of one kind of access to global memory."""
    return tuple(
        Metric(
            (f"global_{name}_{measure}",),
            tuple(f"l1tex__t_{measure}_pipe_lsu_mem_global_op_{op}.sum" for op in ops),
            True,
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


_LDGSTS = "pipe_lsu_mem_global_op_ldgsts_cache"
_EXPANDS = "divisions and roots become sequences with fused multiply-adds of their own"
METRICS: tuple[Metric, ...] = (
    *_global("load", "ld"),
    *_global("store", "st"),
    *_global("atomic", "atom", "red"),
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
    _shared("async_copy", "ldgsts"),
    _shared(
        "shared_atomic",
        "atom",
        False,
        "lanes that update one word are counted one by one; what the hardware merges is not known",
    ),
    Metric(
        ("wavefronts",),
        ("memory_l1_wavefronts_shared",),
        True,
        "without atomics",
        page="L1 Wavefronts Shared",
    ),
    Metric(
        ("ideal_wavefronts",),
        ("memory_l1_wavefronts_shared_ideal",),
        True,
        "of instructions in which every lane takes part",
        page="L1 Wavefronts Shared Ideal",
    ),
    Metric(
        ("global_load_requests", "global_store_requests", "global_atomic_requests"),
        ("memory_l1_tag_requests_global",),
        False,
        "a request to several lines of 128 bytes has a tag request for each",
        page="L1 Tag Requests Global",
    ),
    Metric(
        ("global_load_sectors", "global_store_sectors", "global_atomic_sectors"),
        ("memory_l2_theoretical_sectors_global",),
        True,
        "without cp.async",
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
    _pipe("tensor_op_hmma", True, "fp8 `mma.sync` is emulated on Hopper, with other instructions"),
    _pipe("tensor_op_gmma", True),
    _pipe("tensor_op_imma", True),
    Metric(
        ("tensor_flops_bf16",),
        ("sm__ops_path_tensor_src_bf16_dst_fp32.sum",),
        False,
        "ncu does not count the operations of wgmma",
    ),
    Metric(
        ("tensor_flops_f16",),
        ("sm__ops_path_tensor_src_fp16_dst_fp32.sum", "sm__ops_path_tensor_src_fp16_dst_fp16.sum"),
        False,
        "ncu does not count the operations of wgmma",
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
