"""Ten numbers in words for the first page, each from the bar that measured it.

In: rows of ``docs/receipts/bars.json``. Out: lines of Markdown. A sentence takes its numbers from its bar alone, so
that it cannot say what nothing showed. Not here: all bars (``tables``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["HEADLINES", "Headline", "headlines", "percent"]

Row = Mapping[str, Any]


def percent(ratio: float) -> str:
    """Two digits of a ratio, as people say it.

    Examples
    --------
    >>> percent(0.049342), percent(0.13029)
    ('4.9 %', '13 %')
    """
    share = 100 * ratio
    return f"{share:.2g} %" if abs(share) < 10 else f"{share:.0f} %"


@dataclass(frozen=True)
class Headline:
    """A sentence about one bar."""

    bar: str
    words: Callable[[Row], str]


HEADLINES = (
    Headline(
        "whatif_error",
        lambda row: (
            f"Predicted gains are **{percent(row['value'])}** off in the median and {percent(row['p90'])} at the 90th "
            f"percentile, over {row['num_pairs']} changes that were really run on {row['num_models']} models."
        ),
    ),
    Headline(
        "capture_replay_error",
        lambda row: (
            f"A captured step, replayed, is **{percent(row['value'])}** off the measured one in the median, "
            f"{percent(row['worst'])} at worst."
        ),
    ),
    Headline(
        "suite_fidelity",
        lambda row: (
            f"Over the {row['num_workloads']} models of the suite a replay is **{percent(row['value'])}** off in the "
            f"median, {percent(row['replay_worst'])} at worst."
        ),
    ),
    Headline(
        "dpro_replay_error",
        lambda row: (
            f"Jobs of two to four processes over links of three speeds are replayed **{percent(row['value'])}** off in "
            f"the median, {percent(row['worst'])} at worst."
        ),
    ),
    Headline(
        "replay_speed",
        lambda row: (
            f"**{row['value']:.0f} million tasks per second** are replayed, "
            f"{row['static_mtasks_per_s'] / row['rustworkx_mtasks_per_s']:.0f} times what a pass of rustworkx does."
        ),
    ),
    Headline(
        "replay_exact",
        lambda row: (
            f"Of {row['graphs_of_traces']} graphs of real traces **{row['value']:.0f}** are replayed otherwise than by "
            "the slow, obvious reference."
        ),
    ),
    Headline(
        "memory_fake",
        lambda row: (
            f"Peak memory is known before a job runs, within **{percent(row['value'])}** for each of "
            f"{row['num_workloads']} models."
        ),
    ),
    Headline(
        "unseen_gpus_models",
        lambda row: (
            f"Networks on a GPU of which nothing was learned are **{percent(row['value'] / 100)}** off in the median "
            f"over {len(row['by_device'])} GPUs, {percent(row['worst_percent'] / 100)} at worst."
        ),
    ),
    Headline(
        "placement_property",
        lambda row: (
            f"Of {row['num_graphs']} random placement problems **{row['value']:.0f}** are answered otherwise than by "
            "trying every plan."
        ),
    ),
    Headline(
        "placement_flown",
        lambda row: (
            f"Pipelines that really trained took **{percent(row['value'])}** more or less than planned in the "
            f"median of {row['num_splits']} splits."
        ),
    ),
)


def headlines(rows: list[Row]) -> list[str]:
    """One line per headline whose bar was measured, those that fail marked, and how many of all bars fail."""
    by_name = {row["bar"]: row for row in rows}
    lines = []
    for one in HEADLINES:
        row = by_name.get(one.bar)
        if row is not None:
            lines.append(f"- {one.words(row)}{'' if row['holds'] else ' **This bar fails.**'}")
    failing = sum(not row["holds"] for row in rows)
    lines.append("")
    lines.append(
        f"{failing} of all {len(rows)} bars fail now. [All of them](docs/measured.md), with targets, commands, dates "
        "and machines; `make bars` runs them."
    )
    return lines
