"""The Hopper GEMM configurations that were fastest when measured: its dispatch tables.

The package's, `tables/gemm_sm90-<device>.json`, are written by benchmarks/make_table.py, the user's
by `kdsl tune gemm_sm90`. Only sizes that were measured have entries: the model knows the others
better than a neighbour does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from kdsl_core.dtypes import DType, dtype_of
from kdsl_core.records import dataclass
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_runtime import dispatch
from kdsl_runtime.cache.location import AnyPath
from kdsl_runtime.problem import Problem

KERNEL = "gemm_sm90"
TABLES = os.path.join(os.path.dirname(__file__), "tables")
_ALIKE = {"f16": "bf16"}  # types that the hardware multiplies equally fast share entries


@dataclass(frozen=True)
class Key:
    """What an entry is for; `tail` is "pointwise" where there is more to do for every element."""

    m: int
    n: int
    k: int
    dtype: str
    result: str
    tail: str = ""

    @classmethod
    def of(cls, m: int, n: int, k: int, dtype: DType, result: DType, tail: bool = False) -> Key:
        """The key of a product, the same for f16 and bf16."""
        types = (_ALIKE.get(t.name, t.name) for t in (dtype, result))
        return cls(m, n, k, *types, "pointwise" if tail else "")

    @property
    def problem(self) -> Problem:
        """The key as tables have it."""
        return Problem({name: value for name, value in vars(self).items() if value})


@dataclass(frozen=True)
class Entry:
    """The fastest way of computing a product: `swap` gives W the side of the rows.

    Units: `us` microseconds, measured.
    """

    key: Key
    config: Sm90Config
    swap: bool
    us: float

    @property
    def stored(self) -> dispatch.Entry:
        """The entry as tables have it."""
        return dispatch.Entry(self.key.problem, options_of(self.config, self.swap), self.us)

    def record(self) -> dict[str, Any]:
        """The entry as JSON has it."""
        return self.stored.record()

    @classmethod
    def read(cls, entry: dispatch.Entry) -> Entry:
        """The entry of a table.

        Raises: what Python does of one that lacks something, and of one that does not fit the chip.
        """
        found = cls(Key(**entry.problem.values), *chosen_by(entry.config), entry.us)
        found.check()
        return found

    def check(self) -> None:
        """Raises: ValueError where the configuration does not fit the chip."""
        element, result = (dtype_of(name).bytes for name in (self.key.dtype, self.key.result))
        problem = model.Problem(self.key.m, self.key.n, self.key.k, element, result)
        needed = model.shared_bytes(self.config, problem)
        if needed > model.SHARED_BYTES:
            raise ValueError(f"{needed} bytes of shared memory, of {model.SHARED_BYTES}")


@cache
def _defaults() -> dict[str, Any]:
    return asdict(Sm90Config((128, 8, 64), 2)) | {"tile": None, "stages": None}


def options_of(config: Sm90Config, swap: bool) -> dict[str, Any]:
    """A plan as tables and the tuner have it: what differs from the defaults."""
    fields = {name: v for name, v in asdict(config).items() if v != _defaults()[name]}
    return fields | ({"swap": True} if swap else {})


def chosen_by(options: Mapping[str, Any]) -> tuple[Sm90Config, bool]:
    """Configuration and swap of a plan's options, the inverse of `options_of`."""
    fields = dict(options)
    swap = bool(fields.pop("swap", False))
    return Sm90Config(**fields), swap


def path_of(device: str) -> str:
    """The file of a device's table in this package."""
    return os.path.join(TABLES, dispatch.file_name(KERNEL, device))


DISPATCH = dispatch.Dispatch(KERNEL, TABLES, within=0.0, check=Entry.read)


def find(device: str, key: Key) -> Entry | None:
    """The entry of a product, if a table of the user or of the package has one.

    Raises: CacheError (K761) naming the file and the entry that cannot be used.
    """
    found = DISPATCH.find(device, key.problem)
    return None if found is None or found.entry is None else Entry.read(found.entry)


def read_table(path: AnyPath) -> Mapping[Key, Entry]:
    """The entries of a file; none if it does not exist.

    Raises: CacheError (K761) naming the file and the entry that cannot be used.
    """
    entries = map(Entry.read, dispatch.read_table(path, Entry.read).values())
    return {entry.key: entry for entry in entries}
