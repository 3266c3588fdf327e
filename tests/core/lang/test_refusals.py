"""What cannot be kernel code is refused at the author's line, with a way to mend it."""

# ruff: noqa: B007, C416, F841, RUF059 the cases hold what a kernel may not hold
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kdsl_core as kd
from kdsl_core.errors import KdslError

CASES: list[tuple[str, int, Callable[..., Any]]] = []
TABLE = {"limit": 4}
total = 0


def refused(code: str, line: int) -> Callable[[Any], Any]:
    """Collect a function of (x, y) that raises `code` at its `line`-th line, counted from def."""

    def collect(function: Any) -> Any:
        CASES.append((code, line, function))
        return function

    return collect


@kd.kernel
def runs(x: kd.Tensor["i32", "n"], y: kd.Tensor["f32", "n"], case: kd.Static) -> None:
    """Trace one case."""
    i = kd.thread_idx()[0]
    case(x[i], y[i])


@refused("K322", 3)
def bound_on_one_path(x, y):
    if x > 0:
        r = x
    return r + 1


@refused("K322", 3)
def bound_in_the_loop_only(x, y):
    for k in kd.range(x):
        r = k
    return r + 1


@refused("K322", 3)
def loop_target_behind_the_loop(x, y):
    for k in kd.range(x):
        pass
    return k + 1


@refused("K322", 3)
def read_before_it_is_bound_in_the_loop(x, y):
    for k in kd.range(x):
        if k > 0:
            x = x + r
        r = k
    return x


@refused("K323", 2)
def type_differs_at_a_join(x, y):
    r = x
    if x > 0:
        r = y
    return r


@refused("K323", 2)
def python_object_depends_on_the_kernel(x, y):
    r = "no"
    if x > 0:
        r = "yes"
    return r


@refused("K324", 2)
def type_changes_in_a_loop(x, y):
    r = 0
    for k in kd.range(x):
        r = y + r
    return r


@refused("K325", 1)
def else_of_a_kernel_loop(x, y):
    for k in kd.range(x):
        y = y + 1.0
    else:
        y = 0.0
    return y


@refused("K327", 3)
def break_of_an_unrolled_loop(x, y):
    for k in range(4):
        if x > k:
            break


@refused("K327", 3)
def continue_of_an_unrolled_loop(x, y):
    for k in range(4):
        if x > k:
            continue


@refused("K329", 3)
def returns_of_two_types(x, y):
    if x > 0:
        return x
    return y


@refused("K330", 1)
def comprehension_over_a_kernel_range(x, y):
    return [k for k in kd.range(4)]


@refused("K330", 1)
def enumerate_of_a_kernel_range(x, y):
    for i, k in enumerate(kd.range(4)):
        x = x + i + k
    return x


@refused("K331", 1)
def range_without_bounds(x, y):
    return kd.range()


@refused("K332", 1)
def range_with_step_zero(x, y):
    return kd.range(0, 4, 0)


@refused("K333", 1)
def range_over_floats(x, y):
    return kd.range(y)


@refused("K334", 4)
def rebinds_a_global(x, y):
    global total

    if x > 0:
        total = 1


@refused("K334", 5)
def rebinds_a_nonlocal(x, y):
    count = 0

    def more():
        nonlocal count
        count += 1

    if x > 0:
        more()


@refused("K336", 1)
def and_of_numbers(x, y):
    return x and y


@refused("K337", 1)
def conditional_expression_of_two_types(x, y):
    return x if x > 0 else y


@refused("K338", 3)
def appends_in_a_branch(x, y):
    out = []
    if x > 0:
        out.append(x)


@refused("K338", 3)
def appends_in_a_loop(x, y):
    out = []
    for k in kd.range(x):
        out.append(k)


@refused("K338", 3)
def fills_a_dict(x, y):
    out = {}
    if x > 0:
        out["x"] = x


@refused("K338", 2)
def changes_a_global_dict(x, y):
    if x > 0:
        TABLE["limit"] = 5


@refused("K338", 3)
def extends_in_place(x, y):
    out = [x]
    if x > 0:
        out += [y]


@refused("K338", 3)
def changes_a_nested_list(x, y):
    out = {"a": [1]}
    if x > 0:
        out["a"].append(2)


@refused("K338", 3)
def deletes_an_item(x, y):
    out = {"a": 1}
    if x > 0:
        del out["a"]


class Holder:
    """An ordinary Python object."""

    value = 0


@refused("K338", 3)
def sets_an_attribute(x, y):
    out = Holder()
    if x > 0:
        out.value = 1


@refused("K338", 4)
def appends_in_a_called_function(x, y):
    out = []

    def add(v):
        out.append(v)

    if x > 0:
        add(x)


@refused("K302", 1)
def condition_in_a_comprehension(x, y):
    return [k for k in range(4) if x > k]


@refused("K302", 1)
def membership(x, y):
    return x in (1, 2)


@refused("K302", 2)
def match_on_a_kernel_value(x, y):
    match x:
        case 1:
            return 1


@refused("K304", 1)
def unpacking_a_scalar(x, y):
    a, b = x
    return a


@refused("K303", 1)
def python_range_over_a_kernel_value(x, y):
    for k in range(x):
        pass


@pytest.mark.parametrize(
    ("code", "line", "function"), CASES, ids=lambda c: getattr(c, "__name__", "")
)
def test_is_refused_at_its_line(code: str, line: int, function: Callable[..., Any]) -> None:
    """The code, the line, the source text and a fix are in the message."""
    staged = kd.func(function)
    with pytest.raises(KdslError) as caught:
        runs.ir(kd.spec("i32", 32), kd.spec("f32", 32), staged, block=32)
    error = caught.value
    assert error.code == code, str(error)
    assert error.loc is not None
    first = function.__code__.co_firstlineno + 1  # the decorator stands before the def
    assert error.loc.line - first == line, str(error)
    assert "^" in str(error)
    if code != "K304":
        assert error.fix


def test_both_lines_are_shown() -> None:
    """An error about a name names where it was bound and where it is missing."""
    with pytest.raises(KdslError, match=r"r = x(?s:.*)if x > 0"):
        runs.ir(kd.spec("i32", 32), kd.spec("f32", 32), kd.func(bound_on_one_path), block=32)
    with pytest.raises(KdslError, match=r"test_refusals.py:\d+: for k(?s:.*): r = y \+ r"):
        runs.ir(kd.spec("i32", 32), kd.spec("f32", 32), kd.func(type_changes_in_a_loop), block=32)


@kd.kernel
def gives_a_value(x: kd.Tensor["i32", "n"]):
    """A kernel that returns."""
    return x[0]


def test_kernels_return_nothing() -> None:
    """A value given back by a kernel is refused."""
    with pytest.raises(KdslError, match="K328"):
        gives_a_value.ir(kd.spec("i32", 32), block=32)


@pytest.mark.parametrize(
    "text", ["async def f(x): pass", "def f(x): yield x", "def f(x): return [(yield)]"]
)
def test_only_plain_functions(text: str) -> None:
    """Coroutines and generators are refused by name."""
    import linecache

    linecache.cache["<plain>"] = (len(text), None, [text], "<plain>")
    space: dict[str, Any] = {}
    exec(compile(text, "<plain>", "exec"), space)
    with pytest.raises(KdslError, match="K340"):
        kd.func(space["f"])(1)


def test_text_must_exist() -> None:
    """A function without source text is refused with the reason."""
    space: dict[str, Any] = {}
    exec(compile("def f(x): return x", "<text that nobody kept>", "exec"), space)
    with pytest.raises(KdslError, match="K320"):
        kd.func(space["f"])(1)


def test_lambda_is_no_kernel() -> None:
    """Control flow cannot be found in a lambda."""
    with pytest.raises(KdslError, match="K321"):
        kd.func(lambda x: x)(1)


def test_endless_recursion() -> None:
    """Recursion that no Python value ends is an error of the kernel, not of Python."""
    with pytest.raises(KdslError, match="K345"):
        runs.ir(kd.spec("i32", 32), kd.spec("f32", 32), _forever, block=32)


@kd.func
def _forever(x, y):
    if x > 0:
        return _forever(x - 1, y)
    return x
