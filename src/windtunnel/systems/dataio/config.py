"""The configuration of an input pipeline: the sections of DLIO's YAML files, as frozen dataclasses.

In: nothing. Out: the sections with DLIO's defaults, units in the comments and the allowed values of
each field. Not here: reading and checking a file (``config_file``), what a configuration demands (``demands``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CheckpointConfig",
    "DatasetConfig",
    "DlioConfig",
    "EvaluationConfig",
    "Hdf5Config",
    "KsmConfig",
    "MetricConfig",
    "ModelConfig",
    "OutputConfig",
    "OutputMetricConfig",
    "ParallelismConfig",
    "ProfilingConfig",
    "ReaderConfig",
    "StorageConfig",
    "TimeDraw",
    "TrainConfig",
    "TransformerConfig",
    "WorkflowConfig",
]

SHUFFLES = ("off", "seed", "random")
COMPRESSIONS = ("none", "gzip", "lzf", "bz2", "zip", "xz")
FORMATS = (
    "tfrecord", "hdf5", "csv", "npz", "npy", "jpeg", "png", "indexed_binary", "mmap_indexed_binary", "hdf5_opt",
    "parquet", "webdataset", "synthetic",
)  # fmt: skip
TIME_KEYS = {
    "normal": ("mean", "stdev"),
    "uniform": ("min", "max"),
    "gamma": ("shape", "scale"),
    "exponential": ("scale",),
    "poisson": ("lam",),
}


def _text(default: str, *choices: str) -> Any:
    return field(default=default, metadata={"choices": choices})


def _number(default: float, minimum: float) -> Any:
    return field(default=default, metadata={"min": minimum})


@dataclass(frozen=True)
class TimeDraw:
    """A distribution of times in seconds; the absolute value of a negative draw counts.

    Attributes
    ----------
    kind : str
        ``constant``, ``normal``, ``uniform``, ``gamma``, ``exponential`` or ``poisson``.
    first, second : float
        Its parameters in DLIO's order: mean and stdev, min and max, shape and scale, scale, lam.
    """

    kind: str = "constant"
    first: float = 0.0
    second: float = 0.0

    @property
    def mean_s(self) -> float:
        """Mean before negative draws are mirrored."""
        match self.kind:
            case "uniform":
                return (self.first + self.second) / 2
            case "gamma":
                return self.first * self.second
            case _:
                return self.first

    def sample(self, random: np.random.Generator) -> float:
        """Draw one time in seconds."""
        return float(self._sample_s(random, 1)[0])

    def draw_ns(self, random: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Draw times in ns, int64 [count]."""
        return np.rint(np.minimum(self._sample_s(random, count) * 1e9, 9e18)).astype(np.int64)

    def _sample_s(self, random: np.random.Generator, count: int) -> NDArray[np.float64]:
        match self.kind:
            case "normal":
                seconds = random.normal(self.first, self.second, count)
            case "uniform":
                seconds = random.uniform(self.first, self.second, count)
            case "gamma":
                seconds = random.gamma(self.first, self.second, count)
            case "exponential":
                seconds = random.exponential(self.first, count)
            case "poisson":
                seconds = random.poisson(self.first, count).astype(np.float64)
            case _:
                seconds = np.full(count, self.first)
        return np.abs(seconds)


@dataclass(frozen=True)
class WorkflowConfig:
    """What is done."""

    generate_data: bool = False
    train: bool = True
    evaluation: bool = False
    checkpoint: bool = False
    profiling: bool = False
    debug: bool = False


@dataclass(frozen=True)
class ParallelismConfig:
    """How a model is split over ranks."""

    tensor: int = _number(1, 1)
    pipeline: int = _number(1, 1)
    data: int = -1  # all ranks that are left
    zero_stage: int = field(default=0, metadata={"choices": (0, 1, 2, 3)})


@dataclass(frozen=True)
class TransformerConfig:
    """Dimensions of a transformer."""

    hidden_size: int = _number(2048, 1)
    ffn_hidden_size: int = _number(8192, 1)
    vocab_size: int = _number(32000, 1)
    num_attention_heads: int = _number(32, 1)
    num_kv_heads: int = _number(8, 1)


@dataclass(frozen=True)
class ModelConfig:
    """The model, of which only the size of its state matters."""

    name: str = "default"
    type: str | None = None
    model_size_bytes: int = _number(10240, 0)
    model_datatype: str = _text("fp16", "fp32", "fp16", "bf16", "fp64", "int8", "uint8")
    optimizer_datatype: str = _text("fp32", "fp32", "fp16", "bf16", "fp64", "int8", "uint8")
    optimization_groups: tuple[int, ...] = ()  # elements
    num_layers: int = -1
    layer_parameters: tuple[int, ...] = ()  # elements
    parallelism: ParallelismConfig = ParallelismConfig()
    transformer: TransformerConfig | None = None


@dataclass(frozen=True)
class StorageConfig:
    """Where files lie."""

    storage_type: str = _text("local_fs", "local_fs", "parallel_fs", "s3", "aistore")
    storage_root: str = "./"
    storage_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Hdf5Config:
    """Layout of HDF5 files."""

    chunk_dims: tuple[int, ...] = ()
    num_dset_per_record: int = _number(1, 1)
    max_shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class DatasetConfig:
    """The files."""

    format: str = _text("tfrecord", *FORMATS)
    record_length_bytes: float = _number(65536, 1)
    record_length_bytes_stdev: float = _number(0, 0)
    record_length_bytes_resize: float = _number(0, 0)
    record_dims: tuple[int, ...] = ()
    record_element_type: str = "uint8"
    num_files_train: int = _number(8, 0)
    num_files_eval: int = _number(0, 0)
    num_samples_per_file: int = _number(1, 1)
    data_folder: str = "./data/"
    num_subfolders_train: int = _number(0, 0)
    num_subfolders_eval: int = _number(0, 0)
    file_prefix: str = "img"
    compression: str = _text("none", *COMPRESSIONS)
    compression_level: int = _number(4, 0)
    enable_chunking: bool = False
    chunk_size: int = _number(0, 0)  # bytes
    hdf5: Hdf5Config = Hdf5Config()
    generation_buffer_size: int = _number(2 << 30, 1)  # bytes
    keep_files: bool = True


@dataclass(frozen=True)
class ReaderConfig:
    """How files are read."""

    data_loader: str = _text("tensorflow", "tensorflow", "pytorch", "dali", "native_dali", "synthetic", "custom")
    batch_size: int = _number(1, 1)
    batch_size_eval: int = _number(1, 1)
    read_threads: int = _number(1, 0)
    computation_threads: int = _number(1, 0)
    prefetch_size: int = _number(2, 0)  # batches of all workers together
    sample_shuffle: str = _text("off", *SHUFFLES)
    file_shuffle: str = _text("off", *SHUFFLES)
    shuffle_size: int = _number(1024, 0)
    read_type: str = _text("on_demand", "on_demand", "memory")
    file_access: str = _text("multi", "multi", "shared", "collective")
    transfer_size: int | None = None  # bytes
    preprocess_time: TimeDraw = TimeDraw()
    pin_memory: bool = True
    odirect: bool = False
    transformed_record_dims: tuple[int, ...] = ()
    transformed_record_element_type: str = "uint8"
    multiprocessing_context: str = _text("fork", "fork", "spawn", "forkserver")
    dont_use_mmap: bool = False
    reader_classname: str | None = None
    data_loader_classname: str | None = None
    data_loader_sampler: str | None = field(default=None, metadata={"choices": ("iterative", "index")})


@dataclass(frozen=True)
class TrainConfig:
    """The steps."""

    epochs: int = _number(1, 1)
    computation_time: TimeDraw = TimeDraw()
    total_training_steps: int = -1
    seed: int = _number(123, 0)
    seed_change_epoch: bool = True


@dataclass(frozen=True)
class EvaluationConfig:
    """When evaluations follow, and how long their steps take."""

    eval_time: TimeDraw = TimeDraw()
    eval_after_epoch: int = _number(1, 1)
    epochs_between_evals: int = _number(1, 1)


@dataclass(frozen=True)
class KsmConfig:
    """Merging of equal pages by the kernel, for checkpoints larger than memory."""

    madv_mergeable_id: int = 12
    high_ram_trigger: float = 30.0  # percent
    low_ram_exit: float = 15.0  # percent
    await_time: float = 200.0  # seconds


@dataclass(frozen=True)
class CheckpointConfig:
    """When and how checkpoints are written."""

    checkpoint_folder: str = "./checkpoints/"
    checkpoint_after_epoch: int = _number(1, 1)
    epochs_between_checkpoints: int = _number(1, 1)
    steps_between_checkpoints: int = -1  # a positive number wins over epochs
    type: str = _text("rank_zero", "rank_zero", "all_ranks")
    mode: str = _text("default", "default", "subset")
    fsync: bool = False
    num_checkpoints_write: int = -1
    num_checkpoints_read: int = -1
    time_between_checkpoints: float = -1.0  # seconds
    recovery_rank_shift: bool = False
    rank_sync: bool = False
    randomize_tensor: bool = True
    checkpoint_mechanism_classname: str | None = None
    ksm: KsmConfig | None = None

    @property
    def is_async(self) -> bool:
        """Whether files are written while the job goes on, which is said by the name of the class that writes them."""
        return "async" in (self.checkpoint_mechanism_classname or "").lower()


@dataclass(frozen=True)
class OutputMetricConfig:
    """Steps of each block that do not count."""

    exclude_start_steps: int = _number(1, 0)
    exclude_end_steps: int = _number(0, 0)


@dataclass(frozen=True)
class OutputConfig:
    """Where results lie."""

    folder: str | None = None
    log_file: str = "dlio.log"
    metric: OutputMetricConfig = OutputMetricConfig()


@dataclass(frozen=True)
class MetricConfig:
    """The goal: accelerator utilization as a ratio."""

    au: float = _number(0.90, 0)


@dataclass(frozen=True)
class ProfilingConfig:
    """Profilers of DLIO, which runs of this package do not start."""

    profiler: str = _text("none", "none", "iostat", "darshan", "tensorboard")
    iostat_devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class DlioConfig:
    """A configuration.

    Attributes
    ----------
    name : str
        Of the file, without folder and suffix.
    warnings : tuple of str
        Keys that have no effect, or that go by another name now.
    """

    framework: str = _text("tensorflow", "tensorflow", "pytorch")
    workflow: WorkflowConfig = WorkflowConfig()
    model: ModelConfig = ModelConfig()
    storage: StorageConfig = field(default_factory=StorageConfig)
    dataset: DatasetConfig = DatasetConfig()
    reader: ReaderConfig = ReaderConfig()
    train: TrainConfig = TrainConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    output: OutputConfig = OutputConfig()
    metric: MetricConfig = MetricConfig()
    profiling: ProfilingConfig = ProfilingConfig()
    name: str = field(default="", metadata={"is_section": False})
    warnings: tuple[str, ...] = field(default=(), metadata={"is_section": False})

    @property
    def has_evaluation(self) -> bool:
        """Evaluation takes place only where there is training."""
        return self.workflow.train and self.workflow.evaluation

    @property
    def is_checkpoint_only(self) -> bool:
        """Checkpoints are written and read without training."""
        return self.workflow.checkpoint and not self.workflow.train
