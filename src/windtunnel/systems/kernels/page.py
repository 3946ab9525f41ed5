"""An evolved kernel as a page: front, how its edits need one another, what they do, the diff.

In: the document of a search. Out: one page. Not here: searching.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windtunnel.reports.charts import WIDTH, Frame, drawing, escape, words
from windtunnel.reports.page import _page, write_text
from windtunnel.reports.sections import Section, render_table

__all__ = ["kernel_page"]

_LEFT, _TOP, _BOTTOM, _HEIGHT, _ROW = 90.0, 24.0, 44.0, 300.0, 22.0
_MAX_ROWS = 40
_SOLID, _FAILED = "#0072b2", "#d55e00"


def kernel_page(document: Mapping[str, Any], path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the page.

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    name = str(document["kernel"])
    if not document["edits"]:
        title = f"{document['kernel']}: the original stays"
    else:
        low, value, high = (document[name] for name in ("speedup_low", "speedup", "speedup_high"))
        title = f"{document['kernel']}: {value:.3f}x ({low:.3f}-{high:.3f}), {document['label']}"
    faithful = sum(bool(gene["is_faithful"]) for gene in document["genes"])
    points = [
        (item["time_ratio"], item["error"] or 0.0) for item in document["front"] if item["time_ratio"] is not None
    ]
    sections = [
        Section(
            "edits",
            "edits",
            f"{faithful} of {len(document['genes'])} edits keep the answer of every input",
            _edits(document),
        ),
        Section(
            "front",
            "front",
            "Pareto front of run time and error",
            _scatter(points, "time over the original's", "largest relative error"),
        ),
        Section("history", "generations", "Run time of the fastest candidate by generation", _history(document)),
        Section("ladder", "ladder", _ladder_title(document), _ladder(document)),
        Section("diff", "diff", "Changes to the module, before the last compiler passes", _diff(document)),
    ]
    return write_text(Path(path), _page(name, f"<h1>{escape(title)}</h1>", sections), overwrite=overwrite)


def _edits(document: Mapping[str, Any]) -> str:
    rows = [
        ("yes" if gene["is_faithful"] else "no", escape(gene["rests_on"]), escape(gene["words"]),
         f"<code>{escape('; '.join(' '.join(item) for item in gene['edit']))}</code>")
        for gene in document["genes"]
    ]  # fmt: skip
    table = render_table(("faithful", "rests on", "what it does", "edit"), rows) if rows else ""
    counts = ", ".join(f"{number} {escape(kind)}" for kind, number in document["counts"].items())
    return f"{table}<p>Candidates: {counts}. Discarded winners: {document['num_discarded']}.</p>"


def _history(document: Mapping[str, Any]) -> str:
    points = [(float(item["generation"]), item["time_ratio"]) for item in document["history"] if item["time_ratio"]]
    return _scatter(points, "generation", "time over the original's", is_line=True)


def _scatter(points: Sequence[tuple[float, float]], across: str, up: str, *, is_line: bool = False) -> str:
    if not points:
        return "<p>Nothing was measured.</p>"
    max_x = max(1e-12, 1.05 * max(x for x, _ in points))
    max_y = max(1e-12, 1.1 * max(y for _, y in points))
    frame = Frame(_LEFT, _TOP, _HEIGHT - _BOTTOM, WIDTH - 20)
    lines = frame.axes(*([f"{step / 4 * most:.3g}" for step in range(5)] for most in (max_x, max_y)))
    indices = [(frame.x(x / max_x), frame.y(y / max_y)) for x, y in points]
    if is_line:
        path = "L".join(f"{x:.1f},{y:.1f}" for x, y in indices)
        lines.append(f'<path d="M{path}" fill="none" stroke="{_SOLID}" stroke-width="1.6"/>')
    for point, (x, y) in zip(points, indices, strict=True):
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{_SOLID}">'
                     f"<title>{point[0]:.4g}, {point[1]:.4g}</title></circle>")  # fmt: skip
    lines.append(words(frame.right, frame.floor + 33, across, "end"))
    lines.append(words(4, _TOP - 8, up))
    return drawing(_HEIGHT, lines, f"{up} over {across}")


def _ladder_title(document: Mapping[str, Any]) -> str:
    stones, cluster = len(document["stepping_stones"]), len(document["cluster"])
    if not cluster:
        return "Every edit helps alone"
    return f"{cluster} edits work together; {stones} of them gain nothing alone"


def _ladder(document: Mapping[str, Any]) -> str:
    """Bars of the speed-up of each subset of the edits that work together, on top of the independent ones."""
    result = [entry for entry in document["ladder"] if entry["edits"] or document["ladder"]]
    if not result:
        return "<p>There is nothing to tell apart.</p>"
    rows = sorted(result, key=lambda row: (len(row["edits"]), row["edits"]))[:_MAX_ROWS]
    speeds = [1 / row["time_ratio"] if row["time_ratio"] else 0.0 for row in rows]
    most, lines = max([1.0, *speeds]) * 1.05, []
    for index, (item, speed) in enumerate(zip(rows, speeds, strict=True)):
        y = index * _ROW + 4
        label = "+".join(str(number + 1) for number in item["edits"]) or "independent only"
        lines.append(f'<text x="{_LEFT + 60}" y="{y + 13}" font-size="12" text-anchor="end">{label}</text>')
        if item["kind"] == "ok":
            width = (WIDTH - _LEFT - 160) * speed / most
            lines.append(f'<rect x="{_LEFT + 66}" y="{y}" width="{width:.1f}" height="{_ROW - 6}" fill="{_SOLID}"/>'
                         f'<text x="{_LEFT + 72 + width:.1f}" y="{y + 13}">{speed:.3f}x</text>')  # fmt: skip
        else:
            lines.append(f'<text x="{_LEFT + 66}" y="{y + 13}" font-size="12" fill="{_FAILED}">'
                         f"{escape(item['kind'])}</text>")  # fmt: skip
    height = len(rows) * _ROW + 8
    keys = "".join(f"<li>{escape(_edit(entry))}</li>" for entry in document["cluster"])
    more = f"<p>{len(result) - len(rows)} more are left out.</p>" if len(result) > len(rows) else ""
    return (f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="speed-up of subsets of edits">'
            f"{''.join(lines)}</svg><ol>{keys}</ol>{more}")  # fmt: skip


def _edit(edit: Sequence[Sequence[str]]) -> str:
    return "; ".join(" ".join(item) for item in edit)


def _diff(document: Mapping[str, Any]) -> str:
    lines = difflib.unified_diff(
        document["module"].splitlines(),
        document["changed_module"].splitlines(),
        "original",
        "evolved",
        lineterm="",
        n=2,
    )
    text = "\n".join(escape(line) for line in lines)
    return f'<pre class="scroll">{text or "no difference"}</pre>'
