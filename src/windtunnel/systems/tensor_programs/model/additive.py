"""Times of leaves that add up: the default network for compact trees.

A program's time is the sum over its stores, so each leaf gets a logarithm of its own time and the program the logarithm
of their sum; any number of leaves goes through the same weights. A wide linear path next to the deep one models what is
linear in logarithms, so that sizes extrapolate. In and out as CDMPP's ``Network``. Not here: training.

Source: ours, on CDMPP's trees (EuroSys 2024); wide and deep paths after Cheng et al. (DLRS 2016).
"""

# B programs of a batch, N leaves, F features, C entries of context, W width

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel.base.extras import require
from windtunnel.systems.tensor_programs.model.features import NUM_FEATURES

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:
    torch = require("torch", extra="learn")
    nn = torch.nn

__all__ = ["AdditiveConfig", "AdditiveNetwork"]


@dataclass(frozen=True)
class AdditiveConfig:
    """Sizes: width of a leaf and residual blocks on it."""

    width: int = 128
    num_blocks: int = 3
    dropout: float = 0.0
    num_context: int = 0
    has_positions: bool = True
    num_features: int = NUM_FEATURES


class _Block(nn.Module):
    """Residual block, ``x + MLP(norm(x))``."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        inner = (nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width))
        self.inner = nn.Sequential(nn.LayerNorm(width), *inner)

    def forward(self, x: Tensor) -> Any:
        return x + self.inner(x)


class AdditiveNetwork(nn.Module):
    """The network; ``label_shift`` and ``label_scale`` are those of the logarithmic labels, so that times add up."""

    label_shift: Tensor
    label_scale: Tensor

    def __init__(self, config: AdditiveConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        num_inputs = config.num_features + config.num_context
        blocks = [_Block(width, config.dropout) for _ in range(config.num_blocks)]
        self.encoder = nn.Sequential(nn.Linear(num_inputs, width), *blocks)
        self.norm, self.deep, self.wide = nn.LayerNorm(width), nn.Linear(width, 1), nn.Linear(num_inputs, 1)
        for layer in (self.deep, self.wide):
            nn.init.zeros_(layer.weight)
        self.register_buffer("label_shift", torch.zeros(()))
        self.register_buffer("label_scale", torch.ones(()))

    def forward(self, leaves_BNF: Tensor, context_BC: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """A bucket: every program has N leaves. Returns numbers [B] and latents [B, width]."""
        inputs = leaves_BNF
        if context_BC is not None:
            inputs = torch.cat([inputs, context_BC[:, None].expand(-1, inputs.shape[1], -1)], dim=2)
        hidden = self.norm(self.encoder(inputs))
        logarithm_BN = (self.deep(hidden) + self.wide(inputs)).squeeze(-1) * self.label_scale + self.label_shift
        share_BN = torch.softmax(logarithm_BN, dim=1)  # what each leaf has of the time
        latent = torch.einsum("bn,bnw->bw", share_BN, hidden)
        return (torch.logsumexp(logarithm_BN, dim=1) - self.label_shift) / self.label_scale, latent
