"""Other configurations of our memory-bound kernels that compute the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from row_cases import Operation, Pointwise, with_config

from kdsl_fuse.kernels.rows import RowConfig
from kdsl_fuse.kernels.rows_plan import RowsPlan
from kdsl_fuse.kernels.rows_sharing import MULTIPROCESSORS, ringed_by, staged_by

CACHES = {
    "load cs": {"load": "cs"}, "store cs": {"store": "cs"},
    "both cs": {"load": "cs", "store": "cs"}, "load nc": {"load": "nc"},
    "store cg": {"store": "cg"},
}  # fmt: skip
MOST_THREADS, MOST_BLOCKS = 1024, 8
CHANGES = {  # factors of lanes, vectors, cluster
    "lanes x2": (2, 0.5, 1), "lanes x4": (4, 0.25, 1), "lanes /2": (0.5, 2, 1),
    "cluster x2": (0.5, 1, 2), "cluster x2 deep": (0.25, 2, 2), "cluster x2 flat": (1, 0.5, 2),
    "cluster /2": (2, 1, 0.5),
}  # fmt: skip
STAGED = (  # lanes, vectors, factor of the cluster, blocks that share a multiprocessor
    (512, 2, 1, 3), (512, 1, 1, 2), (512, 2, 2, 3), (512, 1, 1, 3), (256, 4, 1, 3), (256, 2, 2, 6),
    (384, 2, 1, 3), (512, 2, 0.5, 1), (1024, 1, 1, 1), (256, 4, 1, 4),
    (320, 1, 1, 3), (320, 1, 1.5, 3), (512, 1, 2 / 3, 2),
)  # fmt: skip
RINGED = (  # cluster, lanes, vectors, groups, blocks that share a multiprocessor
    (1, 512, 2, 1, 1), (1, 512, 1, 1, 1), (1, 256, 4, 1, 1), (2, 512, 2, 1, 1), (2, 512, 1, 1, 1),
    (2, 256, 4, 1, 1), (2, 256, 2, 2, 1), (2, 512, 2, 1, 2), (4, 256, 2, 2, 1), (4, 256, 2, 3, 1),
    (4, 512, 1, 1, 1), (4, 512, 1, 1, 2), (4, 256, 4, 1, 2),
)  # fmt: skip
CROWD = 8  # times as many clusters as have a place: they come when others end
STREAMED = ((512, 4), (256, 4), (1024, 4), (128, 4), (512, 2))  # lanes, vectors
IN_QUESTION = 4  # the first of each
MOST_KEPT = 64  # bytes of a thread
WARP = 32
STAGED_FROM = 4096  # columns


def some(plan: Any, op: Operation, choice: str) -> dict[str, Any]:
    """Those that are asked for: `few`, `all`, or `ring`."""
    if choice == "ring":
        return ringed(plan, RINGED) if isinstance(plan, RowsPlan) else {}
    return few(plan, op) if choice == "few" else every(plan)


def few(plan: Any, op: Operation) -> dict[str, Any]:
    """What is in question: a handful for each kind of plan."""
    if not isinstance(plan, RowsPlan):
        return {}
    found = staged(plan, STAGED[:IN_QUESTION])
    if plan.config.streamed:
        found |= streamed(plan, STREAMED[:IN_QUESTION])
    elif plan.config.staged:
        late = replace(plan.config, early=not plan.config.early)
        found["late" if plan.config.early else "early"] = with_config(plan, late)
        if plan.program != op.program:
            found["two phases"] = replace(plan, program=op.program)
    else:
        found = dict(list(found.items())[:1])
        found["lanes x2"] = every(plan)["lanes x2"]
    return found


def every(plan: Any) -> dict[str, Any]:
    """All that are known."""
    if plan.config is None:
        return {}
    found = {name: replace(plan.config, **options) for name, options in CACHES.items()}
    if isinstance(plan, Pointwise):
        for vectors in (1, 2, 4, 8):
            for threads in (128, 256, 512):
                name = f"{threads}x{vectors}"
                changed = {"vectors": vectors, "threads": threads, "partial": True}
                found[name] = replace(plan.config, **changed)
    elif not plan.config.in_turns:
        found |= held(plan.config)
    made = {name: with_config(plan, config) for name, config in found.items()}
    if isinstance(plan, RowsPlan):
        made |= staged(plan, STAGED) | ringed(plan, RINGED) | streamed(plan, STREAMED)
    return made


def held(c: RowConfig) -> dict[str, RowConfig]:
    """Rows in registers, by more or fewer threads."""
    found = {"early": replace(c, early=not c.early)}
    for name, factors in CHANGES.items():
        shared = (c.lanes, c.vectors, c.cluster)
        lanes, vectors, cluster = (int(x * f) for x, f in zip(shared, factors, strict=True))
        same = lanes * vectors * cluster == c.lanes * c.vectors * c.cluster
        if not same or lanes > MOST_THREADS or cluster > MOST_BLOCKS or cluster > 1 > lanes // 64:
            continue
        groups = max(c.threads // lanes, 1) if cluster == 1 else 1
        found[name] = replace(
            c, lanes=lanes, vectors=vectors, cluster=cluster, groups=groups, partial=True
        )
        found[f"{name}, both cs"] = replace(found[name], load="cs", store="cs")
    for groups in (c.groups // 2, c.groups * 2):
        if groups and c.cluster == 1 and WARP <= groups * c.lanes <= MOST_THREADS:
            found[f"groups {groups}"] = replace(c, groups=groups, partial=True)
    if c.cluster == 1:
        found[f"together {c.together * 2}"] = replace(c, together=c.together * 2, partial=True)
    return found


def staging_fits(plan: RowsPlan) -> bool:
    """Whether rows are long, and the copy engine can take them: 16 bytes a vector."""
    return plan.columns >= STAGED_FROM and plan.columns % 8 == 0 and plan.config.width == 8


def staged(plan: RowsPlan, shapes: Any) -> dict[str, RowsPlan]:
    """Rows in shared memory, where they fit."""
    c = plan.config
    if not staging_fits(plan):
        return {}
    found: dict[str, RowsPlan] = {}
    size = 2 * plan.program.inputs
    for lanes, vectors, factor, blocks in shapes:
        cluster = int(c.cluster * factor)
        if not 1 <= cluster <= MOST_BLOCKS:
            continue
        config = replace(c, lanes=lanes, vectors=vectors, cluster=cluster, streamed=False)
        config = staged_by(config, plan.columns, size, blocks)
        if config.kept * vectors * c.width * size <= MOST_KEPT and config != c:
            name = f"staged {lanes}x{vectors} /{cluster}, {blocks}"
            found[name] = with_config(plan, config)
    return found


def ringed(plan: RowsPlan, shapes: Any) -> dict[str, RowsPlan]:
    """Rows through rings of shared memory in blocks that stay, where they fit."""
    c = plan.config
    if not staging_fits(plan):
        return {}
    found: dict[str, RowsPlan] = {}
    for cluster, lanes, vectors, groups, blocks in shapes:
        shape = RowConfig(8, lanes, vectors, groups, cluster=cluster, load=c.load, store=c.store)
        config = ringed_by(shape, plan.columns, 2 * plan.program.inputs, blocks)
        if config is None:
            continue
        name = f"ring {lanes}x{vectors}x{groups} /{cluster}, {blocks}"
        places = {config.clusters: ""}
        places.setdefault(MULTIPROCESSORS * blocks // cluster, ", all")
        places[config.clusters * CROWD] = f", x{CROWD}"
        for clusters, words in places.items():
            found[name + words] = with_config(plan, replace(config, clusters=clusters))
    return found


def streamed(plan: RowsPlan, shapes: Any) -> dict[str, RowsPlan]:
    """Rows that are read again for each phase."""
    found: dict[str, RowsPlan] = {}
    for lanes, vectors in shapes if plan.columns >= STAGED_FROM else ():
        config = RowConfig(plan.config.width, lanes, vectors, streamed=True, partial=False)
        if config != plan.config:
            found[f"streamed {lanes}x{vectors}"] = with_config(plan, config)
    return found
