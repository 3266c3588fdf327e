"""The configurations of the Hopper convolution that were fastest when measured.

The package's, `tables/conv_sm90-<device>.json`, are written by benchmarks/make_conv_table.py. Only
sizes that were measured have entries: the model knows the others better than a neighbour does.
"""

from __future__ import annotations

from dataclasses import dataclass

from kdsl_core.dtypes import dtype_of
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels.conv_tables import TABLES
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.gemm_sm90_table import chosen_by, options_of
from kdsl_runtime import dispatch
from kdsl_runtime.problem import Problem

KERNEL = "conv_sm90"


@dataclass(frozen=True)
class Entry:
    """The fastest way of computing a convolution: `swap` gives filters the side of the rows.

    Units: `us` microseconds, measured.
    """

    key: Problem
    config: Sm90Config
    swap: bool
    us: float

    @property
    def stored(self) -> dispatch.Entry:
        """The entry as tables have it."""
        return dispatch.Entry(self.key, options_of(self.config, self.swap), self.us)

    @classmethod
    def read(cls, entry: dispatch.Entry) -> Entry:
        """The entry of a table.

        Raises: what Python does of one that lacks something, and of one that does not fit the chip.
        """
        found = cls(entry.problem, *chosen_by(entry.config), entry.us)
        element, result = (dtype_of(found.key.values[name]).bytes for name in ("dtype", "result"))
        needed = model.shared_bytes(found.config, model.Problem(1, 8, 1, element, result))
        if needed > model.SHARED_BYTES:
            raise ValueError(f"{needed} bytes of shared memory, of {model.SHARED_BYTES}")
        return found


DISPATCH = dispatch.Dispatch(KERNEL, TABLES, within=0.0, check=Entry.read)


def find(device: str, key: Problem) -> Entry | None:
    """The entry of a convolution, if a table of the user or of the package has one.

    Raises: CacheError (K761) naming the file and the entry that cannot be used.
    """
    found = DISPATCH.find(device, key)
    return None if found is None or found.entry is None else Entry.read(found.entry)
