"""What is in the keys, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdsl_core.errors import CacheError
from kdsl_runtime.cache.keys import canonical_json, check_key, content_key, recipe_key

BASE = ("ptx", "sm_80", "id", ("-O3",))


@pytest.mark.parametrize(
    "other",
    [
        ("ptx ", "sm_80", "id", ("-O3",)),
        ("ptx", "sm_89", "id", ("-O3",)),
        ("ptx", "sm_80", "di", ("-O3",)),
        ("ptx", "sm_80", "id", ()),
        ("ptx", "sm_80", "id", ("-O", "3")),
        ("ptxsm_80", "", "id", ("-O3",)),
    ],
)
def test_content_key_depends_on_each_part(other):
    """Every ingredient counts, and so does where one ends and the next begins."""
    assert content_key(*BASE) != content_key(*other)
    assert content_key(*BASE) == content_key(*BASE)


def test_keys_are_stable_across_releases():
    """A change of these values would throw away every cache in the world: mean it."""
    assert content_key(*BASE).startswith("d1ae66607336e8ac")
    assert recipe_key({"a": [1, "x", None, True, 0.5]}).startswith("2304228aee23469a")


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.booleans(), min_size=2))
def test_order_of_ingredients_does_not_count(ingredients):
    """A dict filled in another order has the same recipe key."""
    turned = dict(reversed(list(ingredients.items())))
    assert recipe_key(ingredients) == recipe_key(turned)


@pytest.mark.parametrize(
    ("left", "right"), [(1, "1"), (1, True), (1, 1.0), (None, "null"), (0.0, -0.0), ([1], [[1]])]
)
def test_similar_values_differ(left, right):
    """Values of different type or sign have different recipe keys."""
    assert recipe_key({"x": left}) != recipe_key({"x": right})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1: 2}, {"s": {3}}, b"x"])
def test_inexact_ingredients_are_refused(value):
    """What JSON cannot state exactly never becomes a key by accident."""
    with pytest.raises(CacheError) as caught:
        canonical_json({"x": value})
    assert caught.value.code == "K725"


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "\n", 7])
def test_only_hashes_name_files(key):
    """Nothing but a digest of 256 bits can become a path."""
    with pytest.raises(CacheError) as caught:
        check_key(key)
    assert caught.value.code == "K724"
