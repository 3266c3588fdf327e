"""The Hopper GEMM configurations that were fastest when measured, for each device a table.

`tables/gemm_sm90-<device>.json` is written by benchmarks/make_table.py and read once, when the
first plan for that device is asked for. A device without a table has no entries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import kdsl_core as kd
from kdsl_core.dtypes import DType, dtype_of
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config

TABLES = Path(__file__).parent / "tables"
_TUPLES = ("tile", "cluster", "registers", "caches")
_ALIKE = {"f16": "bf16"}  # types that the hardware multiplies equally fast share entries


@dataclass(frozen=True)
class Key:
    """What an entry is for."""

    m: int
    n: int
    k: int
    dtype: str
    result: str

    @classmethod
    def of(cls, m: int, n: int, k: int, dtype: DType, result: DType) -> Key:
        """The key of a product, the same for f16 and bf16."""
        return cls(m, n, k, *(_ALIKE.get(t.name, t.name) for t in (dtype, result)))


@dataclass(frozen=True)
class Entry:
    """The fastest way of computing a product: `swap` gives W the side of the rows.

    Units: `us` microseconds, measured.
    """

    key: Key
    config: Sm90Config
    swap: bool
    us: float

    def record(self) -> dict[str, Any]:
        """The entry as JSON has it: what differs from a configuration's defaults is left out."""
        fields = {n: v for n, v in asdict(self.config).items() if v != _DEFAULTS.get(n)}
        return {**asdict(self.key), "swap": self.swap, "us": self.us, "config": fields}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Entry:
        """The entry of a record. Raises: what Python does of a record that lacks something."""
        fields: dict[str, Any] = {
            n: tuple(v) if n in _TUPLES else v for n, v in record["config"].items()
        }
        key = Key(*(record[name] for name in ("m", "n", "k", "dtype", "result")))
        for name in (key.dtype, key.result):
            dtype_of(name)
        entry = cls(key, Sm90Config(**fields), record["swap"], record["us"])
        entry.check()
        return entry

    def check(self) -> None:
        """Raises: ValueError where the configuration does not fit the chip."""
        element, result = (dtype_of(name).bytes for name in (self.key.dtype, self.key.result))
        problem = model.Problem(self.key.m, self.key.n, self.key.k, element, result)
        needed = model.shared_bytes(self.config, problem)
        if needed > model.SHARED_BYTES:
            raise ValueError(f"{needed} bytes of shared memory, of {model.SHARED_BYTES}")


_DEFAULTS = asdict(Sm90Config((128, 8, 64), 2)) | {"tile": None, "stages": None}


def path_of(device: str) -> Path:
    """The file of a device's table."""
    return TABLES / f"gemm_sm90-{device.replace(' ', '_').replace('/', '_')}.json"


def find(device: str, key: Key) -> Entry | None:
    """The entry of a product, if the device's table has one."""
    return read_table(path_of(device)).get(key)


@lru_cache
def read_table(path: Path) -> Mapping[Key, Entry]:
    """The entries of a file; none if it does not exist.

    Raises: CacheError (K934) naming the file and the entry that cannot be used.
    """
    if not path.is_file():
        return {}
    place, found = "the file", {}
    try:
        records = json.loads(path.read_text(encoding="utf-8"))["entries"]
        for number, record in enumerate(records):
            place = f"entry {number} ({record!r:.90})"
            entry = Entry.read(record)
            found[entry.key] = entry
    except (KeyError, TypeError, ValueError, AttributeError, kd.KdslError) as error:
        raise kd.CacheError(
            f"{path}: {place} is no entry of a Hopper GEMM table: {type(error).__name__}: {error}",
            code="K934",
            fix="write the table anew with benchmarks/make_table.py, or delete it",
        ) from error
    return found
