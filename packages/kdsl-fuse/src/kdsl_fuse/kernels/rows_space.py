"""The space of row-wise kernels: `kdsl tune rows --shapes op=softmax,m=8192,n=8192,dtype=bf16`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import kdsl_core as kd
from kdsl_core.dtypes import DType, dtype_of
from kdsl_core.lang.spec import ArraySpec
from kdsl_fuse.kernels import row_programs
from kdsl_fuse.kernels.row_programs import RowProgram
from kdsl_fuse.kernels.rows import RowConfig
from kdsl_fuse.kernels.rows_plan import RowsPlan, choose
from kdsl_fuse.kernels.rows_sharing import MULTIPROCESSORS, ringed_by, staged_by
from kdsl_runtime.dispatch import Config
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune import Call, Space

EPS = 1e-5
BOUND = 8e-3  # of the largest element: bf16 rounds it by 2e-3
OPERATORS = ("softmax", "rms_norm", "layer_norm")
_BLOCKS = (1, 128, 256)  # threads; one row at least
_MOST_THREADS, _MOST_BLOCKS = 1024, 8
_MOST_RESIDENT = 1536  # threads, of staged rows: each has 40 registers then
_MOST_KEPT = 64  # bytes of a row in a thread's registers
_CHANGES = (  # factors of lanes, vectors, cluster
    (1, 1, 1), (2, 0.5, 1), (0.5, 2, 1), (4, 0.25, 1), (0.5, 1, 2), (0.25, 2, 2), (1, 0.5, 2),
    (2, 1, 0.5), (1, 2, 0.5),
)  # fmt: skip
_CACHES = (("", ""), ("evict_last", "cs"), ("cs", ""), ("", "cs"), ("cs", "cs"))


def program_of(problem: Problem, online: bool = False) -> RowProgram:
    """The operator named by the problem; `online` in one phase."""
    if problem["op"] == "softmax":
        return row_programs.softmax(fast=_dtype(problem).bits <= 16, online=online)
    centred = problem["op"] == "layer_norm"
    return row_programs.norm(EPS, centred=centred, bias=centred, online=online)


def _dtype(problem: Problem) -> DType:
    return dtype_of(problem["dtype"])


def tensors(problem: Problem) -> Mapping[str, ArraySpec]:
    """Results y (m, n), inputs x, and operands of the columns, in the kernel's order."""
    shape, dtype = (problem.size("m"), problem.size("n")), _dtype(problem)
    weights = {"softmax": (), "rms_norm": ("weight",), "layer_norm": ("weight", "bias")}
    named = {name: kd.spec(dtype, shape) for name in ("y", "x")}
    named |= {name: kd.spec(dtype, shape[1:]) for name in weights[str(problem["op"])]}
    return named


def first(problem: Problem, staging: bool = True, rings: bool = True) -> RowsPlan:
    """What is chosen without tuning, among staged rows as well or not, in rings or not."""
    program, in_turns = (program_of(problem, online) for online in (False, True))
    operands = tensors(problem).values()
    return choose(program, *operands, in_turns=in_turns, staging=staging, rings=rings)


def configs(problem: Problem) -> Iterator[Config]:
    """The chosen configuration, rows shared among more or fewer threads and blocks, and caches.

    Where rows go through rings, staged ones as well, and where they are staged, held ones.
    """
    chosen = first(problem).config
    for staged, ring in ((True, True), (True, False), (False, False)):
        if (chosen.ring or not ring) and (chosen.staged or not staged):
            yield from _around(problem, staged, ring)


def _around(problem: Problem, staged: bool, ring: bool) -> Iterator[Config]:
    chosen, seen = first(problem, staged, ring).config, set()
    for lanes, vectors, cluster in _CHANGES:
        shared = {
            "lanes": int(chosen.lanes * lanes), "vectors": int(chosen.vectors * vectors),
            "cluster": int(chosen.cluster * cluster),
        }  # fmt: skip
        for groups in {max(threads // max(shared["lanes"], 1), 1) for threads in _BLOCKS}:
            for together in {1, chosen.together}:
                for load, store in _CACHES:
                    config = {**shared, "groups": groups, "together": together,
                              "load": load, "store": store, "staged": staged,
                              "ring": ring}  # fmt: skip
                    if tuple(config.values()) not in seen:
                        seen.add(tuple(config.values()))
                        yield config


def config_of(problem: Problem, config: Config) -> RowConfig:
    """The whole configuration; without a ring where there is no room for one."""
    staged, ring, size = bool(config["staged"]), bool(config.get("ring")), _dtype(problem).bytes
    chosen, columns = first(problem, staged, ring).config, problem.size("n")
    none = {"staged": 0, "ring": 0, "clusters": 0, "kept": 0, "resident": 0}
    changed = replace(chosen, **{**config, **none}, partial=True)
    if ring:
        ringed = ringed_by(replace(changed, partial=False), columns, size, 1)
        waves = chosen.clusters * chosen.cluster // MULTIPROCESSORS
        return replace(ringed, clusters=ringed.clusters * waves) if ringed else changed
    if staged:
        resident = max(min(chosen.resident, _MOST_RESIDENT // changed.lanes), 1)
        return staged_by(changed, columns, size, resident)
    return replace(changed, ragged=changed.columns != columns)


def holds(problem: Problem, config: Config) -> str | None:
    """The threads of a row hold it, in whole warps of blocks that exist."""
    if 0 in (config["lanes"], config["vectors"], config["cluster"]):
        return "a row needs a thread, a vector and a block"
    c = config_of(problem, config)
    if config.get("ring") and not c.ring:
        return f"no room for a ring of rows of {problem.size('n')} columns"
    if c.threads % 32 or c.threads > _MOST_THREADS or c.cluster > _MOST_BLOCKS:
        return f"blocks of {c.threads} threads, clusters of {c.cluster}"
    if c.cluster > 1 and (c.lanes < 32 or (c.groups > 1 and not c.ring)):
        return "a cluster shares one row among whole warps"
    if c.lanes > 32 and c.lanes % 32:
        return f"{c.lanes} threads are no whole warps"
    if c.staged:
        size = c.kept * c.vectors * c.width * _dtype(problem).bytes
        return None if size <= _MOST_KEPT else f"{size} bytes of a row in a thread's registers"
    spare = c.columns - problem.size("n")
    if not c.streamed and not 0 <= spare < c.columns // c.vectors:
        return f"{c.columns} columns are held, rows have {problem.size('n')}"
    return None


def calls(problem: Problem, config: Config, given: Mapping[str, Any]) -> Sequence[Call]:
    """One launch."""
    plan = first(problem, bool(config["staged"]), bool(config.get("ring")))
    plan = replace(plan, config=config_of(problem, config))
    operands = [given[name] for name in tensors(problem)]
    views = (plan.described if isinstance(operands[0], ArraySpec) else plan.views)(operands)
    return [Call(plan.launch, tuple(views), plan.statics)]


def reference(problem: Problem, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The operator in f64 by NumPy."""
    x = given["x"].astype(np.float64)
    if problem["op"] == "softmax":
        powers = np.exp(x - x.max(1, keepdims=True))
        return {"y": powers / powers.sum(1, keepdims=True)}
    if problem["op"] == "layer_norm":
        x = x - x.mean(1, keepdims=True)
    y = x / np.sqrt((x * x).mean(1, keepdims=True) + EPS) * given["weight"].astype(np.float64)
    return {"y": y + given["bias"].astype(np.float64) if "bias" in given else y}


def known(problem: Problem, config: Config) -> str | None:
    """There is such an operator."""
    known = problem["op"] in OPERATORS
    return None if known else f"{problem['op']} is not one of {', '.join(OPERATORS)}"


SPACE = Space(
    "rows",
    options=configs,
    constraints=(known, holds),
    tensors=tensors,
    calls=calls,
    reference=reference,
    bound=BOUND,
)
