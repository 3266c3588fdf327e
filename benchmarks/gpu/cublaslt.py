"""cuBLASLt by ctypes: a product of row-major matrices with any of the library's algorithms.

cuBLASLt is column-major: C[M, N] row-major is Cᵀ column-major, so the product computed is
Cᵀ[N, M] = (W as K × N, transposed) · (A as K × M), and the library's "A" is W.

Source: cublasLt.h, cublas_api.h and library_types.h of CUDA 13.0 (nvidia-cublas 13.1.0.3).
"""

from __future__ import annotations

import ctypes
import importlib.util
from ctypes import POINTER, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from enum import IntEnum
from pathlib import Path

REQUESTED = 16
WORKSPACE_BYTES = 64 << 20


class DataType(IntEnum):
    """cudaDataType."""

    F32 = 0
    F16 = 2
    I8 = 3
    I32 = 10
    BF16 = 14
    E4M3 = 28


class Compute(IntEnum):
    """cublasComputeType_t."""

    F32 = 68
    I32 = 72


class DescAttribute(IntEnum):
    """cublasLtMatmulDescAttributes_t."""

    TRANSA = 3
    TRANSB = 4
    EPILOGUE = 7
    BIAS_POINTER = 8
    A_SCALE_POINTER = 17
    B_SCALE_POINTER = 18
    FAST_ACCUM = 25


class Epilogue(IntEnum):
    """cublasLtEpilogue_t; GELU is the tanh formula."""

    DEFAULT = 1
    BIAS = 4
    GELU = 32
    GELU_BIAS = 36


OP_N, OP_T = 0, 1
PREFERENCE_MAX_WORKSPACE_BYTES = 1
EPILOGUES = {
    "none": Epilogue.DEFAULT,
    "bias": Epilogue.BIAS,
    "gelu": Epilogue.GELU,
    "gelu+bias": Epilogue.GELU_BIAS,
}
OPERAND_TYPES = {
    "bf16": DataType.BF16,
    "f16": DataType.F16,
    "e4m3": DataType.E4M3,
    "i8": DataType.I8,
}
OUTPUT_TYPES = {
    "bf16": DataType.BF16,
    "f16": DataType.F16,
    "e4m3": DataType.BF16,
    "i8": DataType.I32,
}


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = (("data", c_uint64 * 8),)


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class CublasError(RuntimeError):
    """A call of cuBLASLt did not return CUBLAS_STATUS_SUCCESS."""


SIGNATURES = {
    "cublasLtCreate": (POINTER(c_void_p),),
    "cublasLtMatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "cublasLtMatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulDescDestroy": (c_void_p,),
    "cublasLtMatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutDestroy": (c_void_p,),
    "cublasLtMatmulPreferenceCreate": (POINTER(c_void_p),),
    "cublasLtMatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulPreferenceDestroy": (c_void_p,),
    "cublasLtMatmulAlgoGetHeuristic": (
        *(c_void_p,) * 7,
        c_int,
        POINTER(HeuristicResult),
        POINTER(c_int),
    ),
    "cublasLtMatmul": (
        *(c_void_p,) * 12,  # handle, operation, alpha, A, its layout, B, …, beta, C, …, D, …
        POINTER(Algorithm),
        c_void_p,
        c_size_t,
        c_void_p,
    ),
}


def library_paths() -> list[Path]:
    """Where cuBLASLt may lie: beside PyTorch's other CUDA libraries, then the toolkit."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    folders = [root / part / "lib" for root in roots for part in ("cu13", "cublas")]
    folders += [Path("/usr/local/cuda/lib64"), Path("/usr/local/cuda/targets/x86_64-linux/lib")]
    return [path for folder in folders for path in sorted(folder.glob("libcublasLt.so.1[23]"))]


class CublasLt:
    """The library with its handle."""

    def __init__(self) -> None:
        self.path, self._library = _opened()
        for name, arguments in SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, c_int
        self._library.cublasLtGetVersion.restype = c_size_t
        self.version = int(self._library.cublasLtGetVersion())
        self.handle = c_void_p()
        self.call("cublasLtCreate", byref(self.handle))

    def call(self, name: str, *arguments: object) -> None:
        """Call a function that returns a status.

        Raises: CublasError, with the status, when it is not 0.
        """
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CublasError(f"{name} returned status {status}")

    def created(self, name: str, *arguments: object) -> c_void_p:
        """An opaque object of the library."""
        made = c_void_p()
        self.call(name, byref(made), *arguments)
        return made


def _opened() -> tuple[str, ctypes.CDLL]:
    for path in library_paths():
        return str(path), ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    for name in ("libcublasLt.so.13", "libcublasLt.so.12"):
        try:
            return name, ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise CublasError("libcublasLt.so.13 or .12 was expected beside PyTorch or in CUDA, found none")


def layouts_of(m: int, n: int, k: int) -> tuple[tuple[int, int, int], ...]:
    """(rows, columns, leading dimension), column-major, of W, A and C for row-major matrices."""
    return (k, n, k), (k, m, k), (n, m, n)


class LtMatmul:
    """C[M, N] = epilogue(A[M, K] · W[N, K]ᵀ): descriptors, and the algorithms on offer."""

    def __init__(
        self,
        library: CublasLt,
        shape: tuple[int, int, int],
        dtype: str,
        epilogue: str = "none",
        *,
        bias: int = 0,
        scales: tuple[int, int] | None = None,
        fast_accumulation: bool = False,
    ) -> None:
        self.library = library
        whole = dtype == "i8"
        scale_type = DataType.I32 if whole else DataType.F32
        self.operation = library.created(
            "cublasLtMatmulDescCreate", Compute.I32 if whole else Compute.F32, scale_type
        )
        self._one, self._zero = (c_int32(1), c_int32(0)) if whole else (c_float(1), c_float(0))
        self.set(DescAttribute.TRANSA, c_int32(OP_T))
        self.set(DescAttribute.TRANSB, c_int32(OP_N))
        self.set(DescAttribute.EPILOGUE, c_int32(EPILOGUES[epilogue]))
        if bias:
            self.set_bias(bias)
        if scales:
            self.set_scales(*scales)
        if fast_accumulation:
            self.set(DescAttribute.FAST_ACCUM, ctypes.c_int8(1))
        kinds = OPERAND_TYPES[dtype], OPERAND_TYPES[dtype], OUTPUT_TYPES[dtype]
        self.w, self.a, self.c = (
            library.created("cublasLtMatrixLayoutCreate", kind, *layout)
            for kind, layout in zip(kinds, layouts_of(*shape), strict=True)
        )

    def set(self, attribute: DescAttribute, value: ctypes._SimpleCData) -> None:
        """Set an attribute of the operation."""
        self.library.call(
            "cublasLtMatmulDescSetAttribute",
            self.operation,
            attribute,
            byref(value),
            ctypes.sizeof(value),
        )

    def set_bias(self, address: int) -> None:
        """The bias of N elements of C's type that the next launches add."""
        self.set(DescAttribute.BIAS_POINTER, c_void_p(address))

    def set_scales(self, a: int, w: int) -> None:
        """Where the f32 factors of A and of W lie; W is the library's A."""
        self.set(DescAttribute.A_SCALE_POINTER, c_void_p(w))
        self.set(DescAttribute.B_SCALE_POINTER, c_void_p(a))

    def algorithms(self, workspace_bytes: int = WORKSPACE_BYTES) -> list[Algorithm]:
        """What the library's heuristics offer, its favourite first."""
        preference = self.library.created("cublasLtMatmulPreferenceCreate")
        limit = c_size_t(workspace_bytes)
        self.library.call(
            "cublasLtMatmulPreferenceSetAttribute",
            preference,
            PREFERENCE_MAX_WORKSPACE_BYTES,
            byref(limit),
            ctypes.sizeof(limit),
        )
        found, results = c_int(), (HeuristicResult * REQUESTED)()
        self.library.call(
            "cublasLtMatmulAlgoGetHeuristic",
            *(self.library.handle, self.operation, self.w, self.a, self.c, self.c, preference),
            *(REQUESTED, results, byref(found)),
        )
        self.library.call("cublasLtMatmulPreferenceDestroy", preference)
        return [result.algorithm for result in results[: found.value] if result.state == 0]

    def run(
        self, algorithm: Algorithm, a: int, w: int, c: int, workspace: tuple[int, int], stream: int
    ) -> None:
        """Launch on a stream; matrices and the (address, bytes) of the workspace as addresses."""
        self.library.call(
            "cublasLtMatmul",
            *(self.library.handle, self.operation, byref(self._one)),
            *(w, self.w, a, self.a, byref(self._zero), c, self.c, c, self.c),
            *(byref(algorithm), *workspace, stream),
        )

    def close(self) -> None:
        """Give the descriptors back."""
        self.library.call("cublasLtMatmulDescDestroy", self.operation)
        for layout in (self.w, self.a, self.c):
            self.library.call("cublasLtMatrixLayoutDestroy", layout)
