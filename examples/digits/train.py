"""Train the three-layer perceptron of the digits example; NumPy only, the same weights every time.

    python examples/digits/train.py            # writes weights.npz beside this file

The network is 64 → 128 → 64 → 10, `gelu` after the two hidden layers, f32 throughout. GELU is the
exact one, x·Φ(x) with the error function: what `kf.gelu(x)` means when nothing else is asked for.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent
SIZES = (64, 128, 64, 10)
HELD_OUT_ONE_IN = 5
SPLIT_SEED = 1797
TRAIN_SEED = 8
EPOCHS = 60
BATCH = 32
STEP = 2e-3
WEIGHT_DECAY = 1e-3

F32: TypeAlias = npt.NDArray[np.float32]
U8: TypeAlias = npt.NDArray[np.uint8]
Params: TypeAlias = list[F32]  # w1, b1, w2, b2, w3, b3

_erf_each = np.vectorize(math.erf, otypes=[np.float32])


def load() -> tuple[F32, U8]:
    """The images as rows of 64 numbers in [0, 1], and their labels."""
    with np.load(HERE / "digits.npz") as data:
        return data["images"].reshape(-1, 64).astype(np.float32) / np.float32(16), data["labels"]


def load_weights() -> Params:
    """The trained weights and biases, layer by layer."""
    with np.load(HERE / "weights.npz") as data:
        return [data[name] for name in ("w1", "b1", "w2", "b2", "w3", "b3")]


def split(labels: U8) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Indices of the training and of the held-out images: one in five of each digit is held out."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    by_digit = order[np.argsort(labels[order], kind="stable")]
    held_out = by_digit[::HELD_OUT_ONE_IN]
    return np.setdiff1d(by_digit, held_out), np.sort(held_out)


def normal_cdf(x: F32) -> F32:
    """Φ(x), the distribution function of the standard normal distribution."""
    erf: F32 = _erf_each(x * np.float32(math.sqrt(0.5)))
    return np.float32(0.5) * (np.float32(1) + erf)


def gelu(x: F32) -> F32:
    """x·Φ(x)."""
    return x * normal_cdf(x)


def gelu_slope(x: F32) -> F32:
    """The derivative of `gelu`: Φ(x) + x·φ(x)."""
    density: F32 = np.exp(np.float32(-0.5) * x * x) / np.float32(math.sqrt(2 * math.pi))
    return normal_cdf(x) + x * density


def forward(params: Params, x: F32) -> tuple[F32, list[F32], list[F32]]:
    """The logits, the input of each layer, and what went into each `gelu`."""
    inputs, before = [x], []
    for w, b in zip(params[:-2:2], params[1:-2:2], strict=True):
        before.append(inputs[-1] @ w + b)
        inputs.append(gelu(before[-1]))
    return inputs[-1] @ params[-2] + params[-1], inputs, before


def gradients(params: Params, x: F32, labels: U8) -> Params:
    """Gradients of the mean cross-entropy with respect to each parameter."""
    logits, inputs, before = forward(params, x)
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    slope = odds / odds.sum(axis=1, keepdims=True)
    slope[np.arange(len(x)), labels] -= 1
    slope /= np.float32(len(x))
    grads: Params = []
    for layer in reversed(range(len(SIZES) - 1)):
        grads[:0] = [inputs[layer].T @ slope, slope.sum(axis=0)]
        if layer:
            slope = (slope @ params[2 * layer].T) * gelu_slope(before[layer - 1])
    return grads


def initial(rng: np.random.Generator) -> Params:
    """He's normal initialisation, biases zero."""
    params: Params = []
    for fan_in, fan_out in itertools.pairwise(SIZES):
        scale = math.sqrt(2 / fan_in)
        params.append((rng.standard_normal((fan_in, fan_out)) * scale).astype(np.float32))
        params.append(np.zeros(fan_out, np.float32))
    return params


def train(x: F32, labels: U8) -> Params:
    """AdamW with a cosine step size, on batches drawn from a seeded generator."""
    rng = np.random.default_rng(TRAIN_SEED)
    params = initial(rng)
    mean = [np.zeros_like(p) for p in params]
    square = [np.zeros_like(p) for p in params]
    batches = len(x) // BATCH
    for step in range(EPOCHS * batches):
        if step % batches == 0:
            order = rng.permutation(len(x))
        at = (step % batches) * BATCH
        chosen = order[at : at + BATCH]
        rate = STEP * 0.5 * (1 + math.cos(math.pi * step / (EPOCHS * batches)))
        for k, grad in enumerate(gradients(params, x[chosen], labels[chosen])):
            mean[k] += np.float32(0.1) * (grad - mean[k])
            square[k] += np.float32(0.001) * (grad * grad - square[k])
            corrected = mean[k] / np.float32(1 - 0.9 ** (step + 1))
            spread = np.sqrt(square[k] / np.float32(1 - 0.999 ** (step + 1))) + np.float32(1e-8)
            decay = np.float32(WEIGHT_DECAY if params[k].ndim == 2 else 0.0)
            params[k] -= np.float32(rate) * (corrected / spread + decay * params[k])
    return params


def accuracy(params: Params, x: F32, labels: U8) -> float:
    """The share of images whose largest logit is at their label."""
    return float((forward(params, x)[0].argmax(axis=1) == labels).mean())


def main() -> None:
    """Train on the training split, say how good it is on the rest, and write the weights."""
    x, labels = load()
    training, held_out = split(labels)
    params = train(x[training], labels[training])
    print(f"training accuracy  {accuracy(params, x[training], labels[training]):.4f}")
    print(f"held-out accuracy  {accuracy(params, x[held_out], labels[held_out]):.4f}")
    w1, b1, w2, b2, w3, b3 = params
    np.savez_compressed(HERE / "weights.npz", w1=w1, b1=b1, w2=w2, b2=b2, w3=w3, b3=b3)


if __name__ == "__main__":
    main()
