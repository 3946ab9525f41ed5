"""How the samples of a job are spread over its ranks: which share a batch, and which have a part of its sequences.

In: one rank's models and messages, while its process groups are there. Out: ``Batches``; None where neither the models
nor the messages say it. Ranks that average gradients have batches of their own, but for those that share sequences.
Not here: how many samples a batch has (``whatifs.samples_per_iteration``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from windtunnel.graph.meta import ProcessGroup
from windtunnel.sources.dry.groups import Message
from windtunnel.sources.dry.recorder import Call
from windtunnel.sources.memory.storages import BACKWARD, UPDATE

__all__ = ["Batches", "batches_of", "pipeline_samples"]

dist: Any = torch.distributed
_SEQUENCE = {"cp", "context", "context_parallel", "ring", "seq", "sequence", "sp", "ulysses"}  # dimensions of meshes
_MESH = "mesh_"  # how a mesh describes the group of a dimension
_REDUCES = {"all_reduce", "reduce", "reduce_scatter"}
_MAX_SCALAR_BYTES = 1024  # losses, norms, counters


@dataclass(frozen=True, slots=True)
class Batches:
    """How samples are spread.

    Parameters
    ----------
    num_replicas : int
        Groups of ranks with batches of their own.
    num_sequence_parts : int
        Ranks that share each sequence.
    num_samples : int
        Of one replica in one step, where a pipeline feeds them in parts; 0: those that the rank's operators show.
    """

    num_replicas: int
    num_sequence_parts: int = 1
    num_samples: int = 0

    def to_dict(self) -> dict[str, int]:
        """As a graph notes it."""
        return asdict(self)


def batches_of(
    models: Iterable[torch.nn.Module], calls: Sequence[Call], groups: Sequence[ProcessGroup], rank: int, num_ranks: int
) -> Batches | None:
    """What models and messages of a rank say; None where it is not clear.

    Parameters
    ----------
    models : iterable of Module
        Of one iteration.
    calls : sequence of Call
        Of the same.
    groups : sequence of ProcessGroup
        That the calls' messages travel in.
    rank, num_ranks : int
    """
    averaging = {rank}.union(*_averaging_groups(models))
    if len(averaging) == 1 and num_ranks > 1:
        # No wrapper averages gradients. Large reductions of the script's own may be of gradients as well as of
        # activations, and where the groups of all messages do not make up the job, some ranks are unexplained.
        sent = [(call, call.message) for call in calls if call.message is not None]
        together = {groups[message.group].ranks for _, message in sent}
        if any(_may_average(call, message) for call, message in sent) or math.prod(map(len, together)) < num_ranks:
            return None
    sequence = _sequence_ranks(rank)
    return Batches(len(averaging) // max(len(averaging & sequence), 1), len(sequence))


def _averaging_groups(models: Iterable[torch.nn.Module]) -> Iterator[set[int]]:
    """Ranks between which the wrappers of a model average its gradients."""
    for module in {id(part): part for model in models for part in model.modules()}.values():
        if isinstance(module, DistributedDataParallel):
            yield set(dist.get_process_group_ranks(module.process_group))
        elif isinstance(module, FullyShardedDataParallel):
            yield set(dist.get_process_group_ranks(module.process_group))
            between = getattr(module, "_inter_node_pg", None)  # a replica on each host
            if between is not None:
                yield set(range(dist.get_world_size()))
        elif hasattr(module, "_get_fsdp_state"):
            sharded: Any = module
            group = getattr(sharded._get_fsdp_state(), "_fsdp_param_group", None)
            if group is not None:
                yield set(group.mesh_info.mesh.mesh.flatten().tolist())


def _may_average(call: Call, message: Message) -> bool:
    is_late = call.phase in (BACKWARD, UPDATE) or not call.layer  # between the passes, the script itself sends
    is_own = not call.node["name"].startswith("_c10d_functional")  # as those of tensor parallelism
    return is_late and is_own and message.op in _REDUCES and message.size_bytes > _MAX_SCALAR_BYTES


def _sequence_ranks(rank: int) -> set[int]:
    """Ranks that have other parts of the same sequences: those along a dimension of a mesh with such a name."""
    result = {rank}
    for group in dist.distributed_c10d._world.pg_names:
        described = str(group.group_desc)
        if described.startswith(_MESH) and described.removeprefix(_MESH) in _SEQUENCE:
            ranks = set(dist.get_process_group_ranks(group))
            result |= ranks if rank in ranks else set()
    return result


def pipeline_samples(calls: Sequence[tuple[int, tuple[int, ...]]]) -> int:
    """Samples of one step of a pipeline: of all calls of the model that is called first, each with a microbatch.

    Parameters
    ----------
    calls : sequence of (model, shape of its first tensor)

    Examples
    --------
    >>> pipeline_samples([(0, (2, 64)), (1, (2, 64)), (0, (2, 64)), (1, (2, 64))])
    4
    """
    return sum(shape[0] for model, shape in calls if model == calls[0][0] and shape)
