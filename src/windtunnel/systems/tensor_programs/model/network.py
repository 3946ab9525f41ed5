"""CDMPP's predictor as a torch module: leaves with their places in, one normalized number out.

A Transformer encoder sees the leaves of a compact tree; a projection for its number of leaves makes one embedding of
them; a branch embeds the context (device features, and in the presets of ours the terms of the physical bound); a
decoder joins both. ``heads="per-leaf"`` keeps a projection per number of leaves; ``heads="masked"`` keeps one for all,
of which a tree with N leaves uses the first N slices. Not here: training.

Source: CDMPP (EuroSys 2024), section 4 and the released configuration (``PRESETS["paper"]``).
"""

# B programs of a batch, N leaves, F features (164), C entries of context, Z width of an embedding

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.encoding import MAX_LEAVES
from windtunnel.systems.tensor_programs.model.features import NUM_FEATURES

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:
    torch = require("torch", extra="learn")
    nn = torch.nn

__all__ = ["PRESETS", "Network", "NetworkConfig"]

Fusion = Literal["add", "multiply", "concatenate"]
Heads = Literal["per-leaf", "masked"]


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes and switches of the network.

    Parameters
    ----------
    projection
        Widths behind the flattened leaves; the first has no activation, the last is the embedding's.
    context
        Hidden widths of the context branch.
    num_context
        Entries of the context; 0 switches the branch off, as one device alone must.
    decoder
        Hidden widths; the last is the latent that domains are compared in.
    has_shared_norm
        One batch normalization for both embeddings, as released, instead of one each.
    """

    num_layers: int = 2
    num_heads: int = 4
    feed_forward: int = 256
    projection: tuple[int, ...] = (256, 256, 64)
    context: tuple[int, ...] = (64,)
    num_context: int = 0
    decoder: tuple[int, ...] = (128, 128)
    dropout: float = 0.1
    heads: Heads = "masked"
    fusion: Fusion = "add"
    has_shared_norm: bool = False
    has_positions: bool = True
    num_features: int = NUM_FEATURES


PRESETS = {
    "paper": NetworkConfig(
        num_layers=11,
        feed_forward=2048,
        projection=(716, 985, 985, 985, 69),
        context=(128, 128, 128),
        decoder=(930, 930, 930),
        heads="per-leaf",
        has_shared_norm=True,
    ),
    "small": NetworkConfig(dropout=0.0),
}


def _build_hidden_layer(width_in: int, width_out: int, *, is_active: bool = True) -> list[Any]:
    layers = [nn.Linear(width_in, width_out), nn.BatchNorm1d(width_out)]
    return [*layers, nn.ReLU()] if is_active else layers


def _stack(widths: tuple[int, ...]) -> Any:
    return nn.Sequential(*[layer for a, b in pairwise(widths) for layer in _build_hidden_layer(a, b)])


class _Projection(nn.Module):
    """Flattened leaves to an embedding; ``num_leaves`` slices of weights, of which the first N are used."""

    def __init__(self, config: NetworkConfig, num_leaves: int) -> None:
        super().__init__()
        first = config.projection[0]
        self.first = nn.Linear(num_leaves * config.num_features, first)
        self.norm = nn.BatchNorm1d(first)
        self.rest = _stack(config.projection)

    def forward(self, leaves_BNF: Tensor) -> Any:
        flat = leaves_BNF.flatten(1)
        weight = self.first.weight[:, : flat.shape[1]]
        return self.rest(self.norm(nn.functional.linear(flat, weight, self.first.bias)))


class Network(nn.Module):
    """The predictor; see the module."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        heads = config.num_heads
        if config.num_features % heads:
            fits = max(index for index in range(1, heads) if config.num_features % index == 0)
            raise InputError(
                f"{config.num_features} features cannot be divided among {heads} heads", fix=f"num_heads={fits}"
            )
        layer = nn.TransformerEncoderLayer(
            config.num_features, heads, config.feed_forward, config.dropout, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, config.num_layers, enable_nested_tensor=False)
        counts = (MAX_LEAVES,) if config.heads == "masked" else range(1, MAX_LEAVES + 1)
        self.projections = nn.ModuleDict({str(count): _Projection(config, count) for count in counts})
        width = config.projection[-1]
        self.context = _stack((config.num_context, *config.context, width)) if config.num_context else None
        self.program_norm = nn.BatchNorm1d(width, affine=False)
        self.context_norm = self.program_norm if config.has_shared_norm else nn.BatchNorm1d(width, affine=False)
        joined = 2 * width if config.fusion == "concatenate" and config.num_context else width
        self.decoder = _stack((joined, *config.decoder))
        self.last = nn.Linear(config.decoder[-1], 1)

    def forward(self, leaves_BNF: Tensor, context_BC: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """A bucket: every program has N leaves, places already added. Returns numbers [B] and latents [B, width]."""
        encoded = self.encoder(leaves_BNF)
        return self._decode(self._project(encoded), context_BC)

    def _project(self, encoded_BNF: Tensor) -> Any:
        count = MAX_LEAVES if self.config.heads == "masked" else encoded_BNF.shape[1]
        return self.projections[str(count)](encoded_BNF)

    def _decode(self, embedded_BZ: Tensor, context_BC: Tensor | None) -> tuple[Tensor, Tensor]:
        joined = self.program_norm(embedded_BZ)
        if self.context is not None:
            context_BZ = self.context_norm(self.context(context_BC))
            joined = _fuse(joined, context_BZ, self.config.fusion)
        latent = self.decoder(joined)
        return self.last(latent).squeeze(-1), latent


def _fuse(program_BZ: Tensor, context_BZ: Tensor, fusion: Fusion) -> Tensor:
    if fusion == "concatenate":
        return torch.cat([program_BZ, context_BZ], dim=1)
    return program_BZ + context_BZ if fusion == "add" else program_BZ * context_BZ
