"""What a runtime of this host fuses and takes, learned once and kept as a file.

In: nets, or kernels of nets, to learn from. Out: ``RuntimeModel``: the pairs that the runtime fuses and a forest per
kind of kernel; the time of a net that was never run; one safetensors file, never pickle. Not here: measuring
(``run``), growing forests (``model``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.cost.ceilings import Ceilings, measured_ceilings
from windtunnel.cost.intervals import ConformalIntervals
from windtunnel.cost.model_file import read_model_header, write_model
from windtunnel.cost.peak import Bandwidth, Peak
from windtunnel.errors import InputError
from windtunnel.measure import fingerprint
from windtunnel.measure.threads import threads
from windtunnel.systems.tensor_programs.runtimes.forest import Forest
from windtunnel.systems.tensor_programs.runtimes.layer_kernels import LayerKernel, split
from windtunnel.systems.tensor_programs.runtimes.model import PRESETS, ForestSettings, KernelForests, sample_adaptively
from windtunnel.systems.tensor_programs.runtimes.run import checked_runtime, find_fusions, measure_kernels

if TYPE_CHECKING:
    import torch

__all__ = ["RuntimeModel", "learn_runtime", "load_runtime_model", "save_runtime_model"]

SCHEMA = 2
KIND = "kernels"
_COMMAND = "windtunnel cost train kernels"
_ARRAYS = ("feature", "threshold", "left", "right", "value", "root")

Net = tuple["torch.nn.Module", list["torch.Tensor"]]


@dataclass(frozen=True, eq=False)
class RuntimeModel:
    """A runtime of one host, as its own times describe it.

    Parameters
    ----------
    runtime : str
    fused : frozenset of (str, str)
        Kinds of kernels with the layers that join them.
    forests : KernelForests
    test_errors : tuple of float
        Mean relative error on kernels held out, after each round of sampling.
    num_measured : int
    machine, libraries : str
        What the times hold for.
    """

    runtime: str
    fused: frozenset[tuple[str, str]]
    forests: KernelForests
    test_errors: tuple[float, ...]
    num_measured: int
    machine: str
    libraries: str

    @property
    def num_threads(self) -> int:
        """Threads that kernels were measured with."""
        return self.forests.ceilings.num_threads

    @property
    def is_of_this_host(self) -> bool:
        """Whether what is run here may be compared with what is predicted."""
        return (self.machine, self.libraries) == (fingerprint.machine(), fingerprint.libraries())

    def kernels(self, net: Net) -> list[LayerKernel]:
        """What the runtime makes of a net; raises as ``layer_kernels.split`` does."""
        return split(*net, self.fused)


def learn_runtime(
    nets: Sequence[Net],
    runtime: str,
    *,
    extra: Iterable[LayerKernel] = (),
    num_threads: int = 1,
    num_first: int = 300,
    settings: ForestSettings = PRESETS["efficiency"],
    seed: int = 0,
    progress: Progress | None = None,
) -> RuntimeModel:
    """Find what the runtime fuses, then measure kernels like those of the nets, more where a forest errs.

    Parameters
    ----------
    nets : sequence of (module, inputs)
        Their kernels, and others of other widths, are what is learned from.
    runtime : str
    extra : iterable of LayerKernel
        More kernels of real nets.
    num_threads : int
    num_first : int
        Kernels of the first round; at most three quarters as many follow.
    settings : ForestSettings
    seed : int
    progress : callable, optional
        Called with (what, done, total).

    Raises
    ------
    InputError
        There is nothing to learn from, or too little of a kind.
    PriceError
        A net cannot be split into kernels, or a layer of ``extra`` is unknown.
    """
    checked_runtime(runtime)
    extra = list(extra)
    if not nets and not extra:
        raise InputError("the prior is empty", fix="give nets, or kernels to learn from")
    clock = time.thread_time_ns if num_threads == 1 else time.perf_counter_ns  # others on the core do not count
    with threads(num_threads):
        ceilings = measured_ceilings(num_threads=num_threads)
        fused = frozenset(test.pair for test in find_fusions(runtime, clock=clock) if test.is_fused)
        prior = [*(kernel for net in nets for kernel in split(*net, fused)), *extra]
        forests, sample, errors = sample_adaptively(
            list(dict.fromkeys(prior)),
            lambda some: measure_kernels(some, runtime, clock=clock, progress=progress),
            ceilings,
            settings=settings,
            num_first=num_first,
            most_per_round=max(1, num_first // 4),
            seed=seed,
        )
    return RuntimeModel(
        runtime, fused, forests, tuple(errors), len(sample), fingerprint.machine(), fingerprint.libraries()
    )


def save_runtime_model(model: RuntimeModel, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write one file; it appears only when it is complete. Raises as ``write_model`` does."""
    forests = model.forests
    header = {
        "schema": SCHEMA,
        "kind": KIND,
        "runtime": model.runtime,
        "fused": sorted(model.fused),
        "settings": asdict(forests.settings),
        "ceilings": asdict(forests.ceilings),
        "intervals": forests.intervals.to_dict(),
        "kinds": sorted(forests.forests),
        "test_errors": list(model.test_errors),
        "num_measured": model.num_measured,
        "machine": model.machine,
        "libraries": model.libraries,
    }
    tensors = {f"{kind}.{name}": getattr(forest, name) for kind, forest in forests.forests.items() for name in _ARRAYS}
    return write_model(path, header, tensors, overwrite=overwrite)


def load_runtime_model(path: str | os.PathLike[str]) -> RuntimeModel:
    """Read what ``save_runtime_model`` wrote.

    Raises
    ------
    InputError, SchemaVersionError
        As ``read_model_header`` does, and for a damaged file.
    """
    header = read_model_header(path, kind=KIND, schema=SCHEMA, command=_COMMAND)
    tensors = require("safetensors.numpy", extra="learn").load_file(os.fspath(path))
    try:
        forests = KernelForests(
            ForestSettings(**header["settings"]),
            _ceilings(header["ceilings"]),
            {kind: _forest(kind, tensors) for kind in header["kinds"]},
            ConformalIntervals.from_dict(header["intervals"]),
        )
        return RuntimeModel(
            header["runtime"],
            frozenset((first, second) for first, second in header["fused"]),
            forests,
            tuple(header["test_errors"]),
            header["num_measured"],
            header["machine"],
            header["libraries"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the model is damaged: {error!r}"[:300], where=os.fspath(path)) from error


def _ceilings(document: Mapping[str, Any]) -> Ceilings:
    peaks = {name: Peak(**{**peak, "shape": tuple(peak["shape"])}) for name, peak in document["peaks"].items()}
    return Ceilings(peaks, tuple(Bandwidth(**one) for one in document["bandwidths"]), document["num_threads"])


def _forest(kind: str, tensors: Mapping[str, Any]) -> Forest:
    """Arrays of one kind; children and roots are checked, for a loop among them would never end.

    Raises
    ------
    ValueError
        A node leads back or nowhere.
    """
    forest = Forest(*(np.asarray(tensors[f"{kind}.{name}"]) for name in _ARRAYS))
    number = len(forest.feature)
    inner = np.flatnonzero(forest.feature >= 0)
    children = np.stack([forest.left[inner], forest.right[inner]])
    is_ordered = (children > inner).all() and (children < number).all()
    if not is_ordered or not ((forest.root >= 0) & (forest.root < number)).all():
        raise ValueError(f"trees of {kind} lead back or nowhere")
    return forest
