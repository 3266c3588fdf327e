"""Sentence embeddings through torch.compile(backend="kdsl").

python3 examples/minilm/run.py [sentence …]

On a GPU all six layers run; without one, the first layer in the simulator.
"""

from __future__ import annotations

import sys

import torch
from model import load, tokens

import kdsl_fuse as kf

SENTENCES = ["A cat sits on a mat.", "A kitten rests on a rug.", "Stocks fell on Monday."]


def main(sentences: list[str]) -> None:
    """Print how near the sentences are to each other, and what ran where."""
    gpu = torch.cuda.is_available()
    model = load(None if gpu else 1).to("cuda" if gpu else "cpu")
    ids, seen = (x.to("cuda" if gpu else "cpu") for x in tokens(sentences))
    compiled = torch.compile(model, backend="kdsl", options={"simulate": not gpu})
    with torch.inference_mode():
        embeddings, expected = compiled(ids, seen), model(ids, seen)
    print(kf.compiled_graphs()[-1].explain())
    print("cosines between the sentences:")
    print((embeddings @ embeddings.T).cpu())
    print(f"cosine to torch's own: {(embeddings * expected).sum(-1).min():.7f}")


if __name__ == "__main__":
    main(sys.argv[1:] or SENTENCES)
