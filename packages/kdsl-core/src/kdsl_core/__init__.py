"""The low-level language of kdsl: layouts, tensors, hardware atoms, kernels.

Write `import kdsl_core as kd`. Names are loaded when they are first used, so that the import itself
stays cheap.
"""

from __future__ import annotations

import importlib
from typing import Any

from kdsl_core.dtypes import (
    DType,
    bf16,
    boolean,
    e4m3,
    e5m2,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    tf32,
    u8,
    u16,
    u32,
    u64,
)
from kdsl_core.errors import (
    ArgumentError,
    BuildError,
    CacheError,
    DriverError,
    FusionError,
    HazardError,
    KdslError,
    LayoutError,
    ResourceError,
    StagingError,
    TargetError,
    TypeMismatch,
    VerifyError,
)

__version__ = "0.1.0"

# module → the names that it gives to `kd`; "name=other" renames.
_NAMES = {
    "inspect": "show svg",
    "ir.target": "Target target_of",
    "lang.clusters": "cluster_rank cluster_idx cluster_dim cluster_arrive cluster_wait cluster_sync"
    " peer",
    "lang.atomics": "atomic_add atomic_min atomic_max atomic_exchange atomic_cas",
    "lang.bulk": "bulk_load bulk_store",
    "lang.copy": "copy copy_if convert_fragment prefetch",
    "lang.functions": "func",
    "lang.kernel": "kernel KernelFunction",
    "lang.mbarriers": "mbarrier Mbarrier Mbarriers fence_mbarrier_init",
    "lang.memory": "smem rmem rmem_like recast",
    "lang.math": "exp exp2 log log2 sqrt rsqrt reciprocal tanh sin cos erf ndtr sigmoid floor ceil",
    "lang.numbers": "fma where ceil_div minimum maximum min=minimum max=maximum abs=absolute",
    "lang.printing": "print=print_",
    "lang.ranges": "range=Range",
    "lang.scalar": "Scalar as_scalar",
    "lang.signature": "Static",
    "lang.simulate": "simulate Simulated",
    "lang.spec": "spec",
    "lang.struct": "struct",
    "lang.tensor": "Tensor identity_tensor",
    "lang.tiled": "TiledMma TiledCopy tiled_mma tiled_copy tiled_copy_A tiled_copy_B tiled_copy_C"
    " gemm",
    "lang.tma": "tma_load tma_store TmaLoad TmaStore tma_store_commit tma_store_wait",
    "lang.tma_im2col": "tma_im2col TmaIm2col",
    "lang.views": "tensor local_tile local_partition size",
    "lang.warp_groups": "elect_one warp_uniform set_max_registers min_blocks_per_sm wgmma_fence"
    " wgmma_commit wgmma_wait",
    "loc": "role",
    "lang.words": "thread_idx block_idx block_dim grid_dim thread_rank lane_idx warp_idx"
    " warpgroup_idx sync_threads sync_warp named_barrier fence cp_async_commit cp_async_wait"
    " shfl_xor shfl_up shfl_down shfl_idx ballot any_sync all_sync warp_reduce fence_proxy_async"
    " wait_for_dependencies launch_dependents",
    "layout": "Layout ComposedLayout Swizzle E ScaledBasis make_layout make_ordered_layout"
    " make_layout_like make_identity_layout make_tv_layout cosize rank depth shape stride get"
    " flatten group_modes select take append prepend coalesce filter=filter_layout filter_zeros"
    " composition complement right_inverse left_inverse max_common_layout max_common_vector"
    " logical_divide zipped_divide tiled_divide flat_divide logical_product zipped_product"
    " tiled_product flat_product blocked_product raked_product recast_layout tile_to_shape crd2idx"
    " idx2crd slice_ dice slice_and_offset domain_offset nullspace vector_width show_tv sym"
    " invert_tv same_function make_layout_left make_layout_right",
}
_MODULES = ("atoms", "collective", "inspect", "isa", "layout", "passes", "ptx", "sim", "testing")
_HOME: dict[str, tuple[str, str]] = {}
for _module, _list in _NAMES.items():
    for _word in _list.split():
        _name, _, _other = _word.partition("=")
        _HOME[_name] = (_module, _other or _name)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"kdsl_core.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'kdsl_core' has no attribute {name!r}")
    module, attribute = _HOME[name]
    value = getattr(importlib.import_module(f"kdsl_core.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})


__all__ = [
    "ArgumentError",
    "BuildError",
    "CacheError",
    "DType",
    "DriverError",
    "FusionError",
    "HazardError",
    "KdslError",
    "LayoutError",
    "ResourceError",
    "StagingError",
    "TargetError",
    "TypeMismatch",
    "VerifyError",
    "bf16",
    "boolean",
    "e4m3",
    "e5m2",
    "f16",
    "f32",
    "f64",
    "i8",
    "i16",
    "i32",
    "i64",
    "tf32",
    "u8",
    "u16",
    "u32",
    "u64",
]
