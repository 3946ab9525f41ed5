"""Other hardware, as a factor (what-if family "faster hardware").

In: a graph. Out: the same graph with the work of processors, devices or links scaled. For another chip by name,
price the graph.
"""

from __future__ import annotations

import math
import re

import numpy as np

from windtunnel import registry
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, Strings, lags
from windtunnel.registry import did_you_mean
from windtunnel.simulate.limits import Baseline, up_to
from windtunnel.whatifs.block_patterns import compile_pattern
from windtunnel.whatifs.device_tasks import computes_on_device
from windtunnel.whatifs.insert_tasks import is_on_host, rescale

__all__ = ["faster_cpu", "faster_device", "faster_link", "faster_operator", "operator_work"]


def _duration_ratio(factor: float) -> float:
    if not math.isfinite(factor) or factor <= 0:
        raise InputError(f"hardware cannot be {factor} times as fast", fix="give a factor above 0, below 1 for slower")
    return 1.0 / factor


def _slower_gaps(graph: Graph, between: np.ndarray, ratio: float) -> Graph:
    requested = between & (lags(graph.edges) > 0)
    if not requested.any():
        return graph
    return graph.set_lag(requested, np.rint(lags(graph.edges)[requested] * ratio).astype(np.int64))


def _at_most(baseline: Baseline) -> float:
    return max(1.0, float(baseline.options["factor"]))


_LIMITS = up_to(_at_most, "what runs faster by a factor makes a step faster by that factor at most")


@registry.whatif("faster-cpu", source="virtual speed-up, as Daydream, ATC 2020, and Coz, SOSP 2015", limits=_LIMITS)
def faster_cpu(graph: Graph, factor: float = 2.0) -> Graph:
    """Run everything on CPU threads ``factor`` times as fast, the gaps of Python between them included."""
    ratio, on_host = _duration_ratio(factor), is_on_host(graph)
    waits = graph.select(kind=(Kind.SYNC, Kind.COMM))
    selected = on_host & ~waits
    if not graph.duration_ns[selected].any():
        raise NotApplicableError("no task spends time on a CPU thread")
    edges = graph.edges
    gaps = (edges["kind"] == EdgeKind.ORDER) & on_host[edges["src"]] & on_host[edges["dst"]]
    return _slower_gaps(rescale(graph, selected, ratio, "assumed factor"), gaps, ratio)


@registry.whatif("faster-device", source="virtual speed-up, as Daydream, ATC 2020, and Coz, SOSP 2015", limits=_LIMITS)
def faster_device(graph: Graph, factor: float = 2.0) -> Graph:
    """Run all kernels of devices ``factor`` times as fast; launches, copies and messages stay."""
    ratio = _duration_ratio(factor)
    selected = computes_on_device(graph)
    if not selected.any():
        raise NotApplicableError("no task runs on a device", fix="on a CPU, ask for faster-cpu")
    return rescale(graph, selected, ratio, "assumed factor")


def operator_work(graph: Graph) -> tuple[Strings, np.ndarray, np.ndarray]:
    """Operators of tasks, which tasks compute (bool [T]), and the ns that each operator takes of its own.

    Raises
    ------
    NotApplicableError
        The graph does not say which operators its tasks are of.
    """
    if "op" not in graph.tasks:
        raise NotApplicableError("this graph does not say which operators its tasks are of", fix="capture a step")
    names, computes = graph.tasks.strings("op"), graph.select(kind=(Kind.COMPUTE, Kind.HOST))
    own_ns = np.bincount(names.codes[computes], graph.duration_ns[computes], minlength=len(names.values))
    return names, computes, own_ns


@registry.whatif(
    "faster-operator", source="virtual speed-up, as Daydream, ATC 2020, and Coz, SOSP 2015", limits=_LIMITS
)
def faster_operator(graph: Graph, operator: str = "", factor: float = 2.0, evidence: str = "assumed factor") -> Graph:
    """Run all tasks of one operator ``factor`` times as fast, as a better kernel for it would.

    Parameters
    ----------
    graph : Graph
    operator : str
        Regular expression that matches the whole name; by default the one that takes the most time.
    factor : float
    evidence : str
        Where the factor comes from; tasks keep it.

    Raises
    ------
    NotApplicableError
        The graph does not say which operators its tasks are of.
    InputError
        None is called so; the nearest are offered.
    """
    ratio = _duration_ratio(factor)
    names, computes, own_ns = operator_work(graph)
    if not own_ns.any():
        raise NotApplicableError("no operator takes any time")
    pattern = compile_pattern(operator or re.escape(names.values[int(own_ns.argmax())]))
    selected = computes & names.where({name: bool(name) and bool(pattern.fullmatch(name)) for name in names.values})
    if not graph.duration_ns[selected].any():
        known = [name for code, name in enumerate(names.values) if own_ns[code] > 0]
        raise InputError(f"no operator is called {operator!r}", where="operator=", fix=did_you_mean(operator, known))
    return rescale(graph, selected, ratio, evidence)


@registry.whatif("faster-link", source="virtual speed-up, as Daydream, ATC 2020, and Coz, SOSP 2015", limits=_LIMITS)
def faster_link(graph: Graph, factor: float = 2.0) -> Graph:
    """Move all messages between workers ``factor`` times as fast, their latency included."""
    ratio, selected = _duration_ratio(factor), graph.select(kind=Kind.COMM)
    messages = graph.edges["kind"] == EdgeKind.MESSAGE
    if not selected.any() and not (messages & (lags(graph.edges) > 0)).any():
        raise NotApplicableError("nothing is sent between workers", fix="put data-parallel first")
    faster = _slower_gaps(rescale(graph, selected, ratio, "assumed factor"), messages, ratio)
    if not graph.meta.routes:
        return faster
    return faster.with_resources(graph.resources.replace(rate=graph.resources["rate"] * factor))
