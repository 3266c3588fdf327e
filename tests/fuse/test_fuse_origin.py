"""Whose line an error or a location shows: the author's, never one of kdsl_fuse itself."""

from __future__ import annotations

from kdsl_core.authors import is_author_code
from kdsl_core.loc import here, stated
from kdsl_fuse import ops, tail
from kdsl_fuse.kernels.gemm_sm80 import gemm_sm80, plan_gemm
from kdsl_fuse.origin import author_loc


def test_kernels_are_authors_code_and_the_rest_is_not() -> None:
    """Lines of kernels/ are shown, those of the machinery are not."""
    assert is_author_code(plan_gemm.__code__)
    assert is_author_code(gemm_sm80.staged.function.__code__)
    assert is_author_code(test_kernels_are_authors_code_and_the_rest_is_not.__code__)
    assert not is_author_code(tail.number_step.__code__)
    assert not is_author_code(ops.op_named.__code__)


def test_stated_place_comes_first_while_it_lasts() -> None:
    """Code that stands for an author's line is located there, and called from where it runs."""
    written = author_loc()
    assert written is not None
    with stated(written):
        inside = here()
    after = here()
    assert inside is not None
    assert after is not None
    assert inside.line == written.line
    assert test_stated_place_comes_first_while_it_lasts.__code__ in (
        f for f, _ in inside.frames[1:]
    )
    assert after.line == written.line + 4
