"""The page of a job's input pipeline.

In: a ``Prediction``, perhaps a ``RunResult`` and a ``Plan``. Out: one page: loading and computing over time, what each
cause costs, the settings to choose from. Not here: any result.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from windtunnel.reports.charts import drawing, escape, words
from windtunnel.reports.curves import Bar, bars
from windtunnel.reports.page import _page, write_text
from windtunnel.reports.sections import Section, render_table
from windtunnel.systems.dataio.metrics import BlockTimes
from windtunnel.systems.dataio.model import CAUSES, Bottleneck
from windtunnel.systems.dataio.predict import Prediction
from windtunnel.systems.dataio.run import RunResult
from windtunnel.systems.dataio.search import Plan
from windtunnel.units import format_duration, format_size

__all__ = ["dataio_page", "draw_steps"]

_COLORS = {"loading": "#cc79a7", "computing": "#0072b2", "barrier": "#999999"}
_MAX_STEPS = 24
_LEFT, _WIDTH, _ROW, _BAR = 90.0, 620.0, 30.0, 18.0


def dataio_page(
    path: Path,
    *,
    prediction: Prediction | None = None,
    result: RunResult | None = None,
    plan: Plan | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the page of what is given.

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    sections: list[Section] = []
    name = ""
    if plan is not None:
        name = plan.baseline.prediction.job.name
        sections.append(Section("plan", "Settings", _plan_title(plan), _plan_table(plan)))
    if result is not None:
        name = result.job.name
        blocks = [record.blocks[0] for record in result.epochs[0].ranks]
        title = f"Measured steps of epoch 1: AU {_percent(result.metrics().au_ratios[0])}"
        sections.append(Section("measured", "Measured", title, draw_steps(blocks) + _notes(result.notes())))
    if prediction is not None:
        name = prediction.job.name
        title = f"Predicted steps of epoch 1: AU {_percent(prediction.epochs[0].au_ratio)}"
        sections.append(Section("predicted", "Predicted", title, draw_steps(prediction.times)))
        if prediction.bottleneck is not None:
            found = prediction.bottleneck
            sections.append(
                Section("causes", "Causes", f"The epoch is limited by: {CAUSES[found.cause]}", _gains(found))
            )
    title = f"Input pipeline of {name}"
    return write_text(path, _page(title, f"<h1>{escape(title)}</h1>", sections), overwrite=overwrite)


def draw_steps(blocks: Sequence[BlockTimes]) -> str:
    """Draw when each rank waits for data, computes, and waits for others, over the first steps."""
    count = min(_MAX_STEPS, blocks[0].num_steps)
    # steps end together: a step takes what its slowest rank takes
    loads, computes = (np.array([getattr(block, name)[:count] for block in blocks]) for name in ("load_s", "compute_s"))
    ends = np.cumsum((loads + computes).max(axis=0))
    scale = _WIDTH / ends[-1]
    body = []
    for rank in range(len(blocks)):
        y = _ROW * rank + 6
        body.append(words(0, y + _BAR - 4, f"rank {rank}"))
        for step in range(count):
            begin = ends[step - 1] if step else 0.0
            edges = np.cumsum([begin, loads[rank, step], computes[rank, step]])
            spans = zip(_COLORS.items(), edges, [*edges[1:], ends[step]], strict=True)
            for (name, color), left, right in spans:
                if right > left:
                    label = f"step {step}: {name} {format_duration(1e9 * (right - left))}"
                    body.append(
                        f'<rect x="{_LEFT + left * scale:.2f}" y="{y}" width="{(right - left) * scale:.2f}" '
                        f'height="{_BAR}" fill="{color}"><title>{escape(label)}</title></rect>'
                    )
    bottom = _ROW * len(blocks) + 20
    body.append(words(_LEFT, bottom, "0"))
    body.append(words(_LEFT + _WIDTH, bottom, format_duration(1e9 * ends[-1]), "end"))
    for index, (name, color) in enumerate(_COLORS.items()):
        x = _LEFT + 110 * index
        body.append(f'<rect x="{x}" y="{bottom + 12}" width="12" height="12" fill="{color}"/>')
        body.append(words(x + 17, bottom + 22, name))
    return drawing(bottom + 34, body, "loading and computing over time")


def _gains(found: Bottleneck) -> str:
    ordered = sorted(found.gains.items(), key=lambda item: -item[1])
    rows = [Bar(name, gain, f"{gain:.2f}x") for name, gain in ordered]
    return bars(rows, "how many times faster the epoch would be without each cause", show="{:.2f}x".format)


def _plan_title(plan: Plan) -> str:
    reached = "reaches" if plan.is_reached else "comes nearest to"
    return f"{plan.recommended.setting} {reached} AU {plan.target_au:.0%}"


def _plan_table(plan: Plan) -> str:
    rows = [
        (
            str(item.setting), _percent(item.prediction.au_ratio), f"{item.prediction.samples_per_s or 0:,.0f}",
            format_size(item.memory_bytes), "yes" if item.rewrites else "",
        )
        for item in plan.candidates
    ]  # fmt: skip
    return render_table(("setting", "AU", "samples/s", "memory", "new data set"), rows, numbers=(1, 2, 3))


def _notes(notes: Sequence[str]) -> str:
    return "".join(f"<p>{escape(note)}</p>" for note in notes)


def _percent(ratio: float | None) -> str:
    return "undefined" if ratio is None else f"{ratio:.1%}"
