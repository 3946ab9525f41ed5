"""One self-contained page that works offline.

In: a graph, and what was predicted and measured of it. Out: an HTML file with its own charts and timeline, no address
of any other place in it. A content policy lets only the page's own scripts run, by their hashes; what a trace says
reaches the page as escaped text or inside the timeline's packed block.
"""

from __future__ import annotations

import base64
import hashlib
import string
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from windtunnel.base.outputs import whole
from windtunnel.errors import InputError
from windtunnel.flights import Receipt, model_fingerprint
from windtunnel.graph import Graph
from windtunnel.reports import sections
from windtunnel.reports.answers import flights, safest_change, what_ifs
from windtunnel.reports.charts import escape
from windtunnel.reports.explanation import explain
from windtunnel.reports.memory import memory
from windtunnel.reports.sections import Section
from windtunnel.simulate import Timeline, replay
from windtunnel.whatifs import Answer

__all__ = ["report", "write_text"]

_SCRIPTS = ("timeline_data.js", "timeline_view.js", "timeline.js")


def report(
    graph: Graph,
    path: str | Path,
    *,
    answers: Sequence[Answer] = (),
    receipts: Sequence[Receipt] = (),
    title: str = "",
    timeline: Timeline | None = None,
    more: Sequence[Section] = (),
    overwrite: bool = False,
) -> Path:
    """Write the report of a graph as one HTML file.

    Parameters
    ----------
    graph : Graph
    path : str or Path
    answers : sequence of Answer
        What-ifs with predicted speed-ups, shown hollow.
    receipts : sequence of Receipt
        Flights; those of this graph's model are shown as solid marks next to their predictions.
    title : str
        Name of the job; that of the file if empty.
    timeline : Timeline
        The graph's replay, if there is one already.
    more : sequence of Section
        Sections for which more was measured than the graph says, such as ``utilization_section``.
    overwrite : bool
        Replace a file that is there.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    timeline = replay(graph) if timeline is None else timeline
    explanation = explain(graph, timeline)
    own = [receipt for receipt in receipts if receipt.model_fingerprint in ("", model_fingerprint(graph))]
    name = title or Path(path).name.removesuffix(".html").removesuffix(".report")
    result = [
        sections.device_use(explanation.device),
        sections.where_time_goes(explanation),
        sections.critical_path(explanation),
        sections.timeline_view(graph, timeline),
        memory(timeline),
        *more,
        what_ifs(answers, own),
        flights(own, num_others=len(receipts) - len(own)),
        sections.edits(graph),
    ]
    heading = f"{name}: {explanation.time_and_spread[0]} per iteration"
    first = [explanation.circumstances, str(explanation.speed or ""), explanation.bottleneck, safest_change(answers)]
    lead = f'<p class="lead">{"<br>".join(escape(line) for line in first if line)}</p>'
    head = f"<h1>{escape(heading)}</h1>{lead}{sections.facts(explanation)}"
    return write_text(Path(path), _page(name, head, [section for section in result if section]), overwrite=overwrite)


def _page(title: str, head: str, sections: Sequence[Section]) -> str:
    is_drawn = any("timeline-data" in section.body for section in sections)
    scripts = [_asset(name) for name in _SCRIPTS] if is_drawn else []
    values = {
        "title": escape(title),
        "style": _asset("report.css"),
        "links": "".join(f'<a href="#{section.anchor}">{section.menu}</a>' for section in sections),
        "header": head,
        "sections": "\n".join(
            f'<section id="{section.anchor}"><h2>{escape(section.title)}</h2>{section.body}</section>'
            for section in sections
        ),
        "footer": "Written by windtunnel. Predicted is hollow, measured is solid, intervals are drawn where known.",
        "script_hashes": " ".join(f"'sha256-{_digest(script)}'" for script in scripts) or "'none'",
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    return string.Template(_asset("page.html")).substitute(values)


def _asset(name: str) -> str:
    return (resources.files("windtunnel.reports") / "assets" / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def write_text(path: Path, text: str, *, overwrite: bool = False) -> Path:
    """Write a file atomically: to a temporary file in the same folder, which is then renamed.

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False, or its folder cannot be written.
    """
    if path.exists() and not overwrite:
        raise InputError(f"{path} is there already", fix="choose another name, or overwrite it with --force")
    with whole(path) as scratch:
        scratch.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path
