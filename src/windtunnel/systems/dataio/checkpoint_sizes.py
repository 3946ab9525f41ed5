"""Which files a checkpoint has, and the tensors in each.

In: the model section of a configuration, and ranks. Out: for each rank its ``StateFile``s; parameters and bytes of all.
Not here: writing and reading (``checkpoint``).

References
----------
DLIO's checkpointing; the sizes that MLPerf Storage publishes for Llama 3 (in GiB, called GB) follow from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from windtunnel.errors import InputError
from windtunnel.systems.dataio.config import DlioConfig, ModelConfig

__all__ = ["CheckpointLayout", "StateFile", "checkpoint_layout", "num_parameters"]

ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "int8": 1, "uint8": 1}
_STATES = 3  # of Adam in mixed precision: the parameters in full precision and two moments
_SMALL_STATES = 5  # times the hidden size, which DLIO adds for each of them


@dataclass(frozen=True)
class StateFile:
    """A file of a checkpoint.

    Attributes
    ----------
    name : str
        Below the folder of the checkpoint.
    kind : str
        ``model`` or ``optimizer``.
    tensors : tuple of (str, int)
        Name and number of elements of each.
    dtype : str
    """

    name: str
    kind: str
    tensors: tuple[tuple[str, int], ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(count for _, count in self.tensors) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class CheckpointLayout:
    """The files of each rank.

    Attributes
    ----------
    files : tuple of tuple of StateFile
        By rank of the full job, which may have more ranks than write (``mode: subset``).
    num_writers : int
        Ranks that write.
    """

    files: tuple[tuple[StateFile, ...], ...]
    num_writers: int

    def num_bytes(self, kind: str = "") -> int:
        """Bytes of the checkpoint of the full job: of the model, of the optimizer, or of both."""
        return sum(file.num_bytes for rank in self.files for file in rank if kind in ("", file.kind))

    def rank_bytes(self, rank: int) -> int:
        """Bytes that a rank writes."""
        return sum(file.num_bytes for file in self.files[rank]) if rank < self.num_writers else 0


def num_parameters(model: ModelConfig) -> int:
    """Parameters of a transformer; 0 where the configuration describes none.

    P = 2 V h + L (2 h + h (h + 2 k) + h^2 + 3 f h) + h, with k the width of keys.
    """
    return sum(count for layer in range(_num_layers(model)) for _, count in _layer(model, layer))


def checkpoint_layout(config: DlioConfig, num_ranks: int = 1) -> CheckpointLayout:
    """Lay out the checkpoint of a job.

    All ranks of a transformer write, as each has its part; ``type: rank_zero`` is for models that are only a size.

    Raises
    ------
    InputError
        The ranks do not fit the parallelism of the model: shows the arithmetic.
    """
    model, parallelism = config.model, config.model.parallelism
    per_replica = parallelism.tensor * parallelism.pipeline
    data = parallelism.data if parallelism.data > 0 else max(num_ranks // per_replica, 1)
    world = per_replica * data
    is_subset = config.checkpoint.mode == "subset"
    if model.transformer is not None and (num_ranks > world if is_subset else num_ranks != world):
        raise InputError(
            f"{num_ranks} ranks are not {parallelism.tensor} tensor x {parallelism.pipeline} pipeline x {data} data "
            f"parallel = {world}",
            where="model.parallelism",
            fix=f"use {world} ranks, or checkpoint.mode subset for fewer of them",
        )
    num_writers = 1 if config.checkpoint.type == "rank_zero" and model.transformer is None else num_ranks
    if model.transformer is None:
        files = [tuple(_plain_files(model, rank)) for rank in range(num_writers)]
    else:
        files = [tuple(_transformer_files(model, rank, data)) for rank in range(world)]
    return CheckpointLayout(tuple(files), num_writers)


def _plain_files(model: ModelConfig, rank: int) -> Iterator[StateFile]:
    """What sizes in the configuration say: a model in bytes, groups of an optimizer, layers."""
    if model.model_size_bytes:
        yield StateFile(f"model-{rank}", "model", (("model", model.model_size_bytes),), "uint8")
    if groups := tuple((f"group_{i}", count) for i, count in enumerate(model.optimization_groups)):
        yield StateFile(f"optimizer-{rank}", "optimizer", groups, model.optimizer_datatype)
    tensors = tuple((f"tensor_{i}", count) for i, count in enumerate(model.layer_parameters))
    for layer in range(max(model.num_layers, 0) if tensors else 0):
        yield StateFile(f"layer_{layer}-{rank}", "model", tensors, model.model_datatype)


def _num_layers(model: ModelConfig) -> int:
    """With the embedding, the head and the last norm."""
    return max(model.num_layers, 0) + 3 if model.transformer is not None else 0


def _layer(model: ModelConfig, layer: int) -> tuple[tuple[str, int], ...]:
    """Tensors of a layer: 0 is the embedding, L + 1 and L + 2 are the head and the norm in front of it."""
    shape = model.transformer
    assert shape is not None
    hidden, ffn = shape.hidden_size, shape.ffn_hidden_size
    keys = shape.num_kv_heads * (hidden // shape.num_attention_heads)
    if layer in (0, model.num_layers + 1):
        return (("embedding" if not layer else "head", shape.vocab_size * hidden),)
    if layer == model.num_layers + 2:
        return (("norm", hidden),)
    return (
        ("input_norm", hidden), ("qkv", hidden * (hidden + 2 * keys)), ("attention_output", hidden * hidden),
        ("post_norm", hidden), ("gate_and_up", 2 * ffn * hidden), ("down", ffn * hidden),
    )  # fmt: skip


def _part(count: int, index: int, num_parts: int) -> int:
    """Elements of one of nearly equal parts, which add up to all."""
    return count // num_parts + (index < count % num_parts)


def _transformer_files(model: ModelConfig, rank: int, num_data: int) -> Iterator[StateFile]:
    """Files of a rank; tensor-parallel ranks are next to each other, then those of a pipeline, then replicas."""
    parallelism = model.parallelism
    tensor, rest = rank % parallelism.tensor, rank // parallelism.tensor
    stage, replica = rest % parallelism.pipeline, rest // parallelism.pipeline
    tensor_rank = f"mp_rank_{stage * parallelism.tensor + tensor:02d}"
    is_sharded = parallelism.zero_stage == 3
    layers = []
    for layer in _layers_of_stage(model, stage):
        tensors = []
        for name, count in _layer(model, layer):
            # a norm is on all tensor-parallel ranks, and saved by the first
            split = count * (tensor == 0) if "norm" in name else _part(count, tensor, parallelism.tensor)
            tensors.append((f"layer_{layer}.{name}", _part(split, replica, num_data) if is_sharded else split))
        layers.append((layer, tuple(item for item in tensors if item[1])))
    if is_sharded or replica == 0:
        prefix = f"zero_pp_rank_{replica}_{tensor_rank}" if is_sharded else tensor_rank
        if parallelism.pipeline > 1:
            for layer, tensors_of_layer in layers:
                name = f"layer_{layer:03d}-{prefix}_model_states"
                yield StateFile(name, "model", tensors_of_layer, model.model_datatype)
        else:
            flat = tuple(item for _, tensors_of_layer in layers for item in tensors_of_layer)
            yield StateFile(f"{prefix}_model_states", "model", flat, model.model_datatype)
    if parallelism.zero_stage > 0 or replica == 0:
        per_replica = parallelism.tensor * parallelism.pipeline
        shards = per_replica * (num_data if parallelism.zero_stage > 0 else 1)
        assert model.transformer is not None
        counts = (num_parameters(model) // shards, _SMALL_STATES * model.transformer.hidden_size)
        groups = tuple((f"state_{i}.{j}", count) for i in range(_STATES) for j, count in enumerate(counts))
        yield StateFile(
            f"zero_pp_rank_{replica}_{tensor_rank}_optim_states", "optimizer", groups, model.optimizer_datatype
        )


def _layers_of_stage(model: ModelConfig, stage: int) -> list[int]:
    stages, num_layers = model.parallelism.pipeline, max(model.num_layers, 0)
    first = 1 + sum(_part(num_layers, i, stages) for i in range(stage))
    layers = list(range(first, first + _part(num_layers, stage, stages)))
    if stage == 0:
        layers.insert(0, 0)
    if stage == stages - 1:
        layers += [num_layers + 1, num_layers + 2]
    return layers
