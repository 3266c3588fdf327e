"""What a kernel computes, as one hash: a run in the simulator on numbers that are always the same.

The simulator's tensor cores and approximate functions are bit-exact, its accurate functions round
exactly, and mathematical libraries take no part. So the hash depends on the kernel and on kdsl.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kdsl_core.errors import ArgumentError, BuildError, HazardError, KdslError
from kdsl_core.lang.arguments import Bound, facts_of
from kdsl_core.lang.launch import extent
from kdsl_core.lang.simulate import simulate_traced
from kdsl_core.lang.tensor_class import TensorClass
from kdsl_core.sim.profile import Profile
from kdsl_runtime.manifest import Sample, Variant
from kdsl_runtime.pins.sample_data import SMALL_INTEGERS, canonical_bytes, tensor

# Tried in order until the simulator finds no hazard: first sizes that leave partial tiles, then
# whole tiles, for kernels without bounds checks.
_SIZES = (64, 256, 1024)
_FEW_MODES = 3  # with more, the sizes are a quarter
_MOST_ELEMENTS = 1 << 22
_A_FLOAT = 1.25


@dataclass(frozen=True)
class Digest:
    """The hash of all tensors after the run, the complete sample that it was made on, and what it
    counted."""

    value: str
    sample: Sample
    profile: Profile = field(compare=False, repr=False)


def digest_of(variant: Variant) -> Digest:
    """The numerics of a variant on its sample; what that leaves open is chosen here.

    Without a stated grid one cluster of blocks runs, or one block.

    Raises: BuildError K740 when the simulator finds a hazard at every size that is tried.
    """
    problem: KdslError | None = None
    for sample in _samples(variant):
        try:
            return _run(variant, sample)
        except (HazardError, ArgumentError) as found:
            problem = found
    assert problem is not None
    raise BuildError(
        f"{variant.kernel} has no numerics digest: {problem.message}",
        code="K740",
        notes=[str(variant)],
        fix="state sizes, grid and scalars that it runs on: [kernel.sample] in the manifest",
    ) from problem


def _samples(variant: Variant) -> Iterator[Sample]:
    """What is tried; once only where the variant leaves nothing open."""
    first = completed(variant, 0)
    yield first
    for attempt in range(1, len(_SIZES)):
        if (sample := completed(variant, attempt)) != first:
            yield sample


def completed(variant: Variant, attempt: int) -> Sample:
    """The variant's sample with whatever it leaves open, by the sizes of one attempt."""
    needed, stated = variant.specialisation(), variant.sample
    modes = max((len(c.sizes) for c in needed.classes), default=0)
    base = _SIZES[attempt] // (1 if modes <= _FEW_MODES else 4)
    sizes = {
        name: base + (divisor if attempt == 0 else 0)
        for c in needed.classes
        for name, divisor in c.sizes
        if name
    }
    scalars = {
        p.name: _A_FLOAT if p.dtype.is_float else SMALL_INTEGERS if p.dtype.is_int else True
        for p in variant.function().signature.parameters
        if p.kind == "scalar"
    }
    grid = stated.grid or needed.cluster or (1, 1, 1)
    return Sample(tuple(grid), {**sizes, **stated.sizes}, {**scalars, **stated.scalars})


def _run(variant: Variant, sample: Sample) -> Digest:
    needed, kernel = variant.specialisation(), variant.function()
    _check_size(variant, needed.classes, sample)
    arrays = {c.name: tensor(c, sample.sizes) for c in needed.classes}
    bound = Bound(
        {name: facts_of(array, name) for name, array in arrays.items()},
        dict(sample.scalars),
        {name: value for name, _, value in needed.statics},
    )
    grid = extent(sample.grid, "grid")
    ran = simulate_traced(kernel.traced(needed), grid, bound, {"numerics": "exact"})
    hashed = hashlib.sha256()
    for c in needed.classes:
        hashed.update(f"{c.name} {arrays[c.name].shape}\0".encode())
        hashed.update(canonical_bytes(arrays[c.name], c.dtype))
    return Digest(hashed.hexdigest(), sample, ran.profile)


def _check_size(variant: Variant, classes: Sequence[TensorClass], sample: Sample) -> None:
    elements = sum(math.prod(sample.sizes.get(name, n) for name, n in c.sizes) for c in classes)
    if elements > _MOST_ELEMENTS:
        raise BuildError(
            f"the sample of {variant.kernel} has {elements} elements, more than {_MOST_ELEMENTS}",
            code="K741",
            notes=[str(variant)],
            fix="state smaller sizes in [kernel.sample.sizes] of the manifest",
        )
