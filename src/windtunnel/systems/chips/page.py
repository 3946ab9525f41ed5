"""Chips chosen with their plans as a page: what each square millimeter brings.

In: answers of the search. Out: one page: the front by area, what choosing only one of chip and plan finds, a table of
the front. Not here: searching.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from windtunnel.reports.charts import WIDTH, Frame, drawing, escape, words
from windtunnel.reports.page import _page, write_text
from windtunnel.reports.sections import Section, render_table
from windtunnel.systems.chips.answer import Answer, chip_name
from windtunnel.systems.chips.search import Choice

__all__ = ["codesign_page"]

_HEIGHT, _LEFT, _BOTTOM, _TOP = 320.0, 70.0, 40.0, 16.0
_MARKS = {
    "given": ("#333333", "given chip and plan"),
    "chip": ("#e69f00", "best chip for that plan"),
    "plan": ("#56b4e9", "best plan on that chip"),
    "both": ("#d55e00", "both together"),
}
_MM2 = 1e6  # square micrometers


def codesign_page(answers: Sequence[Answer], path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the page.

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    title = "Chip and plan: " + ", ".join(answer.name for answer in answers)
    sections = [section for answer in answers for section in _sections(answer)]
    return write_text(Path(path), _page(title, f"<h1>{escape(title)}</h1>", sections), overwrite=overwrite)


def _sections(answer: Answer) -> list[Section]:
    result = [Section(f"{answer.name}-front", answer.name, _title(answer), _picture(answer))]
    if answer.codesign is not None:
        result.append(Section(f"{answer.name}-chips", f"{answer.name}: chips", "Pareto-optimal chips",
                             _table(answer)))  # fmt: skip
    return result


def _title(answer: Answer) -> str:
    gain = answer.gain()
    if gain == gain:
        return f"Chip and plan together yield {gain:.2f} times the given ones"
    return f"{answer.name}: what was found"


def _picture(answer: Answer) -> str:
    """Throughput over area, both from zero: the front as steps, each search as a mark."""
    front = answer.codesign.front if answer.codesign is not None else ()
    shown = [*front, *answer.choices.values()]
    max_x = 1.05 * max(entry.area_um2 for entry in shown)
    max_y = 1.1 * max(entry.samples_per_s for entry in shown)

    frame = Frame(_LEFT, _TOP, _HEIGHT - _BOTTOM, WIDTH - 20)

    def position(choice: Choice) -> tuple[float, float]:
        return frame.x(choice.area_um2 / max_x), frame.y(choice.samples_per_s / max_y)

    lines = frame.axes([f"{step / 4 * max_x / _MM2:,.0f}" for step in range(5)],
                       [f"{step / 4 * max_y:,.0f}" for step in range(5)])  # fmt: skip
    lines.append(words(frame.right, frame.floor + 31, "area of a chip, mm2", "end"))
    lines.append(words(4, _TOP - 4, "sequences per second, all devices"))
    path = ""
    for x, y in map(position, front):
        path += f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f},{_HEIGHT - _BOTTOM:.1f}V{y:.1f}"
    lines.append(f'<path d="{path}" fill="none" stroke="#0072b2" stroke-width="1.6" stroke-dasharray="5 3"/>')
    for item in front:
        x, y = position(item)
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="white" stroke="#0072b2">'
                     f"<title>{escape(_words(answer, item, 'both'))}</title></circle>")  # fmt: skip
    for index, (part, item) in enumerate(answer.choices.items()):
        color, label = _MARKS[part]
        x, y = position(item)
        lines.append(f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" fill="white" stroke="{color}" '
                     f'stroke-width="2.5"><title>{escape(_words(answer, item, part))}</title></rect>')  # fmt: skip
        key = _TOP + 16 * index
        lines.append(f'<rect x="{_LEFT + 12}" y="{key}" width="10" height="10" fill="white" stroke="{color}" '
                     f'stroke-width="2.5"/><text x="{_LEFT + 28}" y="{key + 9}" font-size="12">'
                     f"{escape(label)}: {item.samples_per_s:,.1f}</text>")  # fmt: skip
    note = "<p>Predicted, so hollow. The dashed line is the most that any chip of at most so much area yields.</p>"
    return drawing(_HEIGHT, lines, "throughput over area") + note


def _words(answer: Answer, choice: Choice, part: str) -> str:
    chip = chip_name(answer.templates[part], choice.chip)
    area, num_stages = f"{choice.area_um2 / _MM2:.1f} mm2", len(choice.plan.stages)
    return f"{chip}, {area}: {choice.samples_per_s:,.1f} per second, {num_stages} stages"


def _table(answer: Answer) -> str:
    assert answer.codesign is not None
    rows = [
        (
            chip_name(answer.templates["both"], item.chip),
            f"{item.area_um2 / _MM2:.1f}",
            f"{item.samples_per_s:,.1f}",
            f"{item.energy_j:,.3g}",
            f"{item.plan.num_pipelines} x {len(item.plan.stages)}",
            ", ".join(str(degree) for degree in sorted({stage.degree for stage in item.plan.stages})),
            str(item.setting.microbatch),
            "recomputed" if item.setting.is_recomputed else "stashed",
        )
        for item in answer.codesign.front
    ]
    head = ("chip", "mm2", "samples/s", "J/sample", "pipelines x stages", "tensor degree", "microbatch", "activations")
    return render_table(head, rows, numbers=(1, 2, 3))
