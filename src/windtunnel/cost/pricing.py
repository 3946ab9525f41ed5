"""Graphs priced: measured, else learned, else the roofline, and each task says which.

In: a graph, a device, names of cost models or pricers. Out: the graph with ``duration_ns``, ``duration_std_ns``,
``cost_source``, ``binding``, ``efficiency`` and its interval. Equal work is priced once. No price lies under the bound
of the work as the graph states it: a model that says less is wrong about this work, so the bound counts; a measurement
that is shorter was really seen, so there the bound is wrong and the time stays. Not here: where the work runs
(``whatifs.placing``), bounds (``bounds``), any one cost model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.bounds import Binding, Bounds, bounds, bounds_on
from windtunnel.cost.pricer import ComparingPricer, Pricer, Prices, exact_prices
from windtunnel.cost.work import ITEM_BYTES, Work, dtype_of, shapes_of, work_of
from windtunnel.errors import InputError, MissingExtraError, PriceError
from windtunnel.graph import Graph, Strings
from windtunnel.graph.kernel_classes import class_of
from windtunnel.hardware import Device, Machine

__all__ = [
    "AT_BOUND",
    "AUTO",
    "Model",
    "Tiers",
    "comparable",
    "device_of",
    "floor_of",
    "in_type",
    "missing_types",
    "price",
    "price_work",
    "raise_to_floor",
    "require_possible",
    "tiers_of",
]

AT_BOUND = " under its bound"
"""Suffix of a model's name in ``cost_source``: the model predicted less than the bound, so the bound is used."""
_ROUNDING_NS = 1.0
# T tasks, P distinct pieces of work
AUTO = "auto"
_FIRST, _LAST = "measured", "roofline"
_OTHER_CODE = ("ast",)  # prices what a compiler makes, not the kernels that torch calls: only where it is named
_NAMED = 5
_CONVOLUTIONS = ("convolution", "convolution backward")
Tiers = Sequence[Sequence[Pricer]]
Model = str | Sequence[Pricer] | Tiers


def floor_of(work: Work, device: Device) -> Bounds:
    """The least time of rows of work that none can avoid: no tile, no wave and no unread row of a table counts."""
    # A look-up counts its whole table as moved, and need not read all of it: that part is no bound.
    rows = zip(work.operator.tolist(), work.shapes.tolist(), strict=True)
    sizes = [max(map(math.prod, shapes_of(text)), default=0) * _looks_up(name) for name, text in rows]
    least = np.maximum(work.bytes_moved - (4.0 * np.array(sizes, dtype=np.float64)), 0.0)
    return bounds_on(device, work.flops, least, dtype=work.dtype.tolist(), overhead_ns=0.0)


def _looks_up(operator: str) -> bool:
    """Whether an operator reads single rows or elements of its largest tensor."""
    return class_of(operator) == "indexing" or "embedding_bag" in operator or "nll_loss" in operator


def raise_to_floor(prices: Prices, floor: Bounds, is_seen: NDArray[np.bool_]) -> tuple[Prices, NDArray[np.bool_]]:
    """Prices of which none is under the floor, and which rows were [P]; rows that ``is_seen`` keep their time.

    Efficiencies are then at most 1: a bound of the model's own that its price beats gives way.
    """
    seen_ns = np.fmin(prices.duration_ns, prices.duration_low_ns)
    min_ns = np.where(is_seen, np.minimum(floor.bound_ns, seen_ns), floor.bound_ns)
    duration = np.maximum(prices.duration_ns, min_ns)
    mixed = replace(prices.bounds, bound_ns=np.clip(prices.bounds.bound_ns, min_ns, duration))
    ends = (prices.duration_high_ns, prices.duration_low_ns)
    low, high = (mixed.efficiency(np.maximum(end, mixed.bound_ns)) for end in ends)
    efficiency = np.fmin(mixed.efficiency(duration), 1.0)  # 1 also where bound and time are nothing
    return Prices(mixed, efficiency, low, high, prices.level), prices.duration_ns < min_ns - _ROUNDING_NS


def require_possible(graph: Graph, tasks: NDArray[np.int64], floor_ns: NDArray[np.float64], device: Device) -> None:
    """A last look at an answer of ours, task by task: what ends here is our defect, and names everything.

    Raises
    ------
    PriceError
        A task takes less than its floor.
    """
    took_ns = graph.duration_ns[tasks]
    under = np.flatnonzero(took_ns < floor_ns - _ROUNDING_NS)
    if len(under):
        worst = under[np.argmax(floor_ns[under] - took_ns[under])]
        pricer, operator = (graph.tasks.strings(name).decode(int(tasks[worst])) for name in ("cost_source", "name"))
        raise PriceError(
            f"{pricer} prices {operator} at {took_ns[worst]:,} ns, and {device.name} needs at least "
            f"{floor_ns[worst]:,.0f} ns for it; so it is with {len(under):,} tasks",
            where=f"task {int(tasks[worst])}",
            fix="this is a defect of windtunnel: please report it; until then name another model with --model",
        )


def price(graph: Graph, machine: Machine | Device, model: Model = AUTO, *, dtype: str = "") -> Graph:
    """Set the durations of the tasks that compute as they would be on a machine.

    Parameters
    ----------
    graph : Graph
    machine : Machine or Device
        Of a machine, its first device.
    model : str, or sequence of Pricer, or what ``tiers_of`` returns
        A registered cost model, ``NAME=FILE`` for one that was trained; several joined by commas, the first that can
        price a task does; ``auto``: what was measured, then of all models that know the device the surest, the
        roofline last.
    dtype : str
        Type of the work that was captured in fp32, such as ``tf32`` or ``bf16``; its bytes shrink with it.

    Returns
    -------
    Graph
        ``cost_source`` says which model priced a task, ``binding`` what its bound is made of, ``efficiency`` how much
        of the bound it reaches, ``efficiency_low`` and ``efficiency_high`` how sure that is (NaN: not known).

    Raises
    ------
    PriceError
        No model has a price for some operators: they are named with their share of the graph; or the machine has no
        device.
        Or, by a defect of ours, a price is under what the device can do.
    InputError
        No cost model has this name, or the device has no peak for a type.
    """
    device = device_of(machine)
    work, row_T = work_of(graph)
    if dtype:
        work = in_type(work, dtype)
    work = with_known_peaks(with_library_types(work, device), device)
    tiers = tiers_of(model)
    prices, sources = price_work(work, device, tiers)
    if (sources < 0).any():
        raise _missing_price_error(graph, work, row_T, sources < 0)
    pricers = [pricer for tier in tiers for pricer in tier]
    # a measurement may be quicker than the bound (caches), and is believed; all others are raised to it
    is_seen = np.array([getattr(pricer, "is_measurement", False) for pricer in pricers], dtype=bool)[sources]
    floor = floor_of(work, device)
    prices, was_under = raise_to_floor(prices, floor, is_seen)
    names = [pricer.name for pricer in pricers]
    names += [name + AT_BOUND for name in names]
    priced = _write_prices(graph, row_T, prices, sources + len(pricers) * was_under, names)
    tasks = np.flatnonzero(row_T >= 0)
    if "is_part" in graph.tasks:  # the price of an operator holds all of its kernels
        priced = priced.set_duration(graph.tasks["is_part"], 0, cost_source="part of an operator")
    require_possible(priced, tasks, np.where(is_seen, 0.0, floor.bound_ns)[row_T[tasks]], device)
    priced = priced.note({"priced_for": device.name, "priced_in": dtype or "as captured"})
    return priced.as_one_edit(graph, "price", {"device": device.name, "dtype": dtype})


def tiers_of(model: Model) -> Tiers:
    """Pricers in the order in which they are asked; within a tier the surest of each row is taken.

    Raises
    ------
    InputError
        No cost model has a name.
    """
    if not isinstance(model, str):
        return [list(item) if isinstance(item, Sequence) else [item] for item in model]
    if model != AUTO:
        return [[_make_pricer(name.strip())] for name in model.split(",")]
    learned = [_optional(name) for name in registry.all("cost_model") if name not in (_FIRST, _LAST, *_OTHER_CODE)]
    first = [_make_pricer(name) for name in (_FIRST,) if name in registry.all("cost_model")]
    return [first, [item for item in learned if item is not None], [_make_pricer(_LAST)]]


def comparable(model: Model, machines: Sequence[Machine | Device]) -> Tiers:
    """Pricers for answers that are compared: what a pricer does not know of all the devices, it uses for none.

    Raises
    ------
    InputError
        No cost model has a name.
    PriceError
        A machine has no device.
    """
    tiers, devices = tiers_of(model), list(dict.fromkeys(device_of(machine).name for machine in machines))
    if len(devices) < 2:
        return tiers
    compared = [device_of(machine) for machine in machines]
    return [[item.among(compared) if isinstance(item, ComparingPricer) else item for item in tier] for tier in tiers]


def price_work(work: Work, device: Device, tiers: Tiers) -> tuple[Prices, NDArray[np.int64]]:
    """Prices of distinct work.

    Returns
    -------
    prices : Prices
    sources : int64 [P]
        Which pricer, counted through all tiers; -1 where none has a price.
    """
    prices = exact_prices(bounds(work.flops, 0.0, flops_per_s=np.inf, bytes_per_s=np.inf))
    sources, number = np.full(len(work), -1, dtype=np.int64), 0
    for tier in tiers:
        open_P, sure = sources < 0, np.full(len(work), np.inf)
        for pricer in tier:
            covered = open_P & pricer.covers(work, device)
            if covered.any():
                offered = pricer.price(work.take(covered), device)
                # a pricer without an interval comes after all pricers with one
                spread = np.nan_to_num(offered.log_std, nan=np.finfo(float).max)
                # the first pricer of a tier keeps rows where another is as sure
                better = spread < sure[covered]
                selected = np.flatnonzero(covered)[better].astype(np.int64)
                prices = prices.replace_rows(selected, offered.take(better))
                sources[selected], sure[selected] = number, spread[better]
            number += 1
    return prices, sources


def in_type(work: Work, dtype: str) -> Work:
    """The same work with what was captured in fp32 in another type.

    Raises
    ------
    InputError
        The type is unknown.
    """
    if dtype not in ITEM_BYTES:
        raise InputError(f"no type is called {dtype!r}", where="dtype", fix=f"choose one of {', '.join(ITEM_BYTES)}")
    result = {text: dtype_of(text) or ("fp32" if not text else "") for text in set(work.dtypes.tolist())}
    captured = np.array([result[text] for text in work.dtypes.tolist()], dtype=object)
    # integers and flags have no peak of their own: they go by the one of the type that is asked for, in their own bytes
    types = np.where((captured == "fp32") | (captured == ""), dtype, work.dtype).astype(object)
    shrunk = np.where(captured == "fp32", ITEM_BYTES[dtype] / 4, 1.0)
    return replace(work, dtype=types, bytes_moved=work.bytes_moved * shrunk)


def with_library_types(work: Work, device: Device) -> Work:
    """The same work, convolutions of fp32 in tf32 on GPUs that have it: cuDNN's default."""
    if device.kind != "gpu" or "tf32" not in device.peak_flops_per_s:
        return work
    is_fp32 = np.flatnonzero(work.dtype == "fp32")
    changed = [row for row in is_fp32.tolist() if class_of(work.operator[row]) in _CONVOLUTIONS]
    if not changed:
        return work
    dtype = work.dtype.copy()
    dtype[changed] = "tf32"
    return replace(work, dtype=dtype)


def with_known_peaks(work: Work, device: Device) -> Work:
    """The same work, fp64 by the peak of fp32 where it has none: no device is quicker in it, so a bound stays one."""
    if "fp64" in device.peak_flops_per_s or "fp32" not in device.peak_flops_per_s:
        return work
    return replace(work, dtype=np.where(work.dtype == "fp64", "fp32", work.dtype).astype(object))


def missing_types(graph: Graph, device: Device, dtype: str = "") -> list[str]:
    """Types that a graph computes in and the device has no peak for, sorted; ``dtype`` as of ``price``."""
    work, _ = work_of(graph)
    work = with_known_peaks(in_type(work, dtype) if dtype else work, device)
    return sorted(set(work.dtype.tolist()) - set(device.peak_flops_per_s))


def device_of(machine: Machine | Device) -> Device:
    """The device itself, or a machine's first.

    Raises
    ------
    PriceError
        The machine has none.
    """
    if isinstance(machine, Device):
        return machine
    if not machine.devices:
        raise PriceError(f"{machine.name} has no device to price for", fix="name a device of the catalog")
    return machine.devices[0]


def _make_pricer(name: str) -> Pricer:
    plain, _, checkpoint = name.partition("=")
    model = registry.get("cost_model", plain)
    if checkpoint and "checkpoint" not in model.parameters:
        raise InputError(f"the cost model {plain} is not trained: it reads no file", where=name, fix=f"write {plain}")
    pricer: Pricer = model.function(checkpoint) if checkpoint else model.function()
    return pricer


def _optional(name: str) -> Pricer | None:
    try:
        return _make_pricer(name)
    except MissingExtraError:  # what cannot run here has no price, and cost_source says who had
        return None


def _missing_price_error(graph: Graph, work: Work, row_T: NDArray[np.int64], missing: NDArray[np.bool_]) -> PriceError:
    """Which operators, how many tasks, what share of the captured time."""
    tasks = (row_T >= 0) & missing[row_T]
    names = sorted(set(work.operator[missing].tolist()))
    whole = float(graph.duration_ns[row_T >= 0].sum())
    share = f" and {100 * graph.duration_ns[tasks].sum() / whole:.1f} % of their time" if whole > 0 else ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return PriceError(
        f"no cost model has a price for {int(tasks.sum()):,} of {int((row_T >= 0).sum()):,} tasks that compute{share}: "
        "none states its flops or bytes, and no model knows the operator",
        where=", ".join(names[:_NAMED]) + more,
        fix="capture the graph with windtunnel, which notes both, or name a model that knows these operators",
    )


def _write_prices(
    graph: Graph, row_T: NDArray[np.int64], prices: Prices, sources: NDArray[np.int64], names: Sequence[str]
) -> Graph:
    tasks = np.flatnonzero(row_T >= 0)
    rows = row_T[tasks]
    durations = np.rint(prices.duration_ns).astype(np.int64)
    kept: dict[str, Any] = dict(_texts(graph, tasks, prices, sources, names, rows))
    kept["duration_ns"] = _with(graph.duration_ns, tasks, durations[rows])
    for name in ("efficiency", "efficiency_low", "efficiency_high"):
        kept[name] = _with(np.full(graph.num_tasks, np.nan), tasks, getattr(prices, name)[rows])
    spread = prices.duration_std_ns
    if np.isfinite(spread).any():
        whole = np.rint(np.nan_to_num(spread)).astype(np.int64)
        kept["duration_std_ns"] = _with(np.zeros(graph.num_tasks, dtype=np.int64), tasks, whole[rows])
    # what varied was measured elsewhere, and iterations of two machines do not belong together
    return graph.drop_columns(["samples_ns", "duration_std_ns"]).set_columns(kept)


def _texts(
    graph: Graph,
    tasks: NDArray[np.int64],
    prices: Prices,
    sources: NDArray[np.int64],
    names: Sequence[str],
    rows: NDArray[np.int64],
) -> dict[str, Strings]:
    before = graph.tasks.get("cost_source", Strings.repeat("", graph.num_tasks))
    nothing = Strings.repeat("", graph.num_tasks)
    binding = [item.name.lower() for item in Binding]
    return {
        "cost_source": _assign_names(before, tasks, names, sources[rows]),
        "binding": _assign_names(nothing, tasks, binding, prices.bounds.binding[rows]),
    }


def _assign_names(column: Strings, tasks: NDArray[np.int64], names: Sequence[str], codes: NDArray[Any]) -> Strings:
    values = tuple(dict.fromkeys((*column.values, *names)))
    index = np.array([values.index(name) for name in names], dtype=np.int32)
    return Strings(_with(column.codes, tasks, index[codes]), values)


def _with(column: NDArray[Any], tasks: NDArray[np.int64], values: NDArray[Any]) -> NDArray[Any]:
    changed = column.copy()
    changed[tasks] = values
    return changed
