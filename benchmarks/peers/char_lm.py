"""A small decoder that predicts the next character of a novel: the job of the quality bar.

In: sizes and a seed. Out: a registered workload. Not part of the package: it exists to be trained to the end here. The
data's seed is not that of the weights, so that every training of a seed sees the same windows of text.
"""

from __future__ import annotations

import math

import numpy as np
from tests.shared_data import find_shared

from windtunnel import registry
from windtunnel.workloads.workload import Supervised, Workload

TEXT = "text/gutenberg/war_and_peace.txt.gz"


def characters() -> tuple[np.ndarray, int]:
    """The novel as numbers of characters, and how many there are."""
    from windtunnel.workloads.texts import story

    path = find_shared(TEXT)
    assert path is not None, TEXT
    letters = np.frombuffer("\n".join(story(path)).encode("utf-32-le"), np.uint32)
    known, numbers = np.unique(letters, return_inverse=True)
    return numbers.astype(np.int64), len(known)


def _annealed(parameters, rate: float, num_batches: int):
    """AdamW whose rate follows its own count of updates, so that every stage of a pipeline goes by the same."""
    import torch

    class Annealed(torch.optim.AdamW):
        def step(self, closure=None):
            for group in self.param_groups:
                done = group.setdefault("num_done", 0)
                rises = min(1.0, (done + 1) / max(1, group["num_batches"] // 10))
                falls = (1 + math.cos(math.pi * done / group["num_batches"])) / 2
                group["lr"], group["num_done"] = group["rate"] * rises * falls, done + 1
            return super().step(closure)

    made = Annealed(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    made.param_groups[0] |= {"rate": rate, "num_batches": num_batches}
    return made


@registry.workload("char-lm", source="a bar: next character of War and Peace")
def char_lm(
    *, batch_size: int = 16, length: int = 64, width: int = 64, depth: int = 4, rate: float = 5e-4,
    num_batches: int = 6000, seed: int = 0,
) -> Workload:  # fmt: skip
    """Train a decoder on windows of text with AdamW; the rate rises for a tenth of the batches, then falls to 0."""
    import torch
    from torch import nn

    from windtunnel.systems.suite.workloads.decoder import Shape, decoder, swiglu

    text, vocabulary = characters()
    torch.manual_seed(seed)
    shape = Shape(length, width, depth, heads=4, key_heads=4, inner=3 * width, vocabulary=vocabulary)
    model = decoder(shape, lambda: swiglu(width, 3 * width))
    optimizer = _annealed(model.parameters(), rate, num_batches)
    random, loss_of = np.random.default_rng(1000 + seed), nn.CrossEntropyLoss()

    def draw() -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        starts = random.integers(0, len(text) - length, batch_size)
        windows = torch.from_numpy(text[starts[:, None] + np.arange(length + 1)])
        return (windows[:, :-1],), windows[:, 1:]

    def loss(scores: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        return loss_of(scores.flatten(0, 1), following.flatten())

    def step() -> torch.Tensor:
        (words,), following = draw()
        optimizer.zero_grad()
        found = loss(model(words), following)
        found.backward()
        optimizer.step()
        return found.detach()

    return Workload(
        "char-lm", (model,), (optimizer,), step, batch_size, data="War and Peace, characters", unit="tokens",
        supervised=Supervised(draw, loss),
    )  # fmt: skip
