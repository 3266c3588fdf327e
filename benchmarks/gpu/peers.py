"""What is measured beside kdsl: PyTorch's products and every algorithm that cuBLASLt offers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from cublaslt import WORKSPACE_BYTES, CublasError, CublasLt, LtMatmul
from operands import OUTPUTS, Buffers
from shapes import Case
from timing import Launch

functional = torch.nn.functional


@cache
def library() -> CublasLt:
    """cuBLASLt, opened when first needed."""
    return CublasLt()


@cache
def workspace() -> Any:
    """What algorithms may use for partial sums; launches follow each other on one stream."""
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")


def torch_peers(
    case: Case, sets: list[Buffers], compile_modes: tuple[str, ...]
) -> dict[str, Launch]:
    """The ways to write the case in PyTorch; those named "… compile …" need `compile_modes`."""
    if case.dtype == "i8":
        return {"torch._int_mm": lambda i: torch._int_mm(at(sets, i).a, at(sets, i).w.T)}
    if case.dtype == "e4m3":
        return _scaled_peers(sets)
    if case.epilogue == "none":
        return {"cuBLAS": lambda i: torch.mm(at(sets, i).a, at(sets, i).w.T, out=at(sets, i).c)}
    return _fused_peers(case, sets, compile_modes)


def at(sets: list[Buffers], i: int) -> Buffers:
    """The set of buffers of launch i."""
    return sets[i % len(sets)]


def _scaled_peers(sets: list[Buffers]) -> dict[str, Launch]:
    def launch(i: int, fast: bool) -> Any:
        b = at(sets, i)
        scale_a, scale_w = b.scales or ()
        return torch._scaled_mm(
            b.a, b.w.T, scale_a=scale_a.view(()), scale_b=scale_w.view(()),
            out_dtype=torch.bfloat16, use_fast_accum=fast,
        )  # fmt: skip

    return {
        "torch._scaled_mm": lambda i: launch(i, False),
        "torch._scaled_mm fast": lambda i: launch(i, True),
    }


def layer(epilogue: str) -> Callable[[Any, Any, Any], Any]:
    """A linear layer and its activation as users of PyTorch write it."""

    def forward(x: Any, w: Any, bias: Any) -> Any:
        y = functional.linear(x, w, bias)
        return functional.gelu(y, approximate="tanh") if "gelu" in epilogue else y

    return forward


def _fused_peers(case: Case, sets: list[Buffers], modes: tuple[str, ...]) -> dict[str, Launch]:
    programs = {"torch eager": layer(case.epilogue)}
    for mode in modes:
        programs[f"torch.compile {mode}"] = torch.compile(
            layer(case.epilogue), mode=None if mode == "default" else mode, dynamic=False
        )
    peers = {name: _launcher(program, sets) for name, program in programs.items()}
    if "gelu" in case.epilogue:
        zero = torch.zeros(case.n, device="cuda", dtype=OUTPUTS[case.dtype])
        peers["torch._addmm_activation"] = lambda i: torch._addmm_activation(
            zero if at(sets, i).bias is None else at(sets, i).bias,
            at(sets, i).a,
            at(sets, i).w.T,
            use_gelu=True,
        )
    return peers


def _launcher(program: Callable[[Any, Any, Any], Any], sets: list[Buffers]) -> Launch:
    def launch(i: int) -> Any:
        b = at(sets, i)
        with torch.no_grad():
            return program(b.a, b.w, b.bias)

    return launch


def cublaslt_peers(case: Case, sets: list[Buffers]) -> dict[str, Launch]:
    """All algorithms that the library's heuristics offer for the case.

    Products of e4m3 come twice: as they are, and accumulated fast, without promotion.
    """
    peers: dict[str, Launch] = {}
    for fast in (False, True) if case.dtype == "e4m3" else (False,):
        try:
            found = _algorithms(case, sets, fast)
        except CublasError:
            if not peers and case.dtype != "e4m3":
                raise
            continue
        peers.update({f"cuBLASLt{' fast' if fast else ''} #{i}": x for i, x in enumerate(found)})
    return peers


def _algorithms(case: Case, sets: list[Buffers], fast: bool) -> list[Launch]:
    first = sets[0]
    scales = (first.scales[0].data_ptr(), first.scales[1].data_ptr()) if first.scales else None
    product = LtMatmul(
        library(), case.shape, case.dtype, case.epilogue,
        bias=0 if first.bias is None else first.bias.data_ptr(),
        scales=scales, fast_accumulation=fast,
    )  # fmt: skip
    return [_lt_launcher(product, algorithm, sets) for algorithm in product.algorithms()]


def _lt_launcher(product: LtMatmul, algorithm: Any, sets: list[Buffers]) -> Launch:
    space = workspace().data_ptr(), WORKSPACE_BYTES

    def launch(i: int) -> None:
        b = at(sets, i)
        if b.bias is not None:
            product.set_bias(b.bias.data_ptr())
        if b.scales is not None:
            product.set_scales(*(scale.data_ptr() for scale in b.scales))
        stream = torch.cuda.current_stream().cuda_stream
        matrices = b.a.data_ptr(), b.w.data_ptr(), b.c.data_ptr()
        product.run(algorithm, *matrices, space, stream)

    return launch
