"""A graph priced for a device and replayed: how long, how sure, on whose word, and what would change it.

In: a captured graph, a device. Out: ``Forecast``: the device's time, the host's, and what the step becomes of both.
Not here: printing, really running it (flights).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.host_times import HOST_TABLE
from windtunnel.cost.intervals import draw_durations, step_ends
from windtunnel.cost.pricing import AUTO, Model, Tiers, device_of, price, tiers_of
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph, Phase, ResourceKind
from windtunnel.hardware import Device, Fabric, Machine, fabric_of
from windtunnel.simulate import replay, replay_many
from windtunnel.simulate.breakdown import communication_ns
from windtunnel.simulate.iterations import iteration_ns, iterations_ns
from windtunnel.whatifs.another_batch import batch_of, can_change_batch, sizes_between, with_batch
from windtunnel.whatifs.compilation import ENTRY_NS, fuse_compiled_kernels
from windtunnel.whatifs.forecast_shares import ClassUse, Share, classes_of, shares_of, unsure_ns
from windtunnel.whatifs.messages import has_messages, price_messages
from windtunnel.whatifs.placing import overlap_steps, place_on

__all__ = ["Forecast", "changes", "forecast", "rank_forecasts"]

_LEVEL, _NUM_DRAWS, _FEWEST_DRAWS = 0.9, 128, 16
_MAX_VALUES = 1 << 25  # durations drawn at once: 256 MiB
_ALTERNATIVES = ("tf32", "bf16", "fp16", "fp8")
_ALIKE = 0.02  # of a step: less tells no devices apart


@dataclass(frozen=True)
class Forecast:
    """One iteration on a device.

    Parameters
    ----------
    device, device_kind, dtype : str
    batch_size : int
        0 where the graph does not say it.
    device_ns : int
        What the device computes: the priced work alone, of several ranks that of the busiest.
    device_low_ns, device_high_ns : int
        90 % interval of it from the models' own intervals.
    host_ns : int
        What the host does: Python as it took where the graph was captured, loading, launches; times ``host_factor``.
        What workers load ahead is left out.
    host_factor : float
    makespan_ns : int
        The step: both together, as far as one waits for the other.
    low_ns, high_ns : int
        90 % interval of it.
    bound_ns : int
        The least time that the device needs for the work of the step.
    unsure_ratio : float
        Share of the device's time whose pricer cannot say how sure it is: the intervals leave it out.
    at_bound_ratio : float
        Share of it that is a bare bound, so too short: a part of the unsure one.
    sources : tuple of Share
        Of the makespan (its critical path) by pricer, longest first.
    bindings : tuple of Share
        Of the priced work by what binds it, longest first.
    classes : tuple of ClassUse
        Of the priced work by class of operator, longest first.
    graph : Graph
        Placed and priced.
    communication_ns, exposed_ns : int
        How long a rank communicates, and how much of that it computes nothing meanwhile.
    loading_ns : int
        What the workers of a loader take for a batch, on threads of their own.
    """

    device: str
    device_kind: str
    dtype: str
    batch_size: int
    device_ns: int
    device_low_ns: int
    device_high_ns: int
    host_ns: int
    host_factor: float
    makespan_ns: int
    low_ns: int
    high_ns: int
    bound_ns: int
    unsure_ratio: float
    at_bound_ratio: float
    sources: tuple[Share, ...]
    bindings: tuple[Share, ...]
    classes: tuple[ClassUse, ...]
    graph: Graph = field(repr=False)
    communication_ns: int = 0
    exposed_ns: int = 0
    loading_ns: int = 0

    @property
    def is_host_measured(self) -> bool:
        """Whether the host's own time was measured; a graph that was never run has none, and only launches count."""
        return bool(self.graph.meta.iteration_ns)

    @property
    def limit(self) -> str:
        """Who makes the step as long as it is: ``host``, ``device`` or ``loader``, the busiest one."""
        if self.loading_ns > max(self.host_ns, self.device_ns):
            return "loader"
        return "host" if self.host_ns > self.device_ns else "device"

    @property
    def idle_ratio(self) -> float:
        """Share of the step for which the device has nothing to do; the host, where the device is the busiest."""
        other_ns = self.host_ns if self.limit == "device" else self.device_ns
        return max(1.0 - other_ns / max(self.makespan_ns, 1), 0.0)


def forecast(
    graph: Graph,
    machine: Machine | Device,
    *,
    dtype: str = "",
    batch_size: int = 0,
    batch_dim: int | None = None,
    model: Model = AUTO,
    launch_ns: int | None = None,
    host_factor: float = 1.0,
    fabric: Fabric | None = None,
) -> Forecast:
    """Place, price and replay.

    Parameters
    ----------
    graph : Graph
    machine : Machine or Device
    dtype : str
        Of the work captured in fp32; as captured by default.
    batch_size : int
        Another than the captured one; 0: as captured.
    batch_dim : int, optional
        Dimension of the inputs that holds the samples; by default what the program itself tells.
    model : str, or sequence of Pricer, or tiers of them
    launch_ns : int, optional
        Of an operator on the thread that calls it, where the device has a queue; by default as of ``place_on``.
    host_factor : float
        The host's own time, launches among it, over what was captured: 0.5 for a host that is twice as fast; 0 leaves
        the host out.
    fabric : Fabric, optional
        Links that carry messages which were never sent, by default those of the machine; or all messages, if it
        ``replaces_measured`` ones.

    Raises
    ------
    PriceError, InputError
        As of ``price``, ``batch_of`` and ``with_batch``; or the factor is negative.

    Notes
    -----
    A larger batch is never priced below a smaller one: a device could run the smaller as the larger. Learned models do
    not know that, so the doubles between the captured and the wanted size are priced, too, and the longest counts.
    """
    if not (np.isfinite(host_factor) and host_factor >= 0):
        raise InputError(f"a host cannot take {host_factor} times as long", fix="use 0 (left out), 0.5, 1 ...")
    given, device, tiers = graph, device_of(machine), tiers_of(model)
    if has_messages(graph) or (fabric is not None and fabric.replaces_measured):
        graph = price_messages(graph, fabric or fabric_of(machine))
    captured = batch_of(graph, batch_dim)
    sizes = sizes_between(captured, batch_size) if batch_size else [captured]
    if batch_size and not captured:
        with_batch(graph, captured, batch_size)  # says why not
    priced = _never_quicker(
        [_price_for_device(graph, device, dtype, tiers, captured, size, launch_ns) for size in sizes],
        is_larger=sizes[-1] > captured,
    )
    # What a thread of the host does that is not priced: Python, loading, launches.
    kinds = priced.resources["kind"][np.maximum(priced.tasks["resource"], 0)] if priced.num_resources else np.zeros(0)
    on_thread = kinds == ResourceKind.HOST_THREAD if len(kinds) else np.zeros(priced.num_tasks, dtype=bool)
    hosts: NDArray[np.bool_] = np.isnan(priced.tasks["efficiency"]) & on_thread
    priced = priced.scale(hosts, host_factor).as_one_edit(given, "predict", {"device": device.name})
    return _replay_forecast(priced, device, dtype, sizes[-1], hosts, host_factor)


def _price_for_device(
    graph: Graph, device: Device, dtype: str, tiers: Tiers, captured: int, batch_size: int, launch_ns: int | None
) -> Graph:
    changed = graph if batch_size == captured else with_batch(graph, captured, batch_size)
    priced = price(place_on(changed, device, launch_ns), device, tiers, dtype=dtype)
    if graph.meta.is_uncompiled:  # captured operator by operator, and will run as compiled code
        with suppress(NotApplicableError):
            return fuse_compiled_kernels(priced, entry_ns=ENTRY_NS)
    return priced


def _never_quicker(graphs: Sequence[Graph], *, is_larger: bool) -> Graph:
    """The last graph, each task at least as long as in those of smaller batches (at most, of larger ones)."""
    last, all_KT = graphs[-1], np.stack([graph.duration_ns for graph in graphs])
    duration = all_KT.max(axis=0) if is_larger else all_KT.min(axis=0)
    changed = np.flatnonzero(duration != last.duration_ns)
    if not len(changed) or len(graphs) == 1:
        return last
    ratio = np.ones(last.num_tasks)
    ratio[changed] = last.duration_ns[changed] / np.maximum(duration[changed], 1)
    kept = {name: last.tasks[name] * ratio for name in ("efficiency", "efficiency_low", "efficiency_high")}
    return last.set_columns({**kept, "duration_ns": duration})


def _replay_forecast(
    priced: Graph, device: Device, dtype: str, batch_size: int, hosts: NDArray[np.bool_], host_factor: float
) -> Forecast:
    steps = overlap_steps(priced)
    num_copies = steps.num_tasks // max(priced.num_tasks, 1)
    timeline = replay(steps)
    overlaps = num_copies > 1
    step_ns = round(iteration_ns(timeline, 1)) if overlaps else timeline.makespan_ns
    path = timeline.critical_path()
    # the path through a step between others, by the tasks of one
    in_step = path.task // max(priced.num_tasks, 1) == max(num_copies - 2, 0)
    path_task, path_ns = path.task[in_step] % max(priced.num_tasks, 1), path.duration_ns[in_step]
    # Tasks that a cost model priced; ``efficiency`` is the share of the bound that the price reaches, so
    # that duration * efficiency is the bound's own time, below which no draw may go.
    computes = np.flatnonzero(~np.isnan(priced.tasks["efficiency"])).astype(np.int32)
    floor_T = np.zeros(priced.num_tasks, dtype=np.int64)
    floor_T[computes] = np.floor(priced.duration_ns[computes] * priced.tasks["efficiency"][computes])
    # Least time of the step: on its busiest rank, all that is priced one after the other.
    bound_ns = int(np.bincount(_ranks(priced)[computes], floor_T[computes]).max(initial=0.0))
    # streams of one device share it, whatever their graph says
    makespan_ns = max(step_ns, bound_ns)
    # Fewer draws for large graphs, so that memory and time of the interval stay bounded.
    num_draws = int(np.clip(_MAX_VALUES // max(steps.num_tasks, 1), _FEWEST_DRAWS, _NUM_DRAWS))
    # Prices are uncertain; the interval of the makespan comes from replays with prices that are drawn from
    # their intervals, not from adding up the bounds, which would assume that all errors agree.
    drawn_KT = np.maximum(draw_durations(priced, num_draws), floor_T)
    drawn_ns: NDArray[Any]
    if overlaps:
        drawn_ns = iterations_ns(steps, np.tile(drawn_KT, num_copies), 1, timeline)
    else:
        drawn_ns = replay_many(priced, drawn_KT).makespan_ns
    low, high = _interval(drawn_ns, makespan_ns)
    if HOST_TABLE in priced.tasks.strings("cost_source").values and device.kind == "gpu":
        # Nothing of this step was measured: what such steps were off by counts, too.
        ends = np.rint(makespan_ns * np.exp(step_ends(device))).astype(np.int64).tolist()
        low, high = min(low, ends[0]), max(high, ends[1])
    whole_ns = int(priced.duration_ns[computes].sum())
    device_ns, local = _busiest(priced, computes)
    device_low, device_high = _interval(drawn_KT[:, local].sum(axis=1), device_ns)
    loads = hosts & _select_loaders(priced)
    start_ns, finish_ns = (times[-priced.num_tasks :] for times in (timeline.start_ns, timeline.finish_ns))
    communication, exposed_ns = communication_ns(priced, start_ns, finish_ns)
    return Forecast(
        communication_ns=communication,
        exposed_ns=exposed_ns,
        device=device.name,
        device_kind=device.kind,
        dtype=dtype or "as captured",
        batch_size=batch_size,
        device_ns=device_ns,
        device_low_ns=device_low,
        device_high_ns=device_high,
        host_ns=_busiest(priced, np.flatnonzero(hosts & ~loads))[0],
        loading_ns=_busiest(priced, np.flatnonzero(loads))[0],
        host_factor=host_factor,
        makespan_ns=makespan_ns,
        low_ns=max(low, bound_ns),
        high_ns=high,
        bound_ns=bound_ns,
        unsure_ratio=unsure_ns(priced, computes) / max(whole_ns, 1),
        at_bound_ratio=unsure_ns(priced, computes[priced.tasks["efficiency"][computes] >= 1.0]) / max(whole_ns, 1),
        sources=shares_of(priced, path_task, path_ns, "cost_source", int(path_ns.sum())),
        bindings=shares_of(priced, computes, priced.duration_ns[computes], "binding", whole_ns),
        classes=classes_of(priced, computes, whole_ns),
        graph=priced,
    )


def _interval(samples: NDArray[Any], middle: int) -> tuple[int, int]:
    low, high = np.quantile(samples, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return int(min(low, middle)), int(max(high, middle))


def _busiest(priced: Graph, tasks: NDArray[Any]) -> tuple[int, NDArray[Any]]:
    """What some tasks take on the rank on which they take longest, and which of them are its own."""
    ranks = _ranks(priced)[tasks]
    spent = np.bincount(ranks, priced.duration_ns[tasks], minlength=1)
    return int(spent.max()), tasks[ranks == spent.argmax()]


def _select_loaders(graph: Graph) -> NDArray[np.bool_]:
    """Tasks on threads that load data and do nothing else, which work ahead of the others, bool [T]."""
    if "phase" not in graph.tasks:
        return np.zeros(graph.num_tasks, dtype=bool)
    resource, is_other = graph.tasks["resource"], graph.tasks["phase"] != Phase.DATA
    return ~np.isin(resource, np.unique(resource[is_other]))


def _ranks(graph: Graph) -> NDArray[np.int32]:
    ranks: NDArray[np.int32] = np.maximum(graph.tasks.get("rank", np.zeros(graph.num_tasks, dtype=np.int32)), 0)
    return ranks


def changes(
    graph: Graph,
    machine: Machine | Device,
    baseline: Forecast,
    *,
    batch_dim: int | None = None,
    model: Model = AUTO,
    launch_ns: int | None = None,
    fabric: Fabric | None = None,
) -> list[Forecast]:
    """The same in other types that the device has a peak for, and at twice and four times the batch."""
    device, tiers = device_of(machine), tiers_of(model)
    dtype = "" if baseline.dtype == "as captured" else baseline.dtype
    types = [item for item in _ALTERNATIVES if item in device.peak_flops_per_s and item != dtype]
    batches = (
        [baseline.batch_size * factor for factor in (2, 4)] if baseline.batch_size and can_change_batch(graph) else []
    )
    requested = [(type_, baseline.batch_size) for type_ in types] + [(dtype, batch) for batch in batches]
    return [
        forecast(
            graph,
            device,
            dtype=name,
            batch_size=size,
            batch_dim=batch_dim,
            model=tiers,
            launch_ns=launch_ns,
            host_factor=baseline.host_factor,
            fabric=fabric,
        )
        for name, size in requested
    ]


def rank_forecasts(forecasts: Sequence[Forecast]) -> tuple[list[Forecast], str]:
    """Forecasts of several devices, the quickest first, by what tells them apart.

    Returns
    -------
    list of Forecast
    str
        ``makespan_ns``; or ``device_ns``, where the host makes all steps alike.
    """
    steps = [item.makespan_ns for item in forecasts]
    key = "makespan_ns" if steps and max(steps) > (1 + _ALIKE) * min(steps) else "device_ns"
    return sorted(forecasts, key=lambda item: (getattr(item, key), item.device_ns)), key
