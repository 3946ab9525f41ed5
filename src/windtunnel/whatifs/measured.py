"""Changes that lack prices, and the prices of operators and updates that were run again, applied.

In: what a what-if returns where durations cannot be known from the graph alone (``Unpriced``): what must be priced, and
the graph that the prices make. Out: the graph with durations and memory scaled by ratios of new to old durations, which
notes how sure these prices are. Every family whose operators change form states what it needs, and is priced, through
here. The pricer is handed in; nothing here measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.rerun import (
    Form,
    Need,
    OperatorsNeed,
    Program,
    Ratios,
    UpdateForm,
    UpdateNeed,
    device_names,
    embedding_row_ratios,
    program_of,
)
from windtunnel.errors import AbsentDeviceError, InputError, NotApplicableError, PriceError, WindtunnelError
from windtunnel.graph import Graph, Kind, Phase
from windtunnel.graph.table import Strings
from windtunnel.simulate.limits import Baseline
from windtunnel.whatifs.device_tasks import lies_on_device
from windtunnel.whatifs.layers import weights_of

__all__ = [
    "PRICES",
    "REPLACED",
    "SOURCE",
    "Pricer",
    "Unpriced",
    "add_update",
    "apply_ratios",
    "apply_update",
    "calls_of",
    "check_prices",
    "has_program",
    "operators_of",
    "price_change",
    "require_program",
    "rerun_in_form",
    "update_need",
    "update_steps",
    "updates_and_zeroing",
    "with_update",
]

# (needs, whether what is not known may be measured) -> price, error or None of each
Pricer = Callable[[Sequence[Need], bool], Mapping[Need, Any]]
PRICES = ("auto", "measured", "paper")
MEASURE, LOOK_UP, PUBLISHED = "measure", "look up", "published"
_WAYS = {"measured": MEASURE, "paper": PUBLISHED}
Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
_MEASURED = "measured:"  # of what was priced for a what-if; what was captured is "measured"
SOURCE = f"{_MEASURED}partial"
_COMPILED = r"cpp_fused_.*|## Call CompiledFxGraph.*"  # names of tasks of code that a compiler generated
REPLACED = f"{_MEASURED}other layer"  # of calls that another layer runs


@dataclass(frozen=True)
class Unpriced:
    """A change of a graph that has to be priced before it can be made.

    A what-if returns it where the new durations cannot be derived from the graph. Constructing it runs nothing.

    Parameters
    ----------
    needs : tuple of Need
        What has to be priced; values of :mod:`windtunnel.cost.rerun`.
    finish : callable, optional
        ``finish(*prices) -> Graph`` with one price per need, in the order of ``needs``; a pure function. None where
        nothing can be measured because the graph does not know its operators.
    published : callable, optional
        ``published() -> Graph`` with published ratios or an estimate. None where there are none.
    by_default : str
        What ``prices="auto"`` does: ``"measure"``, ``"look up"`` (use what the profile database has, else what is
        published) or ``"published"``.
    refusal : PriceError, optional
        Why nothing can be measured, if not because the graph does not know its operators.

    Examples
    --------
    How much the optimizer's update gains is measured, and applied to the tasks of the update::

        need = update_need(graph, UpdateForm(options={"fused": True, "foreach": False}))
        return Unpriced((need,), lambda ratio: apply_update(graph, ratio))
    """

    needs: tuple[Need, ...]
    finish: Callable[..., Graph] | None
    published: Callable[[], Graph] | None = None
    by_default: str = MEASURE
    refusal: PriceError | None = None

    @classmethod
    def from_paper(cls, published: Callable[[], Graph], refusal: PriceError | None = None) -> Unpriced:
        """A change that cannot be measured: the graph does not know its operators, or as ``refusal`` says."""
        return cls((), None, published, PUBLISHED, refusal)

    def way(self, prices: str) -> str:
        """How its prices are found: measured, looked up or published."""
        return _WAYS.get(prices, self.by_default)


def check_prices(prices: str) -> str:
    """The choice, if it is one.

    Raises
    ------
    InputError
        It is not known.
    """
    if prices not in PRICES:
        raise InputError(f"prices cannot be {prices!r}", fix=f"use one of {', '.join(PRICES)}")
    return prices


def price_change(change: Unpriced, prices: str, pricer: Pricer, before: Graph | None = None) -> Graph:
    """The changed graph, with measured or published prices.

    Parameters
    ----------
    change : Unpriced
    prices : str
        ``auto``, ``measured`` or ``paper``.
    pricer : callable
    before : Graph, optional
        The graph that is changed: what it was priced with before varied as it did then.

    Raises
    ------
    NotApplicableError
        Published prices are requested, but none exist for this change.
    PriceError
        Measured prices are requested, but cannot be measured here.
    """
    way = change.way(prices)
    if way == PUBLISHED:
        return _apply_paper_ratios(change)
    if change.finish is None:
        raise change.refusal or PriceError(
            "this graph does not say which operators were called with which arguments",
            fix="capture the step with windtunnel, or take published ratios: prices='paper'",
        )
    result = pricer(change.needs, way == MEASURE)
    given = [result[need] for need in change.needs]
    # one price that is absent is enough: measured and published ratios are never mixed in one answer
    for price in given:
        if isinstance(price, AbsentDeviceError) and prices == "auto" and change.published is not None:
            return _apply_paper_ratios(change)
        if isinstance(price, WindtunnelError):
            raise price
    if any(price is None for price in given):
        return _apply_paper_ratios(change)
    return _as_sure_as(change.finish(*given), given, before)


def _as_sure_as(graph: Graph, prices: Sequence[Any], before: Graph | None) -> Graph:
    """Note how sure the prices are, whatever was made of them, and of which tasks; of several, the least sure counts.

    A message that varies by its own length says nothing of the operators around it, so each task has its own spread.
    """
    spread_ratio = max((getattr(price, "spread_ratio", 0.0) for price in prices), default=0.0)
    if spread_ratio:
        known = graph.tasks.get("price_spread_ratio", np.zeros(graph.num_tasks))
        new = _price_newly(graph, known, before)
        graph = graph.with_columns(price_spread_ratio=np.where(new, np.hypot(known, spread_ratio), known))
    known = {name: getattr(graph.meta, f"price_{name}") for name in ("spread_ratio", "waited_ratio")}
    result = {name: max([value, *(getattr(price, name, 0.0) for price in prices)]) for name, value in known.items()}
    return graph if result == known else graph.note({f"price_{name}": value for name, value in result.items()})


def _price_newly(graph: Graph, spread_T: Floats, before: Graph | None) -> Mask:
    """Tasks that the latest measured prices are of, bool [T]."""
    sources: Strings = graph.tasks.strings("cost_source")
    measured: Mask = sources.where({value: value.startswith(_MEASURED) for value in sources.values})
    is_new: Mask = spread_T == 0
    if before is not None and before.num_tasks == graph.num_tasks:
        is_new = before.duration_ns != graph.duration_ns
    result: Mask = measured & is_new
    return result


def _apply_paper_ratios(change: Unpriced) -> Graph:
    if change.published is None:
        raise NotApplicableError("there are no published ratios for this change", fix="measure it here: prices='auto'")
    return change.published()


def has_program(graph: Graph) -> bool:
    """Whether the graph knows which operators were called with which arguments."""
    return bool(graph.meta.program)


def require_program(graph: Graph) -> Program:
    """The program of the graph.

    Raises
    ------
    NotApplicableError
        The graph has no tasks.
    PriceError
        The graph comes from a source that keeps no program.
    """
    if not graph.num_tasks:
        raise NotApplicableError("the graph has no tasks", fix="capture at least one whole iteration")
    return program_of(graph)


def calls_of(graph: Graph) -> NDArray[np.int64]:
    """The call that every task belongs to, int64 [T]; -1 for those outside of every call, and for updates."""
    column = graph.tasks.get("call")
    if column is None:
        return np.full(graph.num_tasks, -1, dtype=np.int64)
    return np.where(graph.select(phase=Phase.UPDATE), -1, column).astype(np.int64)


def operators_of(baseline: Baseline) -> Mask:
    """Tasks of operators, of the calls that lead to them, and of updates, bool [T]: what can run in another form."""
    graph = baseline.graph
    return graph.select(kind=Kind.COMPUTE) | graph.select(phase=Phase.UPDATE) | (_calls_with_engine(graph) >= 0)


def rerun_in_form(graph: Graph, form: Form, then: Callable[[Graph], Graph] = lambda changed: changed) -> Unpriced:
    """Return the change that runs the operators of a graph in another form.

    Each captured call is run again in the old and in the new form, and the ratio of both durations scales its tasks.

    Parameters
    ----------
    graph : Graph
        A capture that knows its operators with their arguments.
    form : Form
        How the operators run: precision, threads, layout, batch, layers that replace them.
    then : callable, optional
        Receives the priced graph and returns it with what else changes, such as entries of ``meta``.

    Returns
    -------
    Unpriced
        With one `OperatorsNeed`.

    Raises
    ------
    PriceError
        The graph comes from a source that keeps no program.
    """
    need = OperatorsNeed(require_program(graph), form)
    return Unpriced(
        (need,), lambda ratios: then(_mark_replaced_layers(apply_ratios(graph, ratios), need.program, form))
    )


def _mark_replaced_layers(graph: Graph, program: Program, form: Form) -> Graph:
    """Say of the tasks of layers with weights that another layer runs who priced them."""
    indices = [index for index, _, _ in form.replaced if weights_of(program, index)]
    if not indices:
        return graph
    mask = np.isin(_calls_with_engine(graph), indices)
    return graph.set_duration(mask, graph.duration_ns[mask], cost_source=REPLACED)


def apply_ratios(graph: Graph, ratios: Ratios) -> Graph:
    """Scale the work of every call, forward and backward, and what it keeps in memory.

    On a GPU the tasks of the host take the ratios of the host, and kernels and copies those of the device.
    """
    own = calls_of(graph)
    call = _calls_with_engine(graph) if ratios.device is None else own
    is_backward = graph.select(phase=Phase.BACKWARD)
    # calls that could not be run again keep their captured times
    again = (call >= 0) & ~np.isin(call, list(ratios.failures))
    on_device = again & lies_on_device(graph)
    factor = np.ones(graph.num_tasks)
    if ratios.device is None:
        count = max(1, graph.num_iterations * graph.num_ranks)
        work_ns = [float(graph.duration_ns[again & mask].sum()) / count for mask in (~is_backward, is_backward)]
        ratios = replace(ratios, forward_total=ratios.correct_forward_total(*work_ns))
    for side, tasks in ((ratios, again & ~on_device), (ratios.device or ratios, on_device)):
        for mask, ratio, total in (
            (tasks & ~is_backward, side.forward, side.forward_total),
            (tasks & is_backward, side.backward, side.backward_total),
        ):
            factor[mask] = _with_total(graph.duration_ns[mask], ratio[call[mask]], total)
    changed = factor != 1.0
    duration = np.rint(graph.duration_ns[changed] * factor[changed]).astype(np.int64)
    scaled = graph.set_duration(changed, duration, cost_source=SOURCE)
    return scale_memory(scaled, np.where(own >= 0, ratios.output_bytes[own], 1.0))


def _calls_with_engine(graph: Graph) -> NDArray[np.int64]:
    """As :func:`calls_of`; what autograd's engine does from one node to the next belongs to the call of the next.

    Calls that run again have it among their times: a cast costs the time of its node and that of the engine.
    """
    call, order = calls_of(graph), graph.tasks.get("order")
    is_backward = graph.select(phase=Phase.BACKWARD, kind=[Kind.HOST, Kind.COMPUTE])
    for resource in np.unique(graph.tasks["resource"][is_backward]):
        rows = np.flatnonzero(is_backward & (graph.tasks["resource"] == resource))
        rows = rows if order is None else rows[np.argsort(order[rows], kind="stable")]
        known = np.flatnonzero(call[rows] >= 0)
        if len(known):
            following = np.searchsorted(known, np.arange(len(rows)))
            call[rows] = call[rows[known[np.minimum(following, len(known) - 1)]]]
    return call


def _with_total(duration_ns: NDArray[np.int64], factor: Floats, total: float) -> Floats:
    """Keep the ratio of the whole pass, which is known best, whatever the weights of its calls are in the step."""
    changed = float((duration_ns * factor).sum())
    if changed <= 0 or math.isnan(total):
        return factor
    return factor * (total * float(duration_ns.sum()) / changed)


def scale_memory(graph: Graph, factor: Floats) -> Graph:
    """Scale what tasks allocate, and what is freed by the share of it that is left."""
    columns = {}
    for name in ("output_bytes", "workspace_bytes"):
        if name in graph.tasks:
            columns[name] = np.rint(graph.tasks[name] * factor).astype(np.int64)
    if not columns or (factor == 1.0).all():
        return graph
    if "freed_bytes" in graph.tasks and "output_bytes" in columns:
        before, after = int(graph.tasks["output_bytes"].sum()), int(columns["output_bytes"].sum())
        freed = graph.tasks["freed_bytes"] * (after / before if before else 1.0)
        columns["freed_bytes"] = np.rint(freed).astype(np.int64)
    return graph.with_columns(**columns)


# --- updates ----------------------------------------------------------------------------------------------


def updates_and_zeroing(graph: Graph) -> Mask:
    """Tasks of the optimizers' own steps and of the zeroing of gradients, bool [T]; clipping is none of them."""
    steps = graph.select(phase=Phase.UPDATE)
    return steps & (graph.tasks["call"] < 0) if "call" in graph.tasks else steps


def update_steps(graph: Graph) -> Mask:
    """Tasks of the optimizers' own steps, bool [T]: not clipping, not the zeroing of gradients.

    Raises
    ------
    NotApplicableError
        There are none.
    """
    steps = updates_and_zeroing(graph)
    zeroes = _texts(graph, lambda name: name.startswith("Optimizer.zero_grad"))
    steps &= ~zeroes
    if not steps.any():
        raise NotApplicableError("no parameter is updated here", where="phase UPDATE", fix="capture a training step")
    return steps


def _texts(graph: Graph, predicate: Callable[[str], bool]) -> Mask:
    names: Strings = graph.tasks.strings("name")
    return names.where({value: predicate(value) for value in names.values})


def update_need(graph: Graph, form: UpdateForm) -> UpdateNeed:
    """The optimizers' steps in another form.

    Raises
    ------
    NotApplicableError
        Nothing is updated, or the graph does not know its optimizers.
    """
    update_steps(graph)
    if graph.select(phase=Phase.UPDATE, name=_COMPILED).any():
        raise NotApplicableError(
            "the updates run as compiled code: what the compiler would make of another form is not known",
            where="phase UPDATE",
            fix="change the optimizer in the program, compile it, and measure both by a real run",
        )
    optimizers = graph.meta.optimizers
    if not optimizers:
        raise NotApplicableError(
            "this graph does not say which optimizers it has",
            fix="capture the step with windtunnel, or take published ratios: prices='paper'",
        )
    threads = int(graph.meta.hardware.get("num_threads", 0))
    touched = embedding_row_ratios(program_of(graph)) if has_program(graph) else {}
    device = "cuda" if (lies_on_device(graph) & graph.select(phase=Phase.UPDATE)).any() else "cpu"
    return UpdateNeed(optimizers, form, threads, touched, device, device_names(graph))


def apply_update(graph: Graph, ratio: float) -> Graph:
    """Scale the optimizers' steps: what the host does by the ratio, kernels by its ``device_ratio``."""
    steps = update_steps(graph)
    factor = np.where(lies_on_device(graph), getattr(ratio, "device_ratio", ratio), ratio)
    duration = np.rint(graph.duration_ns[steps] * factor[steps]).astype(np.int64)
    return graph.set_duration(steps, duration, cost_source=SOURCE)


def with_update(graph: Graph, form: Form, update: UpdateForm) -> Unpriced:
    """The operators in one form and, where the graph knows its optimizers and updates, the update in another.

    Raises
    ------
    PriceError
        The graph comes from a source that keeps no program.
    """
    change = rerun_in_form(graph, form)
    if not graph.meta.optimizers or not graph.select(phase=Phase.UPDATE).any():
        return change
    return add_update(change, update_need(graph, update))


def add_update(change: Unpriced, need: UpdateNeed) -> Unpriced:
    """A change of operators, and the optimizers' steps at the price of a need."""
    finish = change.finish
    assert finish is not None
    return Unpriced((*change.needs, need), lambda ratios, ratio: apply_update(finish(ratios), ratio))
