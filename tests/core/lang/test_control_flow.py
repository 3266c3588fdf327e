"""Control flow of the kernel means what Python means: the same source, run by both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd

LANES = 32
CASES: list[Callable[..., Any]] = []


@kd.kernel
def per_lane(
    x: kd.Tensor["i32", "n"],
    y: kd.Tensor["i32", "n"],
    out: kd.Tensor["i32", "n"],
    case: kd.Static,
) -> None:
    """Run one case per lane."""
    i = kd.thread_idx()[0]
    out[i] = kd.as_scalar(case(kd.range, x[i], y[i]))


def case(function: Callable[..., Any]) -> Callable[..., Any]:
    """Collect a function of (loop, x, y) that kernel and Python both run."""
    CASES.append(function)
    return function


@case
def branch_rebinds(loop, x, y):
    r = 0
    if x > y:
        r = x
    return r


@case
def branch_both_arms(loop, x, y):
    if x > y:
        r = x - y
    else:
        r = y - x
    return r


@case
def chain_of_elif(loop, x, y):
    if x < 5:
        r = 1
    elif x < 10:
        r = y
    elif y < 3:
        r = x
    else:
        r = x * y
    return r


@case
def nested_branches(loop, x, y):
    r = 7
    if x > 3:
        if y > 3:
            r = x
        else:
            r = r + y
        r = r * 2
    return r


@case
def swaps_names(loop, x, y):
    a, b = x, y
    if a > b:
        a, b = b, a
    return a * 100 + b


@case
def sums_a_loop(loop, x, y):
    s = 0
    for k in loop(x):
        s += k * y
    return s


@case
def loop_with_bounds(loop, x, y):
    s = 0
    for k in loop(y, x, 3):
        s = s + k
    return s


@case
def loop_downwards(loop, x, y):
    s = 0
    for k in loop(x, 2, -2):
        s = s * 3 % 1000 + k
    return s


@case
def fibonacci(loop, x, y):
    a, b = 0, 1
    for _ in loop(x % 20):
        a, b = b, a + b
    return a


@case
def loop_index_survives(loop, x, y):
    k = -5
    for k in loop(x):
        if k * k > y:
            break
    return k


@case
def break_under_condition(loop, x, y):
    s = 0
    for k in loop(20):
        if k == x:
            break
        s += k
    return s


@case
def continue_under_condition(loop, x, y):
    s = 0
    for k in loop(x):
        if k % 3 == 1:
            continue
        s += k
        if s > 50:
            s -= y
    return s


@case
def nested_loops_with_jumps(loop, x, y):
    s = 0
    for i in loop(x):
        for j in loop(i):
            if j > y:
                break
            if (i + j) % 2:
                continue
            s += i * j
        if s > 300:
            break
    return s


@case
def jump_behind_two_branches(loop, x, y):
    s = 0
    for i in loop(x):
        if i > 2:
            if i > y:
                s += 100
                break
            s += 1
        s += 10
    return s


@case
def while_loop(loop, x, y):
    n = 0
    while x > 0:
        x = x // 2
        n += 1
    return n


@case
def while_true_with_break(loop, x, y):
    n = 0
    while True:
        n += 3
        if n > x:
            break
    return n


@case
def while_with_late_test(loop, x, y):
    done = False
    n = 0
    while not done:
        n += 1
        if n * n > x:
            done = True
    return n


@case
def while_with_compound_test(loop, x, y):
    i = 0
    while i < x and i * i < y * 4 + 5:
        i += 1
    return i


@case
def static_while(loop, x, y):
    i = 0
    s = x
    while i < 4:
        s = s * 2
        i += 1
    return s


@case
def unrolled_loop_in_loop(loop, x, y):
    s = 0
    for k in loop(x):
        for j in range(3):
            s += j * k
    return s


@case
def loop_in_unrolled_loop(loop, x, y):
    s = 0
    for j in range(3):
        for k in loop(x):
            s += j * k
    return s


@case
def static_break(loop, x, y):
    s = x
    for j in range(10):
        if j == 3:
            break
        if j == 1:
            continue
        s += j
    else:
        s = -1
    return s


@case
def static_else(loop, x, y):
    for _ in range(2):
        x = x + 1
    else:
        x = x + 100
    return x


@case
def early_return(loop, x, y):
    if x > 20:
        return y
    if x > 10:
        return x * 2
    return x + y


@case
def return_in_both_arms(loop, x, y):
    if x > y:
        return x
    return y


@case
def return_from_loop(loop, x, y):
    for k in loop(x):
        if k * k > y:
            return k
    return -1


@case
def return_from_nested_loops(loop, x, y):
    for i in loop(x):
        for j in loop(i):
            if i * j > y + 20:
                return i * 100 + j
    return -7


@case
def return_from_while_true(loop, x, y):
    n = 1
    while True:
        n = n * 2
        if n > x:
            return n


@case
def conditional_expression(loop, x, y):
    return x + 1 if x > y else y * 2


@case
def nested_conditional_expression(loop, x, y):
    return 1 if x > 20 else (2 if y > 5 else x)


@case
def boolean_words(loop, x, y):
    r = 0
    if x > 5 and y > 5:
        r += 1
    if x > 25 or y > 8:
        r += 2
    if not (x > y):
        r += 4
    if x > 3 and (y < 2 or not x < 10) and True:
        r += 8
    return r


@case
def chained_comparison(loop, x, y):
    r = 0
    if 3 < x <= 12:
        r += 1
    if 0 <= y < x < 30:
        r += 2
    if x == y == 5:
        r += 4
    return r


@case
def comprehension_and_zip(loop, x, y):
    parts = [x * k for k in range(4)]
    s = 0
    for a, b in zip(parts, (1, 2, 3, 4), strict=True):
        s += a * b
    return s + sum(parts)


@case
def tuple_in_loop(loop, x, y):
    state = (0, 1)
    for k in loop(x):
        state = (state[1], state[0] + k)
    return state[0] * 3 + state[1]


@case
def name_reused_with_another_meaning(loop, x, y):
    t = "text"
    s = len(t)
    for k in loop(x):
        t = k * 2
        s += t
    return s


@case
def name_bound_in_loop_only(loop, x, y):
    s = 0
    for k in loop(x):
        t = k * k
        if t > y:
            t = y
        s += t
    return s


@case
def inner_function(loop, x, y):
    def clamp(v, most):
        if v > most:
            return most
        return v

    return clamp(x, 10) + clamp(y, 3)


@case
def lambda_and_walrus(loop, x, y):
    double = lambda v: v + v if v > 4 else v  # noqa: E731 — a lambda is what is tested
    if (t := double(x)) > y:
        t = t + 1
    return t


@case
def list_made_inside(loop, x, y):
    s = 0
    for k in loop(x):
        parts = []
        for j in range(3):
            parts.append(k + j)
        s += sum(parts)
    return s


@case
def deletes_and_passes(loop, x, y):
    t = x
    if x > 3:
        pass
    u = t + y
    del t
    return u


@case
def with_and_try(loop, x, y):
    import contextlib

    with contextlib.nullcontext(x) as v:
        try:
            if v > 4:
                v = v * 2
        finally:
            v = v + 1
    return v


@case
def recursion_on_python_values(loop, x, y):
    def power(v, n):
        return v if n == 1 else v * power(v, n - 1)

    return power(x % 7, 4)


@case
def match_on_python_values(loop, x, y):
    match (1, "b"):
        case (1, "a"):
            r = x
        case (n, "b"):
            r = y + n
    if x > 10:
        r = r * 2
    return r


def _python(function: Callable[..., Any], x: int, y: int) -> int:
    return int(function(range, x, y))


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_kernel_and_python_agree(function: Callable[..., Any]) -> None:
    """Each lane computes what Python computes from the same source."""
    rng = np.random.default_rng(3)
    x = np.arange(LANES, dtype=np.int32)
    y = rng.integers(0, 12, LANES, dtype=np.int32)
    out = np.full(LANES, -99, np.int32)
    per_lane[1, LANES](x, y, out, kd.func(function))
    expected = [_python(function, int(a), int(b)) for a, b in zip(x, y, strict=True)]
    assert out.tolist() == expected
