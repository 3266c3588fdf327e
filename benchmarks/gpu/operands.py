"""Random operands of a product on the GPU, and how far a result is from the exact one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from shapes import Case, buffer_sets

DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "e4m3": torch.float8_e4m3fn,
    "i8": torch.int8,
}
OUTPUTS = {**DTYPES, "e4m3": torch.bfloat16, "i8": torch.int32}
SCALES = 0.5, 0.25  # of A and of W where the operands have eight bits of floating point
SAMPLED_ROWS, SAMPLED_COLUMNS, EDGE = 96, 2048, 32
TOLERANCE = {"bf16": 1e-2, "f16": 2e-3, "e4m3": 2e-2, "i8": 0.0}


@dataclass(frozen=True)
class Buffers:
    """One set of operands: A (m, k), W (n, k), C (m, n), the bias (n), the scales of A and W."""

    a: Any
    w: Any
    c: Any
    bias: Any | None = None
    scales: tuple[Any, Any] | None = None

    @property
    def extras(self) -> tuple[Any, ...]:
        """What the epilogue reads, as (m, n) with strides of 0 where it is broadcast."""
        ones = self.scales or ()
        vectors = (self.bias,) if self.bias is not None else ()
        return tuple(x.expand(self.c.shape) for x in (*ones, *vectors))


def random(shape: tuple[int, ...], dtype: str) -> Any:
    """Normal data; whole numbers spread over a quarter of their range."""
    values = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    return (
        (values * 32).clamp(-127, 127).to(torch.int8) if dtype == "i8" else values.to(DTYPES[dtype])
    )


def buffers_of(case: Case) -> list[Buffers]:
    """As many sets as do not fit into the L2 cache together."""
    return [_one_set(case) for _ in range(buffer_sets(case.bytes))]


def _one_set(case: Case) -> Buffers:
    a, w = random((case.m, case.k), case.dtype), random((case.n, case.k), case.dtype)
    c = torch.empty((case.m, case.n), device="cuda", dtype=OUTPUTS[case.dtype])
    bias = random((case.n,), case.dtype) if "bias" in case.epilogue else None
    scales = None
    if case.dtype == "e4m3":
        first, second = (torch.full((1, 1), s, device="cuda") for s in SCALES)
        scales = first, second
    return Buffers(a, w, c, bias, scales)


def spoil(c: Any) -> None:
    """Fill a result with what no product gives."""
    c.fill_(float("nan") if c.is_floating_point() else torch.iinfo(c.dtype).min)


def sampled(size: int, count: int) -> Any:
    """Indices: the last `EDGE`, where tails are, and others at random."""
    if size <= count:
        return torch.arange(size, device="cuda")
    edge = torch.arange(size - EDGE, size, device="cuda")
    return torch.cat([torch.randint(0, size - EDGE, (count - EDGE,), device="cuda"), edge])


def chosen(matrix: Any, rows: Any) -> Any:
    """Rows of a matrix in f64; those of eight bits are picked as bytes."""
    if matrix.element_size() == 1:
        return matrix.view(torch.uint8)[rows].view(matrix.dtype).double()
    return matrix[rows].double()


def exact(case: Case, set_: Buffers, rows: Any, columns: Any) -> Any:
    """The product and its epilogue in f64, at sampled rows and columns."""
    a, w = chosen(set_.a, rows), chosen(set_.w, columns)
    result = a @ w.T
    if set_.scales:
        result *= SCALES[0] * SCALES[1]
    if set_.bias is not None:
        result += set_.bias[columns].double()
    if "gelu" in case.epilogue:
        result = torch.nn.functional.gelu(result, approximate="tanh")
    return result


@dataclass(frozen=True)
class Checker:
    """Knows a case's exact samples, and a whole result of cuBLAS, for the first set of buffers."""

    case: Case
    set: Buffers
    rows: Any
    columns: Any
    samples: Any
    whole: Any

    @classmethod
    def of(cls, case: Case, set_: Buffers, reference: Any) -> Checker:
        """For a whole result `reference` computed by another program."""
        rows, columns = sampled(case.m, SAMPLED_ROWS), sampled(case.n, SAMPLED_COLUMNS)
        samples = exact(case, set_, rows, columns)
        return cls(case, set_, rows, columns, samples, reference.clone())

    def error(self, c: Any) -> float:
        """‖C − exact‖ / ‖exact‖ over the samples."""
        part = c[self.rows][:, self.columns].double()
        return float((part - self.samples).norm() / self.samples.norm())

    def deviation(self, c: Any) -> float:
        """The largest difference from the whole reference, against its largest element."""
        largest = self.whole.abs().max().double()
        return float((c.float() - self.whole.float()).abs().max().double() / largest)

    def wrong(self, error: float, deviation: float) -> bool:
        """Whether a result is not the product; NaN is wrong."""
        limit = TOLERANCE[self.case.dtype]
        return not (error <= limit and deviation <= max(4 * limit, 1e-7))
