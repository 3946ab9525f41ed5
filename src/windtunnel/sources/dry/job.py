"""One rank of a job whose other ranks are not there.

In: a rank and how many there are. Out: a context with the environment that ``torchrun`` sets, torch's fake process
group whatever backend is asked for, meshes of ranks made of real numbers, and objects that pass from rank to rank by a
mailbox, as pipelines tell each other shapes. Not here: devices, tensors.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed
import torch.distributed.checkpoint
import torch.multiprocessing
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import _init_utils as fsdp_setup
from torch.distributed.fsdp._fully_shard import _fsdp_common
from torch.distributed.pipelining import stage as stage_module
from torch.distributed.pipelining.stage import PipelineStage
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg
from torch.utils._python_dispatch import _disable_current_modes

from windtunnel.errors import InputError
from windtunnel.sources.dry.groups import Groups, complete_collective
from windtunnel.sources.dry.streams import patch_attributes, replace_functions
from windtunnel.sources.memory.dispatch import DispatchTracer

__all__ = ["Mailbox", "rank_of_job"]

# of what is not in their public face
dist: Any = torch.distributed
stages: Any = stage_module
processes: Any = torch.multiprocessing
_BACKEND = "fake"
_RANKS_TRACED = itertools.count()
assert fake_pg  # which registers it

_OF_MESHES = ("_unflatten", "_flatten", "_concatenate", "__getitem__", "_get_all_submeshes", "from_group", "mesh")
_DEVICES = ("device_ids", "output_device")


@dataclass
class Mailbox:
    """Objects on their way, by sender and receiver; it outlives a rank."""

    kept: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    taken: dict[tuple[int, int], int] = field(default_factory=dict)

    def begin(self, rank: int) -> None:
        """Prepare to trace a rank anew: forget what it sent before, and offer what it received again."""
        self.kept = {key: value for key, value in self.kept.items() if key[0] != rank}
        self.taken = {key: count for key, count in self.taken.items() if key[1] != rank}

    def send(self, sender: int, receiver: int, objects: list[Any]) -> None:
        """Keep objects."""
        self.kept.setdefault((sender, receiver), []).append(list(objects))

    def receive(self, sender: int, receiver: int, objects: list[Any]) -> None:
        """Fill in the next objects that were sent; of a sender whose turn comes later, the like of what was sent last.

        Raises
        ------
        InputError
            The sender has not been traced, and the receiver has sent nothing itself.
        """
        index = self.taken.get((sender, receiver), 0)
        own = [item for (origin, _), all_sent in self.kept.items() if origin == receiver for item in all_sent]
        sent = self.kept.get((sender, receiver), []) or own[-1:] * (index + 1)
        if index >= len(sent):
            raise InputError(
                f"rank {receiver} waits for an object of rank {sender}, which has sent none yet",
                where=f"receive {index} of rank {receiver}",
                fix=f"trace the sender before: --ranks-to-trace {sender},{receiver}",
            )
        self.taken[sender, receiver] = index + 1
        objects[:] = sent[index]


@contextmanager
def rank_of_job(rank: int, num_ranks: int, devices_per_host: int, mailbox: Mailbox) -> Iterator[None]:
    """Be one rank of a job."""
    local = rank % devices_per_host
    reported = {
        "RANK": rank,
        "WORLD_SIZE": num_ranks,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": min(devices_per_host, num_ranks),
        "GROUP_RANK": rank // devices_per_host,
        "NGPU": num_ranks,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RUN_ID": "dry",
    }
    mailbox.begin(rank)
    stands_in = replace_functions(_functions(rank, local, num_ranks, mailbox))
    with _environment({name: str(value) for name, value in reported.items()}), stands_in, patch_attributes(_methods()):
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _functions(rank: int, local: int, num_ranks: int, mailbox: Mailbox) -> dict[Callable[..., Any], Callable[..., Any]]:
    """What stands in for functions of torch.distributed."""
    initialize = dist.init_process_group

    def begin(*_: Any, **__: Any) -> None:
        with _disable_current_modes():
            initialize(_BACKEND, rank=rank, world_size=num_ranks, store=dist.HashStore())

    def send(objects: list[Any], dst: Any = None, group: Any = None, **more: Any) -> None:
        mailbox.send(rank, _global(group, dst, more.get("group_dst")), objects)

    def receive(objects: list[Any], src: Any = None, group: Any = None, **more: Any) -> None:
        mailbox.receive(_global(group, src, more.get("group_src")), rank, objects)

    def spawn(function: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        function(local % nprocs, *args)

    return {
        initialize: begin,
        processes.spawn: spawn,
        dist.new_group: _of_this_backend(dist.new_group),
        dist.is_nccl_available: lambda: True,
        dist.distributed_c10d._set_pg_timeout: _nothing,
        dist.broadcast_object_list: _same,
        dist.all_gather_object: _all_alike,
        dist.gather_object: _all_alike_there,
        dist.send_object_list: send,
        dist.recv_object_list: receive,
        # draws again and again until no value lies outside
        torch.nn.init._no_grad_trunc_normal_: _fill_normal,
        dist.init_device_mesh: _on_real_numbers(dist.init_device_mesh),
        _fsdp_common._chunk_with_empty: lambda tensor, num_chunks, dim: _Chunks(tensor, num_chunks, dim),
    }


class _Chunks(Sequence[torch.Tensor]):
    """Equal parts of a tensor, empty ones behind, made when they are asked for: a rank looks at two of thousands."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._num_chunks, self._dim = tensor, num_chunks, dim

    def __len__(self) -> int:
        return self._num_chunks

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._num_chunks:
            raise IndexError(index)
        size = self._tensor.size(self._dim)
        length = -(-size // self._num_chunks)
        first = index * length
        if first >= size and index:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, first, min(length, size - first))


def _methods() -> dict[Any, dict[str, Any]]:
    return {
        dist: {"_verify_params_across_processes": lambda *_: None},
        # the host stands in for a device by two names
        fsdp_setup: {"_get_device_from_device_id": _current_device},
        DeviceMesh: {"__init__": _of_one_rank(_on_real_numbers(DeviceMesh.__init__, position=1))} | _mesh_methods(),
        DistributedDataParallel: {
            "__init__": _without_devices(DistributedDataParallel.__init__),
            "_passing_sync_batchnorm_handle": _nothing,
        },
        # there are no values to save, and files of real ones may not be overwritten
        torch: {"save": _nothing},
        torch.distributed.checkpoint: {"save": _nothing, "async_save": _nothing},
        PipelineStage: {
            "_warmup_forward_vote": _vote_static_shapes,
            "_warmup_backward_result": _vote_static_shapes,
            "_recv_meta": _patch_receive_meta(PipelineStage._recv_meta),
        },
        dist.Reducer: {"_rebuild_buckets": _rebuilt(dist.Reducer._rebuild_buckets)},
    }


def _of_this_backend(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        del backend
        with _disable_current_modes():
            return original(ranks, timeout, None, *args, **kwargs)

    return make


def _on_real_numbers(original: Callable[..., Any], position: int = 0) -> Callable[..., Any]:
    """Ranks of a mesh are looked at; what is on a device here lies on the host."""

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        if len(given) > position and str(given[position]).startswith("cuda"):
            given[position] = "cpu"
        if str(kwargs.get("device_type", "")).startswith("cuda"):
            kwargs["device_type"] = "cpu"
        with _disable_current_modes():
            return original(*given, **kwargs)

    return make


def _of_one_rank(construct: Callable[..., None]) -> Callable[..., None]:
    """Meshes that equal none of another traced rank: torch caches what it derives from a mesh, group names among it."""
    number = next(_RANKS_TRACED)

    @functools.wraps(construct)
    def make(mesh: Any, *args: Any, **kwargs: Any) -> None:
        construct(mesh, *args, **kwargs)
        mesh._thread_id = number  # by which torch tells apart the meshes of ranks that are threads of one process

    return make


def _mesh_methods() -> dict[str, Any]:
    """Those that make other meshes, or say where this rank is."""
    result: dict[str, Any] = {}
    for name in _OF_MESHES:
        value: Any = vars(DeviceMesh)[name]
        if isinstance(value, property):
            result[name] = property(_on_real_numbers(value.fget))  # type: ignore[arg-type]
        elif isinstance(value, staticmethod | classmethod):
            result[name] = type(value)(_on_real_numbers(value.__func__))
        else:
            result[name] = _on_real_numbers(value)
    return result


def _without_devices(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def construct(model: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["device_ids"] = kwargs["output_device"] = None
        original(model, module, None, None, *args[2:], **{k: v for k, v in kwargs.items() if k not in _DEVICES})

    return construct


def _vote_static_shapes(stage: Any, *_: Any, **__: Any) -> Any:
    """Whether the stages of a pipeline know all shapes: they all say the same."""
    knows = not stages.InferenceMode.needs_dynamic(stage._user_meta, True)
    with _disable_current_modes():
        return torch.tensor([int(knows)], dtype=torch.int32)


def _patch_receive_meta(original: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    """Patch how a stage receives metadata: gradients from later stages have the form of its own outputs."""

    def receive(stage: Any, source: int) -> Any:
        if source < stage.stage_index:
            return original(stage, source)
        return stages._StageBackwardMeta(backward_metas=stages._derive_grad_metas(stage._stage_meta.outputs))

    return receive


def _rebuilt(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The reducer reads its list of buckets back from a message."""

    def rebuild(reducer: Any) -> Any:
        fake_mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        if fake_mode is None:
            return original(reducer)
        with _disable_current_modes(), _OnlyWholeNumbers(fake_mode):
            return original(reducer)

    return rebuild


class _OnlyWholeNumbers(DispatchTracer):
    """Only whole numbers are real, and messages arrive at once."""

    def __init__(self, fake_mode: Any) -> None:
        super().__init__()
        self._fake_mode = fake_mode
        self._groups = Groups()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func.namespace == "c10d":
            values = [*args, *(argument.default_value for argument in func._schema.arguments[len(args) :])]
            message = self._groups.message_of(func._schema, values)
            assert message is not None
            return complete_collective(func._schema, message, values)
        if types or named.get("dtype", torch.int32).is_floating_point:
            with self._fake_mode:
                return func(*args, **named)
        return func(*args, **named)


@torch.no_grad()
def _fill_normal(tensor: torch.Tensor, mean: float, std: float, *_: Any, **__: Any) -> torch.Tensor:
    """Fill a tensor as a truncated normal distribution would; only its shape matters."""
    return tensor.normal_(mean, std)


def _current_device(given: Any, _rank: int, cuda: Any) -> Any:
    return None if given is None else torch.device(cuda.current_device())


def _nothing(*_: Any, **__: Any) -> None:
    """What has no effect here."""


def _same(*_: Any, **__: Any) -> None:
    """What the sender has is what this rank has."""


def _all_alike(gathered: list[Any], own: Any, group: Any = None) -> None:
    del group
    gathered[:] = [own] * len(gathered)


def _all_alike_there(own: Any, gathered: list[Any] | None = None, *_: Any, **__: Any) -> None:
    if gathered is not None:
        gathered[:] = [own] * len(gathered)


def _global(group: Any, rank: int | None, group_rank: int | None) -> int:
    if rank is not None:
        return rank
    assert group_rank is not None
    return group_rank if group is None else int(dist.get_global_rank(group, group_rank))
