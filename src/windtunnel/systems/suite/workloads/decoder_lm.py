"""A Llama-like decoder, which predicts the next word.

In: a size and a seed. Out: a ``Workload`` of causal attention and gated feed-forward layers in pure torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.systems.suite.workloads.decoder import Shape, swiglu
from windtunnel.systems.suite.workloads.next_word import next_word
from windtunnel.workloads.workload import Training, Workload

__all__ = ["PRESETS", "decoder_lm"]


@dataclass(frozen=True)
class Preset:
    """Shape of the network and of its training."""

    batch_size: int
    shape: Shape
    learning_rate: float


PRESETS = {
    "tiny": Preset(8, Shape(32, width=64, depth=2, heads=4, key_heads=2, inner=172, vocabulary=1000), 3e-3),
    "small": Preset(8, Shape(128, width=256, depth=4, heads=8, key_heads=4, inner=688, vocabulary=8000), 5e-4),
    "paper": Preset(
        4, Shape(2048, width=4096, depth=32, heads=32, key_heads=32, inner=11_008, vocabulary=32_000), 3e-4
    ),
}
"""``paper`` is Llama 7B; its batch is one device's share of the published four million tokens."""


@registry.workload("decoder-lm", source="Touvron et al., Llama, 2023", domain="language")
def decoder_lm(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Predict the next word with a decoder of today.

    A batch counts windows of text. Parameters and errors are those of :meth:`Training.of`.
    """
    require("torch", extra="torch")
    training = Training.of("decoder-lm", PRESETS, size, batch_size, seed)
    preset = training.preset
    return next_word(
        training,
        lambda: swiglu(preset.shape.width, preset.shape.inner),
    )
