"""The data and the trained weights of the digits example."""

from __future__ import annotations

import importlib.util
import math
from types import ModuleType

import numpy as np
import pytest

from house import census

FOLDER = census.ROOT / "examples/digits"


@pytest.fixture(scope="module")
def digits() -> ModuleType:
    """examples/digits/train.py as a module."""
    spec = importlib.util.spec_from_file_location("digits_train", FOLDER / "train.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_data_is_complete(digits: ModuleType) -> None:
    """1797 images of 64 numbers in [0, 1], with all ten labels."""
    x, labels = digits.load()
    assert x.shape == (1797, 64) and x.dtype == np.float32
    assert (x.min(), x.max()) == (0.0, 1.0)
    assert sorted(set(labels.tolist())) == list(range(10))


def test_split_is_a_partition(digits: ModuleType) -> None:
    """Training and held-out images are disjoint, together all, and of each digit one in five."""
    labels = digits.load()[1]
    training, held_out = digits.split(labels)
    assert (len(training), len(held_out)) == (1437, 360)
    assert np.array_equal(np.sort(np.concatenate([training, held_out])), np.arange(1797))
    share = np.bincount(labels[held_out]) / np.bincount(labels)
    assert np.all(abs(share - 0.2) < 0.01)


def test_gelu_is_the_exact_one(digits: ModuleType) -> None:
    """It agrees with the definition by the error function, in f64, to f32's precision."""
    x = np.linspace(-6, 6, 241, dtype=np.float32)
    exact = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()]
    np.testing.assert_allclose(digits.gelu(x), exact, rtol=0, atol=5e-7)


def test_weights_classify_held_out_images(digits: ModuleType) -> None:
    """The committed weights are f32, of the stated shapes, and reach the stated accuracy."""
    with np.load(FOLDER / "weights.npz") as file:
        params = [file[name] for name in ("w1", "b1", "w2", "b2", "w3", "b3")]
    assert [p.shape for p in params] == [(64, 128), (128,), (128, 64), (64,), (64, 10), (10,)]
    assert all(p.dtype == np.float32 for p in params)
    x, labels = digits.load()
    held_out = digits.split(labels)[1]
    assert digits.accuracy(params, x[held_out], labels[held_out]) >= 0.965


def test_gradients_follow_the_loss(digits: ModuleType) -> None:
    """A small step against the gradient lowers the cross-entropy as much as the gradient says."""
    x, labels = digits.load()
    params = digits.initial(np.random.default_rng(0))
    grads = digits.gradients(params, x[:64], labels[:64])
    square = sum(float((g.astype(np.float64) ** 2).sum()) for g in grads)

    def loss(step: float) -> float:
        moved = [
            (p - np.float32(step) * g).astype(np.float32)
            for p, g in zip(params, grads, strict=True)
        ]
        logits = digits.forward(moved, x[:64])[0].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        chosen = logits[np.arange(64), labels[:64]]
        return float((np.log(np.exp(logits).sum(axis=1)) - chosen).mean())

    step = 1e-3
    assert loss(-step) - loss(step) == pytest.approx(2 * step * square, rel=0.02)
