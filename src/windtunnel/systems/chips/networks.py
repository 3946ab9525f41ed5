"""Published networks as models for the search: traced without hardware, once per tensor degree.

In: a network's name, a microbatch. Out: a ``Model``, and the plan that its makers train it with. Not here: what the
networks are made of (``workloads.transformer_parts``).

Source of the plans: PHAZE (Wang et al., ICML 2024), the expert plans that it compares with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.registry import did_you_mean
from windtunnel.sources.dry.run import dry_run
from windtunnel.systems.chips.layers import Layers, layers_of
from windtunnel.systems.chips.model import Model
from windtunnel.workloads import transformer_parts

__all__ = ["EXPERTS", "Expert", "check_network", "trace_network"]

DEGREES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Expert:
    """A plan by hand: stages of equal numbers of layers, pipelines, tensor ranks of every stage."""

    num_stages: int
    num_pipelines: int
    degree: int

    def cuts(self, depth: int) -> list[list[int]]:
        """Layers of each stage; embedding and head lie with the first and the last."""
        parts = np.array_split(np.arange(1, depth + 1), self.num_stages)
        result: list[list[int]] = [part.tolist() for part in parts]
        result[0].insert(0, 0)
        result[-1].append(depth + 1)
        return result


EXPERTS: Mapping[str, Expert] = MappingProxyType(
    {
        "bert-large": Expert(8, 128, 1),
        "opt-350m": Expert(12, 85, 1),
        "gpt2-xl": Expert(32, 32, 1),
        "megatron-gpt2-2.5b": Expert(8, 32, 4),
        "megatron-gpt2-8.3b": Expert(8, 16, 8),
        "gpt3": Expert(32, 8, 4),
        "llama2-7b": Expert(8, 128, 1),
    }
)
"""Published expert plans for 1024 devices."""


def check_network(name: str) -> str:
    """The name, if it is one.

    Raises
    ------
    InputError
        No network is called so; offers the nearest.
    """
    if name not in EXPERTS:
        raise InputError(f"no network is called {name!r}", where="MODEL", fix=did_you_mean(name.lower(), EXPERTS))
    return name


def trace_network(name: str, microbatch: int, progress: Progress | None = None) -> Model:
    """Trace a network of one layer for every tensor degree that it can be split to.

    Raises
    ------
    InputError
        No network is called so, or the microbatch is not above zero.
    MissingExtraError
        PyTorch is not installed.
    """
    shape = transformer_parts.PUBLISHED[check_network(name)]
    if microbatch < 1:
        raise InputError(f"a microbatch cannot be {microbatch}", where="microbatch", fix="give a whole number above 0")
    degrees = [item for item in DEGREES if shape.may_split(item)]
    by_degree: dict[int, Layers] = {}
    for done, degree in enumerate(degrees, start=1):
        arguments = [name, "--microbatch", str(microbatch)]
        graph = dry_run(Path(transformer_parts.__file__), arguments, num_ranks=degree, ranks_to_trace=[0])
        by_degree[degree] = layers_of(graph, degree)
        if progress is not None:
            progress(f"tracing {name}", done, len(degrees))
    return Model(name, microbatch, by_degree, shape.depth)
