"""Why a node was not fused: stable codes, each with a sentence that names the values."""

from __future__ import annotations

from dataclasses import dataclass

CODES = {
    "KF-COST": "another choice of kernels saves more time",
    "KF-DTYPE": "a dtype that the kernel does not compute with or store",
    "KF-ESCAPES": "an interior value is also needed outside the kernel",
    "KF-LAYOUT": "strides that the kernel cannot read",
    "KF-PATTERN": "no pattern contains this operator at this place",
    "KF-RANK": "a rank that the kernel does not take",
    "KF-SHAPE": "a shape that does not fit the kernel's output tile",
    "KF-TARGET": "the target lacks the instructions of the kernel",
}


@dataclass(frozen=True)
class Reason:
    """One refusal: a key of `CODES`, a sentence with the values, and the mend if there is one."""

    code: str
    sentence: str
    fix: str | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.sentence}"
