"""The page about splits of the threads of a processor.

In: for each batch the best split, one instance with all threads, one per thread. Out: one page: inputs answered per
second over the batch, and the splits. Not here: choosing them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from windtunnel.reports.charts import escape
from windtunnel.reports.curves import Curve, curves
from windtunnel.reports.page import _page, write_text
from windtunnel.reports.sections import Section, render_table
from windtunnel.systems.serving.model import Split
from windtunnel.units import format_duration

__all__ = ["serving_page"]

_WORDS = {"best": "best split", "one": "one instance", "thin": "one instance per thread"}


def serving_page(
    name: str,
    num_threads: int,
    plans: Sequence[Mapping[str, Split | None]],
    path: str | Path,
    *,
    overwrite: bool = False,
) -> Path:
    """Write the page.

    Parameters
    ----------
    name : str
        Of the profile.
    num_threads : int
        Of the server.
    plans : sequence of mappings
        By batch: ``best``, ``one`` and ``thin``; None where the profile has no such instances.
    path : path
    overwrite : bool

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    title = f"{name}: {num_threads} threads"
    pairs = [(plan["one"], plan["best"]) for plan in plans]
    gains = [whole.latency_ns / best.latency_ns for whole, best in pairs if whole is not None and best is not None]
    sections = [
        Section(
            "rate",
            "Rate",
            f"Up to {max(gains):.2f} times the rate of one instance" if gains else "Inputs answered per second",
            _rates(plans),
        ),
        Section("splits", "Splits", "Instances <threads,batch> with the lowest latency", _table(plans)),
    ]
    return write_text(Path(path), _page(title, f"<h1>{escape(title)}</h1>", sections), overwrite=overwrite)


def _rates(plans: Sequence[Mapping[str, Split | None]]) -> str:
    lines = []
    for name, words in _WORDS.items():
        splits = sorted((split for plan in plans if (split := plan[name]) is not None), key=lambda split: split.batch)
        if splits:
            lines.append(Curve(words, [(split.batch, 1e9 * split.batch / split.latency_ns) for split in splits]))
    return curves(lines, "inputs per second over the batch", x_label="batch size", y_label="inputs per second")


def _table(plans: Sequence[Mapping[str, Split | None]]) -> str:
    rows = []
    for plan in plans:
        best = plan["best"]
        assert best is not None
        shown = [format_duration(item.latency_ns) if item is not None else "" for item in map(plan.get, _WORDS)]
        rows.append((f"{best.batch:,}", escape(str(best)), *shown))
    return render_table(("batch", "instances", *_WORDS.values()), rows, numbers=(0, 2, 3, 4))
