"""Building blocks of kernels, written in the language itself: loaders, pipelines, epilogues."""

from __future__ import annotations

from kdsl_core.collective.choice import OutputChoice, TmaChoice
from kdsl_core.collective.epilogue import EpilogueStage
from kdsl_core.collective.fragment_epilogue import FragmentEpilogue, WarpGroup, results_of
from kdsl_core.collective.fragments import FragmentLoader
from kdsl_core.collective.operand_ring import OperandRing
from kdsl_core.collective.operands import TileShare, TmaOperand, TmaPair, tma_can_address
from kdsl_core.collective.outputs import TileOutput
from kdsl_core.collective.paired_output import PairedOutput
from kdsl_core.collective.pipeline import TmaPipeline
from kdsl_core.collective.raster import grouped_raster
from kdsl_core.collective.scheduler import TileScheduler
from kdsl_core.collective.simple import mma_tile, store_tile
from kdsl_core.collective.start import init_together
from kdsl_core.collective.tiles import (
    PairLoader,
    TileLoader,
    access_elements,
    contiguous_mode,
    line_copy,
    shared_tile,
)
from kdsl_core.collective.tma_store import TmaStoreStage

__all__ = [
    "EpilogueStage",
    "FragmentEpilogue",
    "FragmentLoader",
    "OperandRing",
    "OutputChoice",
    "PairLoader",
    "PairedOutput",
    "TileLoader",
    "TileOutput",
    "TileScheduler",
    "TileShare",
    "TmaChoice",
    "TmaOperand",
    "TmaPair",
    "TmaPipeline",
    "TmaStoreStage",
    "WarpGroup",
    "access_elements",
    "contiguous_mode",
    "grouped_raster",
    "init_together",
    "line_copy",
    "mma_tile",
    "results_of",
    "shared_tile",
    "store_tile",
    "tma_can_address",
]
