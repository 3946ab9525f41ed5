"""The section of the report about what would be faster.

In: answers (predicted) and receipts (measured). Out: a ``Section``: predicted hollow, measured solid, intervals drawn,
reasons of what does not apply, the edits behind each prediction. Not here: predicting, measuring.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from windtunnel.flights import Receipt
from windtunnel.flights.receipt import conditions_of
from windtunnel.reports.charts import Mark, escape, forest
from windtunnel.reports.sections import Section, render_table
from windtunnel.units import format_duration, format_ratio, format_size
from windtunnel.whatifs import Answer
from windtunnel.whatifs.answer import Status

__all__ = ["flights", "safest_change", "what_ifs"]

_SUMMARIES = {
    Status.IN_EFFECT: "are in effect already",
    Status.NOT_APPLICABLE: "have nothing to act on here, and why",
    Status.IMPLAUSIBLE: "break a physical limit: windtunnel made a mistake, please report it",
}
MAX_MARKS = 15
MAX_RECEIPTS = 100


def what_ifs(answers: Sequence[Answer], receipts: Sequence[Receipt]) -> Section | None:
    """Predictions, best first, each next to its flight if it was verified."""
    usable = [answer for answer in answers if answer.is_applicable]
    if not answers:
        return None
    conditions = conditions_of(answers[0].baseline.graph)
    flown = {_key(receipt.whatif, receipt.parameters, receipt.conditions): receipt for receipt in receipts}
    shown = [(answer, flown.get(_key(answer.name, answer.given, conditions))) for answer in usable[:MAX_MARKS]]
    marks = [_mark(answer, receipt) for answer, receipt in shown]
    body = [
        f"<figure>{forest(marks, 'speed-up of each what-if')}<figcaption>Hollow: predicted from this graph alone, with "
        "the interval that past flights give it, where there are enough. Solid: measured, interleaved with the "
        "baseline, with its 90 % interval.</figcaption></figure>"
        if marks
        else "",
        _table(shown),
        _more(usable[MAX_MARKS:]),
        _refusals([answer for answer in answers if not answer.is_applicable]),
        _edits([answer for answer, _ in shown]),
    ]
    return Section("whatifs", "what if", _title(shown), "".join(body))


def safest_change(answers: Sequence[Answer]) -> str:
    """The largest gain whose whole 90 % interval is above 1, in a sentence; empty where there is none."""
    sure = [(answer.span[0], answer) for answer in answers if answer.is_applicable and answer.span is not None]
    low, best = max(sure, key=lambda pair: pair[0], default=(0.0, None))
    if best is None or low <= 1.0 or best.span is None:
        return ""
    return f"best safe change: {best.request}, {best.speedup:.2f}x ({best.span[0]:.2f}-{best.span[1]:.2f}, 90 %)"


def _key(whatif: str, parameters: Mapping[str, object], conditions: Mapping[str, object]) -> str:
    """A receipt under other conditions, such as a slower link, is no flight of this job."""
    return f"{whatif} {sorted(parameters.items())} {sorted(conditions.items())}"


def _mark(answer: Answer, receipt: Receipt | None) -> Mark:
    measured = (math.nan, math.nan, math.nan)
    if receipt is not None:
        measured = (receipt.measured, *receipt.measured_interval)
    low, high = answer.span or (math.nan, math.nan)
    if answer.is_flown:  # the interval is that of the flights, which are drawn as measured
        low, high = math.nan, math.nan
    return Mark(str(answer.request), answer.graph_speedup, low, high, *measured)


def _title(shown: Sequence[tuple[Answer, Receipt | None]]) -> str:
    gains = [answer for answer, _ in shown if answer.speedup > 1.005]
    if not gains:
        return "No change that is known here would make it faster"
    measured = [(receipt.measured, answer) for answer, receipt in shown if receipt is not None]
    best = max(measured, key=lambda pair: pair[0], default=None)
    if best is not None and best[0] > 1.005:
        return f"{best[1].request} really makes it {best[0]:.2f} times as fast (predicted {best[1].graph_speedup:.2f})"
    return f"{gains[0].request} would make it {gains[0].speedup:.2f} times as fast"


def _table(shown: Sequence[tuple[Answer, Receipt | None]]) -> str:
    rows = []
    for answer, receipt in shown:
        span = (
            ""
            if answer.is_flown
            else "no receipt backs it"
            if answer.span is None
            else "{:.2f}-{:.2f}".format(*answer.span)
        )
        flight = "not flown" if receipt is None else f"{receipt.measured:.2f}x ({receipt.error_ratio:+.1%} off)"
        memory = "" if answer.peak_bytes is None else format_size(answer.peak_bytes)
        # Who priced the new critical path, the largest two.
        shares = list(answer.cost_shares.items())[:2]
        cells = (
            f"{answer.graph_speedup:.2f}x",
            span,
            format_duration(answer.predicted_ns),
            memory,
            flight,
            ", ".join(f"{source} {format_ratio(share)}" for source, share in shares),
        )
        rows.append((escape(str(answer.request), 90), *map(escape, cells)))
    head = ("what if", "predicted", "interval", "iteration", "peak memory", "measured", "priced by")
    return render_table(head, rows, numbers=(1, 3, 4)) if rows else ""


def _more(answers: Sequence[Answer]) -> str:
    if not answers:
        return ""
    items = "".join(f"<li>{escape(str(answer))}</li>" for answer in answers)
    return f"<details><summary>{len(answers)} more with smaller gains</summary><ul>{items}</ul></details>"


def _refusals(answers: Sequence[Answer]) -> str:
    if not answers:
        return ""
    return "".join(
        f"<details><summary>{len(group)} {_SUMMARIES[status]}</summary><ul>{_items(group)}</ul></details>"
        for status in _SUMMARIES
        if (group := [answer for answer in answers if answer.status is status])
    )


def _items(answers: Sequence[Answer]) -> str:
    return "".join(f"<li><b>{escape(str(answer.request))}</b>: {escape(answer.reason)}</li>" for answer in answers)


def _edits(answers: Sequence[Answer]) -> str:
    """What each prediction did to the graph."""
    items = []
    for answer in answers:
        before = len(answer.baseline.graph.edits)
        edits = answer.graph.edits[before:] if answer.graph is not None else ()
        steps = [step for edit in edits for step in (edit, *edit.steps)]
        lines = "<br>".join(f"<code>{escape(str(step), 300)}</code>" for step in steps)
        items.append(f"<li><b>{escape(str(answer.request), 90)}</b><br>{lines}</li>")
    if not items:
        return ""
    return f"<details><summary>the edits behind each prediction</summary><ul>{''.join(items)}</ul></details>"


def _span(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.2f}-{interval[1]:.2f}"


def flights(receipts: Sequence[Receipt], *, num_others: int = 0) -> Section | None:
    """Every prediction that was really run on this model, the latest first, the bad ones too."""
    if not receipts:
        return None
    errors = sorted(abs(receipt.error_ratio) for receipt in receipts)
    median = errors[len(errors) // 2]
    rows = [
        (
            escape(receipt.whatif, 90),
            escape(receipt.target, 60),
            f"{receipt.predicted:.2f}x",
            f"{receipt.measured:.2f}x ({_span(receipt.measured_interval)})",
            f"{receipt.error_ratio:+.1%}",
            f"{receipt.num_rounds}",
            escape(receipt.date[:10]),
        )
        for receipt in list(receipts)[::-1][:MAX_RECEIPTS]
    ]
    head = ("what if", "flown on", "predicted", "measured", "error", "rounds", "date")
    count = len(receipts)
    title = (
        f"{count} prediction{'s were' if count > 1 else ' was'} really run: the median is off by {format_ratio(median)}"
    )
    others = f'<p class="note">{num_others} flights of other models are in the ledger, too.</p>' if num_others else ""
    return Section("receipts", "receipts", title, render_table(head, rows, numbers=(2, 3, 4, 5)) + others)
