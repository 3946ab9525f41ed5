"""Deep Speech 2, which writes down what it hears.

In: a size and a seed. Out: a ``Workload`` of convolutions over a spectrogram, bidirectional recurrence and the CTC
loss. Utterances differ in length; those of one batch come from one bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.systems.suite.workloads.ctc import ctc_loss
from windtunnel.systems.suite.workloads.speech import LETTERS, Voice
from windtunnel.workloads.workload import Training, Workload, move_to_device

if TYPE_CHECKING:
    import torch

__all__ = ["PRESETS", "deep_speech_2"]

LIBRISPEECH = {4.0: 0.08, 8.0: 0.12, 12.0: 0.15, 14.0: 0.22, 16.0: 0.38, 17.0: 0.05}
"""Seconds of the utterances of LibriSpeech's training set, as a histogram: about 12.3 in the mean."""

TIME_STRIDE = 2
"""The first convolution halves the frames."""


@dataclass(frozen=True)
class Preset:
    """Shape of the network; ``buckets`` maps maximum durations in seconds to their frequency."""

    batch_size: int
    num_frequencies: int
    channels: int
    width: int
    depth: int
    buckets: dict[float, float]
    learning_rate: float


PRESETS = {
    "tiny": Preset(4, 41, channels=8, width=48, depth=2, buckets={0.6: 0.3, 0.9: 0.4, 1.2: 0.3}, learning_rate=3e-3),
    "small": Preset(4, 81, channels=16, width=160, depth=3, buckets={2.0: 0.3, 3.0: 0.4, 4.0: 0.3}, learning_rate=1e-3),
    "paper": Preset(32, 161, channels=32, width=1280, depth=7, buckets=LIBRISPEECH, learning_rate=3e-4),
}
"""``paper`` has the seven recurrent layers of 1280 of the paper's nine-layer network, and 20 ms spectra."""


@registry.workload("deep-speech-2", source="Amodei et al., ICML 2016; Zhu et al., IISWC 2018", domain="speech")
def deep_speech_2(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Recognize speech from spectrograms without an alignment.

    A batch counts utterances. Parameters and errors are those of :meth:`Training.of`.
    """
    require("torch", extra="torch")
    import torch
    from torch import nn

    training = Training.of("deep-speech-2", PRESETS, size, batch_size, seed)
    preset = training.preset
    num_utterances = training.batch_size
    model = _network(preset)
    optimizer = torch.optim.Adam(model.parameters(), lr=preset.learning_rate)
    voice, random = Voice.of(preset.num_frequencies, preset.buckets, seed), np.random.default_rng(seed)
    duration_s = 0.0

    def step() -> torch.Tensor:
        nonlocal duration_s
        batch = voice.draw(num_utterances, random)
        duration_s += batch.duration_s
        num_frames = [-(-frames // TIME_STRIDE) for frames in batch.num_frames]
        optimizer.zero_grad()
        log_chances = model(move_to_device(batch.spectra, training.device)).log_softmax(dim=-1)
        loss = ctc_loss(log_chances, move_to_device(batch.labels, training.device), num_frames, batch.num_labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return loss.detach()

    return training.workload(
        (model,),
        (optimizer,),
        step,
        data=voice.origin,
        unit="seconds of audio",
        units=lambda: duration_s,
    )


def _network(preset: Preset) -> torch.nn.Module:
    from torch import nn

    channels, width = preset.channels, preset.width
    frequencies = -(-preset.num_frequencies // 4)  # each convolution halves them

    class Recurrent(nn.Module):
        """Normalized over the whole sequence, then read in both directions, which are added."""

        def __init__(self, inputs: int) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(inputs)
            self.recurrent = nn.GRU(inputs, width, bidirectional=True)

        def forward(self, heard_TBW: torch.Tensor) -> torch.Tensor:
            normal = self.norm(heard_TBW.flatten(0, 1)).view_as(heard_TBW)
            both, _ = self.recurrent(normal)
            return both[..., :width] + both[..., width:]  # type: ignore[no-any-return]

    class DeepSpeech(nn.Module):
        """Spectra [B, 1, F, T] to scores [T / 2, B, letters]."""

        def __init__(self) -> None:
            super().__init__()
            self.look = nn.Sequential(
                nn.Conv2d(1, channels, (41, 11), (2, TIME_STRIDE), (20, 5), bias=False),
                nn.BatchNorm2d(channels),
                nn.Hardtanh(0.0, 20.0),
                nn.Conv2d(channels, channels, (21, 11), (2, 1), (10, 5), bias=False),
                nn.BatchNorm2d(channels),
                nn.Hardtanh(0.0, 20.0),
            )
            inputs = [channels * frequencies, *[width] * (preset.depth - 1)]
            self.listen = nn.Sequential(*(Recurrent(size) for size in inputs))
            self.write = nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, len(LETTERS), bias=False))

        def forward(self, spectra: torch.Tensor) -> torch.Tensor:
            seen = self.look(spectra).flatten(1, 2).permute(2, 0, 1)
            heard = self.listen(seen)
            return self.write(heard.flatten(0, 1)).view(*heard.shape[:2], -1)  # type: ignore[no-any-return]

    return DeepSpeech()
