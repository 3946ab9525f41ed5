"""The page about utilization.

In: ``ModelUse``s, one per batch size. Out: an HTML page, or its sections: how much of the peak is reached, a waterfall
from the whole time down to it, and the layers. Not here: computing any of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.graph import Graph
from windtunnel.reports.charts import Step, escape, waterfall
from windtunnel.reports.page import _page, write_text
from windtunnel.reports.sections import Section, render_table, table_html
from windtunnel.systems.utilization.study import ModelUse, use_of_graph
from windtunnel.units import format_count, format_duration, format_ratio

__all__ = ["by_batch_size", "graph_sections", "utilization_page", "utilization_section"]

_MAX_LAYERS = 25
_COLORS = {
    "framework": "#56b4e9",
    "loading": "#117733",
    "memory": "#e69f00",
    "low intensity": "#cc79a7",
    "quantization": "#ddcc77",
    "kernel": "#8c939b",
    "above peak": "#332288",
    "overlap": "#44aa99",
    "achieved": "#0072b2",
}


@registry.page("utilization", source="GPU-utilization study")
def graph_sections(graph: Graph, *, name: str) -> list[Section]:
    """Measure this host's peaks and show how much of them a captured graph reaches."""
    from windtunnel.measure import ProfileDatabase

    return [utilization_section(use_of_graph(graph, name=name, database=ProfileDatabase()))]


def utilization_page(uses: Sequence[ModelUse], path: str | Path, *, title: str = "", overwrite: bool = False) -> Path:
    """Write the page of one job at several batch sizes.

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    name = title or uses[0].name
    peak = uses[0].peak
    lead = (
        f"Peak: {peak.flops_per_s / 1e9:.0f} GFLOP/s, the best matrix product measured here in {peak.dtype} on "
        f"{peak.num_threads} thread{'s' if peak.num_threads > 1 else ''} ({peak.isa})."
    )
    head = f'<h1>{escape(f"{name}: utilization")}</h1><p class="lead">{escape(lead)}</p>'
    return write_text(
        Path(path), _page(name, head, [_overview(uses), *map(utilization_section, uses)]), overwrite=overwrite
    )


def by_batch_size(uses: Sequence[ModelUse]) -> Table:
    """Return the table of utilization by batch size."""
    columns = {"batch": "{}", "measured": format_duration, "predicted": format_duration, "FLOP": format_count,
               "utilization": format_ratio, "with elementwise": format_ratio}  # fmt: skip
    rows = [
        (item.batch_size or "", item.use.duration_ns, item.predicted_ns, item.use.flops, item.use.value,
         item.use.all_value)
        for item in uses
    ]  # fmt: skip
    return Table(columns, rows, wraps="with elementwise")


def _overview(uses: Sequence[ModelUse]) -> Section:
    best = max(uses, key=lambda model: model.use.value)
    return Section(
        "sizes",
        "batch sizes",
        f"At best {format_ratio(best.use.value)} of the peak is used",
        table_html(by_batch_size(uses)),
    )


def utilization_section(model_use: ModelUse) -> Section:
    """Return the section with waterfall and layers at one batch size."""
    use = model_use.use
    losses = [loss for loss in use.waterfall if loss.name != "achieved"]
    achieved = use.waterfall[0]
    steps = [
        Step(loss.name, loss.percent, _COLORS[loss.name], loss.meaning)
        for loss in sorted(losses, key=lambda loss: -loss.percent)
        if abs(loss.percent) >= 0.005
    ]
    steps.append(Step("achieved", achieved.percent, _COLORS["achieved"], achieved.meaning, is_rest=True))
    largest = steps[0] if len(steps) > 1 else steps[-1]
    size = f", batch {model_use.batch_size}" if model_use.batch_size else ""
    return Section(
        f"waterfall-{model_use.batch_size}",
        f"waterfall{size}",
        f"{format_ratio(use.value)} of the peak is used; most is lost to {largest.meaning}",
        waterfall(steps, f"where the time of {model_use.name} goes") + _layers(model_use),
    )


def _layers(model_use: ModelUse) -> str:
    rows = [
        (
            escape(layer.layer or "(none)"),
            format_duration(layer.duration_ns),
            format_ratio(layer.duration_ns / model_use.use.duration_ns),
            format_count(layer.flops),
            f"{layer.intensity:.1f}",
            format_ratio(layer.utilization),
            format_ratio(layer.bound),
        )
        for layer in model_use.use.layers[:_MAX_LAYERS]
    ]
    head = ("layer", "time", "fraction", "FLOP", "FLOP/byte", "utilization", "roofline")
    return render_table(head, rows, numbers=(1, 2, 3, 4, 5, 6)) if rows else ""
