"""Building blocks of kernels, written in the language itself: loaders, fragments, epilogues."""

from __future__ import annotations

from kdsl_core.collective.epilogue import EpilogueStage
from kdsl_core.collective.fragments import FragmentLoader
from kdsl_core.collective.raster import grouped_raster
from kdsl_core.collective.simple import mma_tile, store_tile
from kdsl_core.collective.tiles import TileLoader, access_elements, shared_tile

__all__ = [
    "EpilogueStage",
    "FragmentLoader",
    "TileLoader",
    "access_elements",
    "grouped_raster",
    "mma_tile",
    "shared_tile",
    "store_tile",
]
