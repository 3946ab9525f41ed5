"""A graph priced for a device and replayed (room whatifs): how long, how sure, on whose word, and what would change it.

In: a captured graph, a device. Out: ``Forecast``. Not here: printing, really running it (flights).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.classes import class_of
from windtunnel.cost.intervals import draw_priced
from windtunnel.cost.pricer import Pricer
from windtunnel.cost.pricing import AUTO, device_of, price
from windtunnel.cost.rerun import program_of
from windtunnel.cost.work import shapes_of
from windtunnel.errors import InputError, PriceError
from windtunnel.graph import Graph, Kind, Phase
from windtunnel.hardware import Device, Machine
from windtunnel.simulate import replay, replay_many
from windtunnel.whatifs.placing import LAUNCH_NS, place_on

__all__ = ["ClassUse", "Forecast", "Share", "batch_of", "changes", "forecast", "with_batch"]

_LEVEL, _NUM_DRAWS, _FEWEST_DRAWS = 0.9, 128, 16
_MOST_VALUES = 1 << 25  # durations drawn at once: 256 MiB
_ALTERNATIVES = ("tf32", "bf16", "fp16", "fp8")

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the makespan: what of the critical path one pricer, or one limit, answers for."""

    name: str
    duration_ns: int
    ratio: float
    num_tasks: int


@dataclass(frozen=True, slots=True)
class ClassUse:
    """What a class of operators takes of the device, and how much of its bound it is taken to reach."""

    name: str
    duration_ns: int
    ratio: float
    num_tasks: int
    efficiency: float


@dataclass(frozen=True)
class Forecast:
    """One iteration on a device.

    Parameters
    ----------
    device, dtype : str
    batch_size : int
        0 where the graph does not say it.
    makespan_ns : int
    low_ns, high_ns : int
        90 % interval from the models' own intervals.
    unsure_ratio : float
        Share of the makespan whose pricer cannot say how sure it is: the interval leaves it out.
    device_ns : int
        Of the priced work alone: what the device would be busy.
    sources : tuple of Share
        Of the makespan (its critical path) by pricer, longest first.
    bindings : tuple of Share
        Of the priced work by what binds it, longest first.
    classes : tuple of ClassUse
        Of the priced work by class of operator, longest first.
    graph : Graph
        Placed and priced.
    """

    device: str
    dtype: str
    batch_size: int
    makespan_ns: int
    low_ns: int
    high_ns: int
    unsure_ratio: float
    device_ns: int
    sources: tuple[Share, ...]
    bindings: tuple[Share, ...]
    classes: tuple[ClassUse, ...]
    graph: Graph = field(repr=False)


def forecast(
    graph: Graph,
    machine: Machine | Device,
    *,
    dtype: str = "",
    batch_size: int = 0,
    model: str | Sequence[Pricer] = AUTO,
    launch_ns: int = LAUNCH_NS,
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
    model : str or sequence of Pricer
    launch_ns : int
        Of an operator on the thread that calls it, where the device has a queue.

    Raises
    ------
    PriceError, InputError
        As of ``price`` and ``with_batch``.
    """
    device = device_of(machine)
    captured = batch_of(graph)
    if batch_size and batch_size != captured:
        graph = with_batch(graph, captured, batch_size)
    priced = price(place_on(graph, device, launch_ns), device, model, dtype=dtype)
    timeline = replay(priced)
    path = timeline.critical_path()
    num_draws = int(np.clip(_MOST_VALUES // max(priced.num_tasks, 1), _FEWEST_DRAWS, _NUM_DRAWS))
    drawn = replay_many(priced, draw_priced(priced, num_draws)).makespan_ns
    computes = np.flatnonzero(~np.isnan(priced.tasks["efficiency"])).astype(np.int32)
    device_ns = int(priced.duration_ns[computes].sum())
    low, high = np.quantile(drawn, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Forecast(
        device=device.name,
        dtype=dtype or "as captured",
        batch_size=batch_size or captured,
        makespan_ns=timeline.makespan_ns,
        low_ns=int(min(low, timeline.makespan_ns)),
        high_ns=int(max(high, timeline.makespan_ns)),
        unsure_ratio=_unsure(priced, path.task, path.duration_ns) / max(timeline.makespan_ns, 1),
        sources=_shares(priced, path.task, path.duration_ns, "cost_source", timeline.makespan_ns),
        device_ns=device_ns,
        bindings=_shares(priced, computes, priced.duration_ns[computes], "binding", device_ns),
        classes=_classes(priced, computes, device_ns),
        graph=priced,
    )


def changes(
    graph: Graph,
    machine: Machine | Device,
    found: Forecast,
    *,
    model: str | Sequence[Pricer] = AUTO,
    launch_ns: int = LAUNCH_NS,
) -> list[Forecast]:
    """The same in other types that the device has a peak for, and at twice and four times the batch."""
    device = device_of(machine)
    dtype = "" if found.dtype == "as captured" else found.dtype
    types = [one for one in _ALTERNATIVES if one in device.peak_flops_per_s and one != dtype]
    batches = [found.batch_size * factor for factor in (2, 4)] if found.batch_size else []
    given = {"model": model, "launch_ns": launch_ns}
    others = [forecast(graph, device, dtype=one, batch_size=found.batch_size, **given) for one in types]  # type: ignore[arg-type]
    return others + [forecast(graph, device, dtype=dtype, batch_size=one, **given) for one in batches]  # type: ignore[arg-type]


def batch_of(graph: Graph) -> int:
    """The batch size that the captured program shows; 0 where it shows none."""
    try:
        return program_of(graph).batch_size
    except PriceError:
        return 0


def with_batch(graph: Graph, captured: int, wanted: int) -> Graph:
    """The graph with the work of another batch: what handles samples scales, parameters and updates do not.

    To the first order: an operator scales if a dimension of its inputs is a multiple of the batch size; the bytes of
    its parameters stay.

    Raises
    ------
    InputError
        A size is not positive, or the captured one is not known.
    """
    if wanted < 1:
        raise InputError(f"a batch cannot have {wanted} samples", fix="use 1 or more")
    if captured < 1:
        raise InputError(
            "the graph does not show its batch size", fix="capture it with windtunnel, or leave out --batch"
        )
    factor, scaled = wanted / captured, _scales(graph, captured)
    columns = {}
    for name in ("flops", "bytes_read", "bytes_written"):
        if name in graph.tasks:
            values = graph.tasks[name].astype(np.float64)
            fixed = graph.tasks.get("param_bytes", 0) if name == "bytes_read" else 0.0
            more = np.minimum(values, fixed) + factor * np.maximum(values - fixed, 0.0)
            columns[name] = np.rint(np.where(scaled, more, values)).astype(np.int64)
    loads = graph.select(phase=Phase.DATA) & ~graph.select(kind=Kind.COMPUTE)
    return graph.set_columns(columns).scale(loads, factor)


def _scales(graph: Graph, batch_size: int) -> Mask:
    computes: Mask = graph.select(kind=Kind.COMPUTE)
    if "phase" in graph.tasks:
        computes &= ~graph.select(phase=Phase.UPDATE)
    if "input_shapes" not in graph.tasks:
        return computes
    texts = graph.tasks.strings("input_shapes")
    return computes & texts.where({text: _has_batch(text, batch_size) for text in texts.values})


def _has_batch(text: str, batch_size: int) -> bool:
    shapes = shapes_of(text)
    return not shapes or any(size and size % batch_size == 0 for shape in shapes for size in shape)


def _shares(
    graph: Graph, tasks: NDArray[np.int32], durations: NDArray[np.int64], name: str, whole_ns: int
) -> tuple[Share, ...]:
    column = graph.tasks.strings(name)
    codes = column.codes[tasks]
    spent = np.bincount(codes, durations, len(column.values))
    counts = np.bincount(codes, minlength=len(column.values))
    found = [
        Share(value or "captured", int(spent[code]), float(spent[code] / max(whole_ns, 1)), int(counts[code]))
        for code, value in enumerate(column.values)
        if counts[code]
    ]
    return tuple(sorted(found, key=lambda one: -one.duration_ns))


def _classes(graph: Graph, tasks: NDArray[np.int32], whole_ns: int) -> tuple[ClassUse, ...]:
    column = graph.tasks.strings("op" if "op" in graph.tasks else "name").take(tasks).compact()
    names = sorted({class_of(value) for value in column.values})
    place = np.array([names.index(class_of(value)) for value in column.values], dtype=np.int64)[column.codes]
    duration = graph.duration_ns[tasks].astype(np.float64)
    spent, least = (
        np.bincount(place, one, len(names)) for one in (duration, duration * graph.tasks["efficiency"][tasks])
    )
    counts = np.bincount(place, minlength=len(names))
    found = [
        ClassUse(
            name,
            int(spent[row]),
            float(spent[row] / max(whole_ns, 1)),
            int(counts[row]),
            float(least[row] / max(spent[row], 1.0)),
        )
        for row, name in enumerate(names)
    ]
    return tuple(sorted(found, key=lambda one: -one.duration_ns))


def _unsure(graph: Graph, tasks: NDArray[np.int32], durations: NDArray[np.int64]) -> float:
    priced = ~np.isnan(graph.tasks["efficiency"][tasks])
    return float(durations[priced & np.isnan(graph.tasks["efficiency_low"][tasks])].sum())
