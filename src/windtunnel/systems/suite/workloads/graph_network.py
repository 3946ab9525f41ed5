"""A graph network with sampled neighbors.

In: a size and a seed. Out: a ``Workload`` around the GraphSAGE layers of torch_geometric on an invented citation
graph. Neighbors are drawn with replacement, as in the paper, so every mini-batch has the same shape.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.workloads.workload import Training, Workload, move_to_device

if TYPE_CHECKING:
    import torch

__all__ = ["PRESETS", "graph_network"]

# N nodes, E edges, B seeds of a batch, F features

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Preset:
    """Sizes of graph and network; ``fanouts`` are the neighbors drawn per node, nearest hop first."""

    batch_size: int
    num_nodes: int
    degree: int
    num_features: int
    num_classes: int
    width: int
    fanouts: tuple[int, ...]
    learning_rate: float


PRESETS = {
    "tiny": Preset(64, 2000, 9, num_features=32, num_classes=6, width=32, fanouts=(5, 5), learning_rate=1e-2),
    "small": Preset(256, 20_000, 9, num_features=128, num_classes=6, width=128, fanouts=(10, 10), learning_rate=3e-3),
    "paper": Preset(512, 302_424, 9, num_features=300, num_classes=6, width=256, fanouts=(25, 10), learning_rate=1e-3),
}
"""``paper`` has the size of the paper's citation graph: 302,424 papers of six fields with 9.15 links each."""


@dataclass(frozen=True)
class Citations:
    """A graph by rows: the neighbors of node v are ``neighbors[starts[v] : starts[v + 1]]``."""

    starts: Numbers
    neighbors: Numbers
    features: npt.NDArray[np.float32]
    labels: Numbers

    def sample(self, nodes: Numbers, fanout: int, random: np.random.Generator) -> Numbers:
        """``fanout`` neighbors of each node, with replacement: int64 [len(nodes) * fanout]."""
        degrees = np.diff(self.starts)[nodes]
        offsets = (random.random((len(nodes), fanout)) * degrees[:, None]).astype(np.int64)
        sampled: Numbers = self.neighbors[self.starts[nodes][:, None] + offsets].ravel()
        return sampled


@registry.workload("graph-network", source="Hamilton et al., GraphSAGE, NeurIPS 2017", domain="graphs")
def graph_network(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Tell the field of papers from their words and from sampled citations.

    A batch counts labeled nodes. Parameters and errors are those of :meth:`Training.of`.
    """
    require("torch", extra="torch")
    layers = _layers()
    import torch
    from torch import nn

    training = Training.of("graph-network", PRESETS, size, batch_size, seed)
    preset = training.preset
    num_seeds = training.batch_size
    model = _network(preset, layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=preset.learning_rate)
    loss_function = nn.CrossEntropyLoss()
    random = np.random.default_rng(seed)
    graph = citations(preset, random)
    features = move_to_device(graph.features, training.device)
    edges = [move_to_device(links, training.device) for links in batch_edges(num_seeds, preset.fanouts)]

    def step() -> torch.Tensor:
        nodes = random.integers(0, preset.num_nodes, num_seeds)
        labels = move_to_device(graph.labels[nodes], training.device)
        for fanout in preset.fanouts:
            nodes = np.concatenate([nodes, graph.sample(nodes, fanout, random)])
        optimizer.zero_grad()
        known = features[move_to_device(nodes, training.device)]
        loss: torch.Tensor = loss_function(model(known, edges), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    data = "synthetic: citations that prefer their own field and much-cited papers, noisy word features"
    return training.workload((model,), (optimizer,), step, data=data)


def citations(preset: Preset, random: np.random.Generator) -> Citations:
    """A graph in which four links of five stay within a class and much-cited nodes attract more."""
    num_nodes, num_classes = preset.num_nodes, preset.num_classes
    labels = np.arange(num_nodes) % num_classes
    sources = np.repeat(np.arange(num_nodes), preset.degree // 2 + 1)
    rank = (num_nodes // num_classes * random.random(len(sources)) ** 2).astype(np.int64)  # low ranks are much cited
    field = np.where(random.random(len(sources)) < 0.8, labels[sources], random.integers(0, num_classes, len(sources)))
    targets = rank * num_classes + field
    both = np.concatenate([sources, targets]), np.concatenate([targets, sources])
    order = np.argsort(both[0], kind="stable")
    starts = np.concatenate([[0], np.bincount(both[0], minlength=num_nodes).cumsum()])
    centers = random.standard_normal((num_classes, preset.num_features), dtype=np.float32)
    noise = random.standard_normal((num_nodes, preset.num_features), dtype=np.float32)
    return Citations(starts, both[1][order], 0.3 * centers[labels] + noise, labels)


def batch_edges(num_seeds: int, fanouts: tuple[int, ...]) -> list[Numbers]:
    """Links from sampled nodes to those that drew them, farthest hop first: each int64 [2, E].

    The nodes of a batch are the seeds, then what the seeds drew, then what all of these drew, and so on.
    """
    hops, num_nodes = [], num_seeds
    for fanout in fanouts:
        drew = np.repeat(np.arange(num_nodes), fanout)
        hops.append(np.stack([num_nodes + np.arange(len(drew)), drew]))
        num_nodes += len(drew)
    return hops[::-1]


def _layers() -> ModuleType:
    with warnings.catch_warnings():
        # torch_geometric 2.8 decorates two of its classes so while it is imported
        warnings.filterwarnings("ignore", r".torch\.jit\.script. is deprecated", DeprecationWarning)
        return require("torch_geometric.nn", extra="suite")


def _network(preset: Preset, layers: ModuleType) -> torch.nn.Module:
    from torch import nn

    widths = [preset.num_features, *[preset.width] * len(preset.fanouts)]

    class Sage(nn.Module):
        """One mean-aggregating layer per hop, then a linear classifier."""

        def __init__(self) -> None:
            super().__init__()
            self.hops = nn.ModuleList(layers.SAGEConv(*pair) for pair in itertools.pairwise(widths))
            self.classes = nn.Linear(preset.width, preset.num_classes)

        def forward(self, features: torch.Tensor, edges: list[torch.Tensor]) -> torch.Tensor:
            for hop, links in zip(self.hops, edges, strict=True):
                num_targets = len(features) - links.shape[1]
                features = hop((features, features[:num_targets]), links, size=(len(features), num_targets)).relu()
            return self.classes(features)  # type: ignore[no-any-return]

    return Sage()
