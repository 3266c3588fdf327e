"""Changes that bring a graph into the form that patterns expect, in the order of application."""

from __future__ import annotations

from collections.abc import Callable

from kdsl_fuse.graph import Graph
from kdsl_fuse.rewrites.activations import recognise_activations
from kdsl_fuse.rewrites.attention import recognise_attention
from kdsl_fuse.rewrites.batch_norm import fold_batch_norm
from kdsl_fuse.rewrites.constants import fold_constants
from kdsl_fuse.rewrites.dead_nodes import drop_dead_nodes
from kdsl_fuse.rewrites.equal_nodes import merge_equal_nodes
from kdsl_fuse.rewrites.gemm_form import split_gemm
from kdsl_fuse.rewrites.losses import split_losses
from kdsl_fuse.rewrites.norms import recognise_norms
from kdsl_fuse.rewrites.sink_views import sink_views
from kdsl_fuse.rewrites.views import merge_views

ALL_REWRITES: tuple[Callable[[Graph], None], ...] = (
    drop_dead_nodes,
    split_gemm,
    split_losses,
    fold_batch_norm,
    fold_constants,
    merge_views,
    merge_equal_nodes,
    recognise_activations,
    recognise_norms,
    recognise_attention,
    sink_views,
    merge_views,
    merge_equal_nodes,
    drop_dead_nodes,
)


def rewrite(graph: Graph) -> None:
    """Apply all of them once, in place."""
    for change in ALL_REWRITES:
        change(graph)
