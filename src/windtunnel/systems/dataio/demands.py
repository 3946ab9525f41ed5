"""What a configuration demands from storage at full utilization.

In: a configuration, a number of accelerators. Out: bytes per second, sizes, steps. Not here: whether a machine delivers
them (``model``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np

from windtunnel.systems.dataio.checkpoint_sizes import checkpoint_layout, num_parameters
from windtunnel.systems.dataio.config import DatasetConfig, DlioConfig

__all__ = ["Demands", "demands_of", "mean_sample_bytes"]


@dataclass(frozen=True)
class Demands:
    """What storage has to deliver.

    Attributes
    ----------
    num_accelerators : int
    sample_bytes, num_samples, dataset_bytes : float or int
        Of the training set; without what a format adds.
    eval_bytes : int
    steps_per_epoch : int
        Of each accelerator.
    step_s : float
        Mean time to compute a step.
    samples_per_s, bytes_per_s : float or None
        Of each accelerator; None where computing takes no time.
    num_parameters, model_bytes, optimizer_bytes : int
        Of a checkpoint; 0 without checkpoints.
    checkpoint_bytes_per_rank : int
        At most.
    """

    num_accelerators: int
    sample_bytes: float
    num_samples: int
    dataset_bytes: int
    eval_bytes: int
    steps_per_epoch: int
    step_s: float
    samples_per_s: float | None
    bytes_per_s: float | None
    num_parameters: int
    model_bytes: int
    optimizer_bytes: int
    checkpoint_bytes_per_rank: int

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of a checkpoint of all ranks."""
        return self.model_bytes + self.optimizer_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values in raw units."""
        return {**asdict(self), "checkpoint_bytes": self.checkpoint_bytes}


def mean_sample_bytes(dataset: DatasetConfig) -> float:
    """Mean size of a record."""
    if dataset.record_dims:
        return float(prod(dataset.record_dims) * np.dtype(dataset.record_element_type).itemsize)
    return dataset.record_length_bytes


def demands_of(config: DlioConfig, num_accelerators: int = 1) -> Demands:
    """Compute what a job demands.

    Raises
    ------
    InputError
        The accelerators do not fit the parallelism of the model.
    """
    dataset, batch_size = config.dataset, config.reader.batch_size
    sample_bytes = mean_sample_bytes(dataset)
    num_samples = dataset.num_files_train * dataset.num_samples_per_file if config.workflow.train else 0
    num_eval = dataset.num_files_eval * dataset.num_samples_per_file if config.has_evaluation else 0
    step_s = config.train.computation_time.mean_s if config.workflow.train else 0.0
    samples_per_s = batch_size / step_s if step_s > 0 else None
    layout = checkpoint_layout(config, num_accelerators) if config.workflow.checkpoint else None
    return Demands(
        num_accelerators=num_accelerators,
        sample_bytes=sample_bytes,
        num_samples=num_samples,
        dataset_bytes=round(num_samples * sample_bytes),
        eval_bytes=round(num_eval * sample_bytes),
        steps_per_epoch=num_samples // (batch_size * num_accelerators),
        step_s=step_s,
        samples_per_s=samples_per_s,
        bytes_per_s=None if samples_per_s is None else samples_per_s * sample_bytes,
        num_parameters=num_parameters(config.model) if layout is not None else 0,
        model_bytes=0 if layout is None else layout.num_bytes("model"),
        optimizer_bytes=0 if layout is None else layout.num_bytes("optimizer"),
        checkpoint_bytes_per_rank=max((layout.rank_bytes(r) for r in range(layout.num_writers)), default=0)
        if layout is not None
        else 0,
    )
