"""Measure what a model or a workload reaches of the peak.

In: a name, batch sizes. Out: ``ModelUse`` per batch size: the captured graph, its utilization, the latency of the bare
model and, if asked, the latency predicted without running it. Not here: the arithmetic (``model``), the
survey of many models (``inference``).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel import hardware, registry
from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.cost import Ceilings, Peak, measure_ceilings
from windtunnel.cost.lookup import Overhead, measure
from windtunnel.cost.tracing import trace
from windtunnel.errors import InputError
from windtunnel.graph import Graph
from windtunnel.hardware.host import plain_name
from windtunnel.measure import ProfileDatabase
from windtunnel.measure.database import Measurement
from windtunnel.measure.fingerprint import libraries, machine
from windtunnel.measure.threads import threads
from windtunnel.sources.torch.step import capture
from windtunnel.systems.utilization.cells.networks import Cell, network
from windtunnel.systems.utilization.cells.run import cell_prices
from windtunnel.systems.utilization.model import Utilization, utilization
from windtunnel.systems.utilization.run import FlownAdvice, fly_advice
from windtunnel.systems.utilization.search import advise
from windtunnel.workloads.vision import vision_model, vision_names

if TYPE_CHECKING:
    import torch

__all__ = [
    "ModelUse",
    "fly_model",
    "fly_model_advice",
    "fly_workload",
    "framework_overhead",
    "is_model",
    "use_of_graph",
]

_CELL = re.compile(r"cell-(\d+)$")
_CELL_PIXELS = 32
_OVERHEAD_METHOD = 1


@dataclass(frozen=True)
class ModelUse:
    """One job at one batch size.

    Parameters
    ----------
    name : str
    batch_size : int
        0 where it is not known.
    graph : Graph
    use : Utilization
        Of the captured job.
    ceilings : Ceilings
    predicted_ns : float or None
        Latency from the table of kernels, without running the model.
    """

    name: str
    batch_size: int
    graph: Graph
    use: Utilization
    ceilings: Ceilings
    predicted_ns: float | None = None

    @property
    def peak(self) -> Peak:
        """The peak of the default type."""
        return self.ceilings.peaks[self.ceilings.dtype]

    @property
    def predicted_utilization(self) -> float | None:
        """Utilization at the predicted latency."""
        return None if self.predicted_ns is None else self.use.value * self.use.duration_ns / self.predicted_ns


def use_of_graph(graph: Graph, *, name: str = "", database: ProfileDatabase | None = None) -> ModelUse:
    """Return the utilization of a graph that was captured on this machine.

    Raises
    ------
    InputError
        It was captured on another processor, whose peak is not known here.
    PriceError
        It does not say its flops.
    """
    known = dict(graph.meta.hardware)
    processor, ours = plain_name(str(known.get("processor", ""))), plain_name(hardware.machine().cpu_name)
    if processor and processor != ours:
        raise InputError(
            f"this graph was captured on {processor}, and the peak that can be measured here is that of {ours}",
            where=name,
            fix="measure utilization where the graph was captured",
        )
    ceilings = measure_ceilings(("float32", *_other_types(graph)), int(known.get("num_threads", 1)), database=database)
    return ModelUse(name, 0, graph, utilization(graph, ceilings), ceilings)


def _other_types(graph: Graph) -> list[str]:
    """Return the types other than float32 whose products need their own peak."""
    if "input_dtypes" not in graph.tasks:
        return []
    strings = " ".join(graph.tasks.strings("input_dtypes").compact().values)
    names = {"c10::BFloat16": "bfloat16", "c10::Half": "float16", "Tensor(double)": "float64"}
    return [name for mark, name in names.items() if mark in strings]


def fly_model(
    name: str,
    batch_size: int = 1,
    *,
    image_size: int = 96,
    num_threads: int = 1,
    iterations: int = 10,
    predict: bool = False,
    database: ProfileDatabase | None = None,
    progress: Progress | None = None,
) -> ModelUse:
    """Capture the inference of a vision model, or of ``cell-N``, and divide its time.

    Parameters
    ----------
    name : str
        Of :func:`windtunnel.workloads.vision.vision_names`, or ``cell-0`` to ``cell-15624`` (at 32 pixels).
    batch_size, image_size, num_threads, iterations : int
    predict : bool
        Also predict the latency from kernels measured alone.
    database : ProfileDatabase, optional
    progress : callable, optional

    Raises
    ------
    InputError
        The model is unknown, or a number is not positive.
    MissingExtraError
        The extra ``suite`` is not installed.
    """
    if batch_size < 1:
        raise InputError(f"a batch of {batch_size} holds nothing", where="batch size", fix="use 1 or more")
    torch = require("torch", extra="torch")
    model, images = _model_and_images(name, batch_size, image_size)
    predicted_ns = _predict_latency_ns(model, images, num_threads, database) if predict else None

    def step() -> None:
        with torch.inference_mode():
            model(images)

    with threads(num_threads):
        graph = capture(step, iterations=iterations, warmup=2, model=model, progress=progress)
    ceilings = measure_ceilings(("float32",), num_threads, database=database)
    return ModelUse(name, batch_size, graph, utilization(graph, ceilings), ceilings, predicted_ns)


def _model_and_images(name: str, batch_size: int, image_size: int) -> tuple[torch.nn.Module, torch.Tensor]:
    import torch

    cell = _CELL.match(name)
    size = _CELL_PIXELS if cell else image_size
    model = network(Cell.of_index(int(cell[1]))) if cell else vision_model(name, size=size)
    return model, torch.rand(batch_size, 3, size, size)


def _predict_latency_ns(model: Any, images: Any, num_threads: int, database: ProfileDatabase | None) -> float:
    kernels = trace(model, [images])
    table = measure(kernels, num_threads, database=database)
    return framework_overhead(num_threads, database=database).latency_ns(kernels, table)


def framework_overhead(num_threads: int, *, database: ProfileDatabase | None = None) -> Overhead:
    """Return the framework's overhead per call on this host, fitted to 13 small nets and cached.

    Raises
    ------
    MissingExtraError
        PyTorch is not installed.
    """
    key = ("overhead::call", "13 cells", "forward", f"fitted (method {_OVERHEAD_METHOD})", num_threads)
    full = (*key, machine(), libraries())
    known = database.find(full) if database is not None else None
    if known is not None:
        return Overhead(known.new_ns, 1.0, known.rounds)
    result = cell_prices(num_threads=num_threads, database=database).overhead
    if database is not None:
        database.add([Measurement(*full, result.per_call_ns, result.per_call_ns, 0.0, result.num_nets)])
    return result


def fly_workload(
    name: str, *, iterations: int = 10, database: ProfileDatabase | None = None, progress: Progress | None = None
) -> ModelUse:
    """Capture a training iteration of a registered workload and divide its time.

    Raises
    ------
    InputError
        No such workload; names the nearest.
    """
    torch = require("torch", extra="torch")
    job = registry.get("workload", name).function()
    try:
        graph = capture(job.step, iterations=iterations, model=job.models, optimizer=job.optimizers, progress=progress)
    finally:
        job.close()
    ceilings = measure_ceilings(("float32", *_other_types(graph)), torch.get_num_threads(), database=database)
    return ModelUse(name, job.batch_size, graph, utilization(graph, ceilings), ceilings)


def fly_model_advice(
    model_use: ModelUse,
    *,
    image_size: int = 96,
    top: int = 5,
    rounds: int = 30,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> list[FlownAdvice]:
    """Try the best advice on a model that :func:`fly_model` has captured.

    Parameters
    ----------
    model_use : ModelUse
    image_size : int
        As captured.
    top, rounds : int
    clock : callable
        See :class:`windtunnel.cost.lookup.Stand`.
    """
    selected: Sequence[Any] = advise(model_use.graph, model_use.ceilings)[:top]
    model, images = _model_and_images(model_use.name, model_use.batch_size, image_size)
    number = model_use.ceilings.num_threads
    return [fly_advice(item, model, [images], num_threads=number, rounds=rounds, clock=clock) for item in selected]


def is_model(name: str) -> bool:
    """Whether :func:`fly_model` knows the name."""
    return bool(_CELL.match(name)) or name in vision_names()
