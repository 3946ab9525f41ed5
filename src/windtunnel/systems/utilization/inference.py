"""Measure the inference of networks interleaved with their isolated kernels.

In: modules with inputs. Out: ``FlownNet``: measured latency, flops, and the kernels that a table prices; the table
grows by what was not in it. Nets and kernels run in turn, round after round, so that a disturbed minute hits both.
Not here: what the table is for (``cost.lookup``), which models there are (workloads).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.cost import Peak, measure_peak
from windtunnel.cost.kernels import Kernel
from windtunnel.cost.lookup import Overhead, Stand, fit_overhead
from windtunnel.cost.tracing import trace
from windtunnel.errors import InputError, MissingExtraError, WindtunnelError
from windtunnel.measure import ProfileDatabase
from windtunnel.measure.threads import threads
from windtunnel.measure.turns import quiet
from windtunnel.sources.torch.flop_count import count
from windtunnel.workloads.vision import vision_model

if TYPE_CHECKING:
    import torch

__all__ = ["FlownNet", "Survey", "SurveyRow", "fly_nets", "survey"]

Clock = Callable[[], int]
_FIT_EVERY = 8  # every eighth model of a survey fixes the framework's constant


@dataclass(frozen=True)
class FlownNet:
    """One measured network.

    Parameters
    ----------
    name : str
    batch_size : int
    measured_ns : float
        Lower quartile of the rounds.
    flops : int
        Of its products, for the whole batch.
    elementwise_flops : int
    num_parameters : int
    kernels : tuple of Kernel
        In order; what a prediction adds up.
    """

    name: str
    batch_size: int
    measured_ns: float
    flops: int
    elementwise_flops: int
    num_parameters: int
    kernels: tuple[Kernel, ...] = field(repr=False)

    def utilization(self, peak: Peak, latency_ns: float | None = None) -> float:
        """Return the products per second over the peak, at the measured or a given latency."""
        return 1e9 * self.flops / (self.measured_ns if latency_ns is None else latency_ns) / peak.flops_per_s


def fly_nets(
    nets: Mapping[str, tuple[torch.nn.Module, Sequence[Any]]],
    table: dict[Kernel, float],
    *,
    num_threads: int = 1,
    rounds: int = 7,
    clock: Clock = time.perf_counter_ns,
    progress: Progress | None = None,
) -> list[FlownNet]:
    """Measure every network, interleaved with the kernels that the table lacks.

    Parameters
    ----------
    nets : mapping of name to (module in ``eval`` mode, inputs)
        The first input's first dimension is the batch.
    table : dict of Kernel to float
        Grows.
    num_threads, rounds : int
    clock : callable
        See :class:`windtunnel.cost.lookup.Stand`.
    progress : callable, optional

    Raises
    ------
    InputError
        ``rounds`` is not positive.
    PriceError
        A net does not run on fake tensors.
    """
    torch = require("torch", extra="torch")
    if rounds < 1:
        raise InputError(f"{rounds} rounds measure nothing", where="rounds", fix="use 3 or more")
    kernels = {name: tuple(trace(model, inputs)) for name, (model, inputs) in nets.items()}
    times: dict[str, list[float]] = {name: [] for name in nets}
    with threads(num_threads), torch.inference_mode():
        stand = Stand((item for row in kernels.values() for item in row if item not in table), clock)
        stand.rehearse()
        counts = {name: count(functools.partial(model, *inputs)) for name, (model, inputs) in nets.items()}
        for turn in range(rounds):
            # kernels and networks in the same rounds: what slows the machine meanwhile slows both
            stand.round()
            for name, (model, inputs) in nets.items():
                begin = clock()
                model(*inputs)
                times[name].append(clock() - begin)
            if progress is not None:
                progress("flying nets", turn + 1, rounds)
    table |= stand.table()
    return [
        FlownNet(
            name,
            int(inputs[0].shape[0]),
            quiet(times[name]),
            counts[name].total,
            counts[name].elementwise,
            sum(parameter.numel() for parameter in model.parameters()),
            kernels[name],
        )
        for name, (model, inputs) in nets.items()
    ]


@dataclass(frozen=True)
class SurveyRow:
    """One model of a survey at one batch size.

    Parameters
    ----------
    net : FlownNet
    predicted_ns : float
        From the table of kernels and the framework's constant.
    utilization, predicted_utilization : float
        Of the same peak.
    is_fitted : bool
        It helped to fix the constant, so its prediction proves nothing.
    """

    net: FlownNet
    predicted_ns: float
    utilization: float
    predicted_utilization: float
    is_fitted: bool


@dataclass(frozen=True)
class Survey:
    """Many models on one machine.

    Parameters
    ----------
    rows : tuple of SurveyRow
    peak : Peak
    overhead : Overhead
    image_size : int
    num_threads : int
    failures : dict of str to str
        Models that could not be surveyed, and why.
    """

    rows: tuple[SurveyRow, ...]
    peak: Peak
    overhead: Overhead
    image_size: int
    num_threads: int
    failures: dict[str, str]


def survey(
    names: Sequence[str],
    batch_sizes: Sequence[int] = (1,),
    *,
    image_size: int = 96,
    num_threads: int = 1,
    rounds: int = 5,
    clock: Clock = time.perf_counter_ns,
    database: ProfileDatabase | None = None,
    progress: Progress | None = None,
) -> Survey:
    """Measure and predict vision models: latency, flops, utilization.

    Parameters
    ----------
    names : sequence of str
        As :func:`windtunnel.workloads.vision.vision_names`.
    batch_sizes : sequence of int
    image_size, num_threads, rounds : int
    clock : callable
        See :class:`windtunnel.cost.lookup.Stand`.
    database : ProfileDatabase, optional
        For the peak.
    progress : callable, optional

    Raises
    ------
    InputError
        A name is unknown, or no model could be surveyed.
    MissingExtraError
        PyTorch or the extra ``suite`` is not installed.

    Notes
    -----
    The framework's constant comes from every eighth model. A kernel that many nets share is measured once.
    """
    require("torch", extra="torch")
    peak = measure_peak("float32", num_threads, database=database)
    table: dict[Kernel, float] = {}
    nets: list[FlownNet] = []
    failures: dict[str, str] = {}
    for index, name in enumerate(names):
        try:
            nets += _survey_model(name, batch_sizes, image_size, table, num_threads, rounds, clock)
        except (MissingExtraError, InputError):
            raise
        except (WindtunnelError, RuntimeError, AttributeError, TypeError, ValueError) as error:
            failures[name] = str(error).partition("\n")[0]
        if progress is not None:
            progress(f"surveying {name}", index + 1, len(names))
    usable = [net for net in nets if all(table[kernel] > 0 for kernel in net.kernels)]
    failures |= {net.name: "a kernel cannot be run alone" for net in nets if net not in usable}
    if not usable:
        raise InputError("no model could be surveyed", where="; ".join(f"{k}: {v}" for k, v in failures.items()))
    selected = set(list(dict.fromkeys(net.name for net in usable))[::_FIT_EVERY])
    fitted = [net for net in usable if net.name in selected]
    overhead = fit_overhead([net.kernels for net in fitted], table, [net.measured_ns for net in fitted])
    rows = tuple(_row(net, overhead, table, peak, is_fitted=net.name in selected) for net in usable)
    return Survey(rows, peak, overhead, image_size, num_threads, failures)


def _survey_model(
    name: str,
    batch_sizes: Sequence[int],
    image_size: int,
    table: dict[Kernel, float],
    num_threads: int,
    rounds: int,
    clock: Clock,
) -> list[FlownNet]:
    import torch

    model = vision_model(name, size=image_size)
    result: list[FlownNet] = []
    for batch_size in batch_sizes:
        images = torch.rand(batch_size, 3, image_size, image_size)
        result += fly_nets({name: (model, [images])}, table, num_threads=num_threads, rounds=rounds, clock=clock)
    return result


def _row(net: FlownNet, overhead: Overhead, table: dict[Kernel, float], peak: Peak, *, is_fitted: bool) -> SurveyRow:
    predicted_ns = overhead.latency_ns(net.kernels, table)
    return SurveyRow(net, predicted_ns, net.utilization(peak), net.utilization(peak, predicted_ns), is_fitted)
