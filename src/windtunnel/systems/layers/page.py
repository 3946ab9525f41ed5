"""The page about training with cheaper layers: whether networks with them learn as well.

In: trainings of a task. Out: a page. Not here: training.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.reports.charts import escape
from windtunnel.reports.curves import Curve, curves
from windtunnel.reports.page import _page, write_text
from windtunnel.reports.sections import Section, render_table
from windtunnel.units import format_count

if TYPE_CHECKING:  # torch is not needed to draw
    from windtunnel.systems.layers.training.run import Qualities

__all__ = ["quality_page"]


def quality_page(found: Qualities, path: str | Path, *, overwrite: bool = False) -> Path:
    """What networks with each kind of layers come to, epoch by epoch.

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    lines = [
        Curve(one.case, [(at + 1, sum(values) / len(values)) for at, values in enumerate(by_epoch)])
        for one in found.cases
        if (by_epoch := list(zip(*(score.by_epoch for score in one.scores), strict=True)))
    ]
    metrics = found.cases[0].scores[0].metrics
    rows = [
        (
            escape(one.case),
            *(f"{one.mean(name):.2f}" for name in metrics),
            f"{found.ratio(one.case) - 1:+.1%}",
            f"{one.spread(found.metric):.2f}",
            format_count(one.scores[0].num_weights),
        )
        for one in found.cases
    ]
    head = ("case", *map(escape, metrics), "to first", "spread", "weights")
    said = ", ".join(f"{name} {value:g}" for name, value in found.settings.items())
    table = render_table(head, rows, numbers=tuple(range(1, len(head)))) + f"<p>{escape(said)}</p>"
    drawing = curves(lines, f"{found.metric} by epoch", x_label="epoch", y_label=found.metric, is_log=False)
    sections = [
        Section("quality", "Quality", "Whether cheaper layers learn as well", drawing if lines else ""),
        Section("cases", "Cases", f"What each case came to on {found.cases[0].scores[0].data}", table),
    ]
    if found.published:
        published = render_table(("published", ""), [(escape(what), escape(value)) for what, value in found.published])
        sections.append(Section("published", "Published", "What the paper says of its own data", published))
    title = f"{found.task}: cheaper layers"
    return write_text(Path(path), _page(title, f"<h1>{escape(title)}</h1>", sections), overwrite=overwrite)
