"""How fast a step is in the units that people think in: samples, tokens and model FLOPs per second.

In: a graph, the time of its step, the device that it runs on. Out: ``Speed``, which prints as one line. What is not
known is left out, never guessed. Not here: the time itself (``simulate``, ``forecast``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from windtunnel.cost.pricing import in_type, with_known_peaks
from windtunnel.cost.rerun import Program, program_of, tensors_of
from windtunnel.cost.work import work_of
from windtunnel.errors import PriceError
from windtunnel.graph import Graph, Kind, Phase
from windtunnel.graph.flops import sums_products
from windtunnel.graph.structure import keep_rows
from windtunnel.hardware import Device
from windtunnel.units import format_per_s, format_rate, format_ratio
from windtunnel.whatifs.another_batch import batch_of, batches_per_iteration
from windtunnel.whatifs.insert_tasks import chip_of
from windtunnel.whatifs.samples_per_iteration import batch_size_of, batch_size_of_operators

__all__ = [
    "Speed",
    "model_flops_of",
    "num_ranks_of_job",
    "samples_of",
    "speed_of",
    "speed_of_measurement",
    "tokens_of",
    "why_no_samples",
]

_MIN_SHOWN = 0.001
_BACKWARD_PER_FORWARD = 2.0  # gradients of both factors of a product


@dataclass(frozen=True, slots=True)
class Speed:
    """Throughput of a step.

    Parameters
    ----------
    step_ns : float
    num_samples, num_tokens : int
        Of one step, all devices together; 0 where the graph does not say it.
    model_flops : float
        Of the matrix products, convolutions and attention of one step, forward and backward without recomputation; 0
        where they are not known.
    num_devices : int
    dtype : str
        Type in which most of them are computed.
    peak_flops_per_s : float
        Of one device in that type; 0 where it is not known.
    device : str
    """

    step_ns: float
    num_samples: int = 0
    num_tokens: int = 0
    model_flops: float = 0.0
    num_devices: int = 1
    dtype: str = ""
    peak_flops_per_s: float = 0.0
    device: str = ""

    @property
    def samples_per_s(self) -> float:
        """0 where it is not known."""
        return self._per_s(self.num_samples)

    @property
    def tokens_per_s(self) -> float:
        """0 where it is not known."""
        return self._per_s(self.num_tokens)

    @property
    def model_flops_per_s(self) -> float:
        """0 where it is not known."""
        return self._per_s(self.model_flops)

    @property
    def mfu_ratio(self) -> float:
        """Model FLOPs utilization: model FLOPs per second over the peak of all devices; 0 where it is not known."""
        peak = self.num_devices * self.peak_flops_per_s
        return self.model_flops_per_s / peak if peak else 0.0

    def _per_s(self, amount: float) -> float:
        return 1e9 * amount / self.step_ns if self.step_ns > 0 else 0.0

    def __str__(self) -> str:
        parts = []
        if self.num_samples:
            parts.append(format_per_s(self.samples_per_s, "samples"))
        if self.num_tokens:
            parts.append(format_per_s(self.tokens_per_s, "tokens"))
        if self.mfu_ratio:
            count = f"{self.num_devices:,} x " if self.num_devices > 1 else ""
            peak = format_rate(self.peak_flops_per_s, "FLOP/s")
            share = format_ratio(self.mfu_ratio) if self.mfu_ratio >= _MIN_SHOWN else "below 0.1 %"
            parts.append(f"MFU {share} of {peak} ({count}{self.device}, {self.dtype})")
        elif self.model_flops:
            parts.append(f"{format_rate(self.model_flops_per_s, 'FLOP/s')} of the model")
        return ", ".join(parts)

    def times(self, num_devices: int, step_ns: float) -> Speed:
        """The same work on each of several devices."""
        amounts = {name: num_devices * getattr(self, name) for name in ("num_samples", "num_tokens", "model_flops")}
        return replace(self, step_ns=step_ns, num_devices=num_devices * self.num_devices, **amounts)

    def json(self) -> dict[str, Any]:
        """Raw units; what is not known is null."""
        rates = {name: getattr(self, name) or None for name in ("samples_per_s", "tokens_per_s", "model_flops_per_s")}
        counts = {name: getattr(self, name) or None for name in ("num_samples", "num_tokens", "model_flops")}
        peak = {"peak_flops_per_s": self.peak_flops_per_s or None, "peak_dtype": self.dtype, "peak_device": self.device}
        return {**rates, "mfu": self.mfu_ratio or None, **counts, **peak, "num_devices": self.num_devices}


def speed_of(
    graph: Graph,
    step_ns: float,
    *,
    device: Device | None = None,
    dtype: str = "",
    batch_size: int = 0,
    batch_dim: int | None = None,
    num_samples: int | None = None,
    num_tokens: int | None = None,
) -> Speed:
    """Throughput of a graph's step.

    Parameters
    ----------
    graph : Graph
    step_ns : float
    device : Device, optional
        That it runs on; by default the GPU that the graph was captured on, if the catalog knows it.
    dtype : str
        Of what was captured in fp32, as in a forecast.
    batch_size : int
        Of one forward pass, another than the captured one; the graph's work is already that of it.
    batch_dim : int, optional
        Dimension of the inputs that holds the samples.
    num_samples, num_tokens : int, optional
        Of all ranks, where the caller knows them; by default those that the graph shows.
    """
    samples, tokens = num_samples or 0, num_tokens or 0
    if num_samples is None and _is_traced(graph):
        samples, tokens = samples_of(graph, batch_dim), tokens_of(graph)  # which are of its own batch alone
    elif num_samples is None and graph.num_ranks <= 1:
        captured = samples_of(graph, batch_dim)
        samples = batch_size * batches_per_iteration(graph) or captured
        tokens = tokens_of(graph) if num_tokens is None else tokens
        # Tokens per sample stay at another batch size.
        tokens = tokens * samples // captured if captured else 0
    chip = chip_of(graph) if device is None else device
    flops, used = model_flops_of(graph, chip, dtype)
    peak = chip.peak_flops_per_s.get(used, 0.0) if chip is not None else 0.0
    name = chip.name if chip is not None else ""
    return Speed(step_ns, samples, tokens, flops, num_ranks_of_job(graph), used, peak, name)


def speed_of_measurement(graph: Graph, step_ns: float) -> Speed:
    """The same of a step that was measured: where it beats the peak of its type, another type was used (TF32)."""
    result = speed_of(graph, step_ns)
    return replace(result, peak_flops_per_s=0.0) if result.mfu_ratio > 1.0 else result


def samples_of(graph: Graph, batch_dim: int | None = None) -> int:
    """Samples of one step, of all batches that it trains on; 0 where the graph does not show them.

    Of one rank; of a job that was traced without being run, of all of its ranks.
    """
    if not _is_traced(graph):
        return batch_of(graph, batch_dim) * batches_per_iteration(graph)
    batches = _batches_of(graph)
    if not batches:
        return 0
    rank = _first_rank(graph)
    return batches["num_replicas"] * (batches["num_samples"] or batch_of(rank, batch_dim) * batches_per_iteration(rank))


def why_no_samples(graph: Graph) -> str:
    """Why a traced job does not show how many samples a step has; empty where it does, and of all other graphs."""
    if not _is_traced(graph) or _batches_of(graph):
        return ""
    return "not known: neither models (DDP, FSDP) nor messages of this job say which ranks share a batch"


def tokens_of(graph: Graph) -> int:
    """Tokens of one step: integers of two dimensions that a table is looked into with; 0 if there are none.

    Of one rank; of a job that was traced without being run, of all of its ranks.

    Where tables are looked into with different numbers of tokens (two languages), which of them counts is not clear.
    Lookups without the batch among their sizes, as those of relative positions, are of no tokens.
    """
    counts: Collection[int]
    if _is_traced(graph):
        batches = _batches_of(graph)
        counts = _count_lookups_of_operators(_first_rank(graph)).values() if batches else ()
        num_parts = batches["num_replicas"] * batches["num_sequence_parts"] if batches else 1
        distinct = {count for count in counts if count}
        return num_parts * distinct.pop() if len(distinct) == 1 else 0
    try:
        program = program_of(graph)
        counts = _count_lookups(program, batch_size_of(program)).values()
    except PriceError:
        counts = _count_lookups_of_operators(graph).values()
    distinct = {count for count in counts if count}
    return distinct.pop() if len(distinct) == 1 else 0


def _is_traced(graph: Graph) -> bool:
    """Whether a graph is of a whole job that was traced without being run, some ranks for all."""
    return "stands_for" in graph.meta.distributed


def _batches_of(graph: Graph) -> Mapping[str, int]:
    """How a traced job's samples are spread over its ranks; empty where its ranks do not say it."""
    result: Mapping[str, int] = graph.meta.distributed.get("batches", {})
    return result


def _devices_of_ranks(graph: Graph) -> dict[int, int]:
    """How many devices each rank of the graph stands for."""
    if _is_traced(graph):
        return {int(rank): count for rank, count in graph.meta.distributed["stands_for"].items()}
    return dict.fromkeys(range(max(graph.num_ranks, 1)), 1)


def num_ranks_of_job(graph: Graph) -> int:
    """Ranks of the job, traced ones and those that they stand for."""
    return sum(_devices_of_ranks(graph).values())


def _first_rank(graph: Graph) -> Graph:
    """The tasks of the first traced rank, which has the first stage of a pipeline."""
    if graph.num_ranks <= 1:
        return graph
    first = graph.tasks["rank"] == graph.tasks["rank"].min()
    inside = first[graph.edges["src"]] & first[graph.edges["dst"]]
    return keep_rows(replace(graph, edges=graph.edges.take(inside)), first)


def _count_lookups(program: Program, batch_size: int) -> dict[int, int]:
    """Tokens by table, of all passes of a step; what is looked up again while gradients are computed counts once."""
    result: dict[int, dict[tuple[int, int], int]] = {}
    recomputed = {row for first, last in program.recomputed for row in range(first, last)}
    # Passes of gradient accumulation look up the same indices in the same table; they differ in how
    # many backward passes came before.
    num_backward = 0  # since the last update
    for row, call in enumerate(program.calls):
        if call.mark:
            num_backward = num_backward + 1 if call.mark == "backward" else 0 if call.mark == "update" else num_backward
        elif call.operator == "aten::embedding" and row not in recomputed:
            table, indices = tensors_of(call.inputs, call.shapes, call.types, call.strides)[:2]
            if len(indices.shape) == 2 and indices.shape[1] > 1 and batch_size in (0, *indices.shape):
                counts = result.setdefault(table.identity, {})
                counts[num_backward, indices.identity] = indices.num_elements
    return {table: sum(counts.values()) for table, counts in result.items()}


def _count_lookups_of_operators(graph: Graph) -> dict[str, int]:
    """Tokens by layer that holds a table, of a graph that keeps no program, as that of a dry run."""
    tasks, result = graph.tasks, dict[str, int]()
    if not {"input_shapes", "layer", "phase"} <= set(tasks):
        return result
    batch_size, shapes, layers = batch_size_of_operators(graph), tasks.strings("input_shapes"), tasks.strings("layer")
    for row in np.flatnonzero(graph.select(kind=Kind.COMPUTE, phase=Phase.FORWARD, op="aten::embedding")).tolist():
        indices = [*json.loads(shapes.decode(row) or "[]"), [], []][1]
        if len(indices) == 2 and indices[1] > 1 and batch_size in (0, *indices):
            layer = layers.decode(row)
            result[layer] = result.get(layer, 0) + indices[0] * indices[1]
    return result


def model_flops_of(graph: Graph, device: Device | None = None, dtype: str = "") -> tuple[float, str]:
    """FLOPs of the model in one iteration, all ranks together, and the type of most of them; 0 where none are known.

    Matrix products, convolutions and attention count, forward and backward. What is computed again during the backward
    pass does not: the gradient of a product takes at most two products of the same size.
    """
    computes = graph.select(kind=Kind.COMPUTE)
    if "flops" not in graph.tasks or not computes.any():
        return 0.0, ""
    work, row_T = work_of(graph)
    work = in_type(work, dtype) if dtype else work
    work = work if device is None else with_known_peaks(work, device)
    counted_P = np.array([sums_products(name) for name in work.operator.tolist()], dtype=bool) & (work.flops > 0)
    tasks = np.flatnonzero(row_T >= 0)  # parts of operators are no work of their own
    tasks = tasks[counted_P[row_T[tasks]]]
    if not len(tasks):
        return 0.0, ""
    flops_T = graph.tasks["flops"][tasks].astype(np.float64)
    if _is_traced(graph) and "rank" in graph.tasks:
        alike = _devices_of_ranks(graph)
        flops_T *= [alike.get(rank, 1) for rank in graph.tasks["rank"][tasks].tolist()]
    is_backward = (
        graph.tasks["phase"][tasks] == Phase.BACKWARD if "phase" in graph.tasks else np.zeros(len(tasks), bool)
    )
    forward = float(flops_T[~is_backward].sum())
    backward = float(flops_T[is_backward].sum())
    # By the usual definition of MFU, recomputation is no work of the model: a backward pass counts as at most
    # twice the forward pass.
    backward = min(backward, _BACKWARD_PER_FORWARD * forward) if forward else backward
    amounts: dict[str, float] = {}
    for name, amount in zip(work.dtype[row_T[tasks]].tolist(), flops_T.tolist(), strict=True):
        amounts[name] = amounts.get(name, 0.0) + amount
    return (forward + backward) / max(graph.num_iterations, 1), max(amounts, key=lambda name: amounts[name])
