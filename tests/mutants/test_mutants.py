"""A fixed sample of the campaign, and of unchanged kernels; `dev.py mutants` runs all of it."""

from __future__ import annotations

import re
from collections import Counter
from importlib import import_module
from pkgutil import iter_modules

import pytest

from kdsl_core.ir.printer import print_kernel
from kdsl_core.lang.kernel import KernelFunction
from kdsl_fuse import kernels
from mutants.campaign import chosen, equivalents, judged
from mutants.cases import cases
from mutants.clean import clean_run
from mutants.trial import OPERATORS, bench

SAMPLE = 20


def test_no_mutant_is_missed() -> None:
    """Each mistake is reported, refused, seen in the numbers, or argued to be none."""
    work = chosen("*", "*", SAMPLE)
    outcomes = [outcome for name, numbers in work for outcome in judged(name, numbers)]
    missed = [f"{o.case} #{o.number} {o.site} | {o.line}" for o in outcomes if o.result == "missed"]
    assert missed == []
    results = Counter(outcome.result for outcome in outcomes)
    assert len(outcomes) == SAMPLE and results["caught"] > SAMPLE // 3


@pytest.mark.parametrize("number", range(6))
def test_unchanged_kernels_are_clean(number: int) -> None:
    """No hazard in a configuration and order drawn at random, and the same bits in both orders."""
    assert clean_run(number).complaint == ""


@pytest.mark.parametrize("name", cases())
def test_results_without_checks(name: str) -> None:
    """No check is needed for a right result: the clocks that order accesses may be left out."""
    place = bench(name)
    assert place.run(place.traced, checks=()) == place.right


@pytest.mark.parametrize("name", ["stem/three channels", "stem/two blocks of pixels"])
def test_a_release_that_passes_loads_is_caught(name: str) -> None:
    """The fence between loads of a stage and its release is missed, and that of another space."""
    mutants = enumerate(bench(name).mutants())
    site = "stem_sm90.py:consume<stem_sm90 barrier.fence_proxy: "
    numbers = [n for n, m in mutants if m.site in (site + "left out", site + "space global")]
    assert [(o.result, o.code) for o in judged(name, numbers)] == [("caught", "K502")] * 2


def test_every_operator_applies_somewhere() -> None:
    """No operator is dead, and each mutant differs from its kernel, which stays as it was."""
    names = ("sm90/cluster of rows", "sm90/setmaxnreg", "sm80/whole tiles", "rows/staged")
    places = [bench(name) for name in names]
    before = [print_kernel(place.traced.kernel) for place in places]
    used = set()
    for place, text in zip(places, before, strict=True):
        for mutant in place.mutants():
            used.add(mutant.operator)
            changed = print_kernel(mutant.apply(place.traced.kernel))
            assert changed != text or mutant.maps, mutant.site
    assert used == set(OPERATORS)
    assert before == [print_kernel(place.traced.kernel) for place in places]


def test_every_kernel_has_a_case() -> None:
    """Kernels of kdsl-fuse are mutated; families count as one."""
    names = [f"{kernels.__name__}.{module.name}" for module in iter_modules(kernels.__path__)]
    found = [x for name in names for x in vars(import_module(name)).values()]
    there = {_family(x) for x in found if isinstance(x, KernelFunction)}
    assert there <= {_family(launch.kernel) for launch in cases().values()}


def _family(kernel: KernelFunction) -> str:
    """The kernel's name without the number of blocks that its registers are for."""
    return re.sub(r"_\d$", "", kernel.signature.name)


def test_equivalents_are_argued() -> None:
    """Each row of the table says why in one line."""
    assert all(row.proof and "\n" not in row.proof for row in equivalents())
