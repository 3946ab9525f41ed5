"""``windtunnel db prices``: what was measured on this host and is used again."""

from __future__ import annotations

import json
import re
import statistics
import time
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import advise, show
from windtunnel.cli.options import Json

if TYPE_CHECKING:
    from windtunnel.measure import ProfileDatabase
    from windtunnel.measure.database import Measurement

__all__ = ["prices"]


@registry.verb("db prices", source="windtunnel")
def prices(as_json: Json = False) -> None:
    """Example: windtunnel db prices

    List saved measurements by change, with number, age and spread.
    """
    from windtunnel.measure import ProfileDatabase

    database = ProfileDatabase()
    rows = _by_change(database)
    columns = {"change": str, "measurements": "{:,}", "newest": _age, "oldest": _age, "spread": "{:.0%}", "host": str}
    names = ("change", "num_measurements", "newest_age_s", "oldest_age_s", "median_spread_ratio")
    cells = [(*(row[name] for name in names), "this host" if row["is_this_host"] else "other host") for row in rows]
    lines = (Table(columns, cells), f"{len(database):,} measurements in {database.path}")
    show({"schema": "windtunnel.prices/1", "path": database.path, "prices": rows}, lines, as_json=as_json)
    if not as_json:
        advise(
            "next: windtunnel whatif GRAPH --all --fresh measures again; windtunnel db forget --prices CHANGE removes"
        )


def _age(seconds: int) -> str:
    for unit, factor in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= factor:
            return f"{seconds // factor} {unit}"
    return f"{seconds} s"


def _label(one: Measurement) -> str:
    """What was changed, without the list of calls that it was changed in."""
    if one.phase != "update":
        label = one.change.partition(" -> ")[2] or one.change
        return re.sub(r"=\(\(.*?\)\)", "", label.partition(" (method")[0])
    options, frozen, threads, *others = json.loads(one.change)
    parts = [name for name, value in options.items() if value is True]
    parts += ["fewer parameters"] * bool(frozen) + [f"threads={threads}"] * bool(threads)
    parts += ["sparse gradients" if "sparse" in item else "other shapes" for item in others]
    return f"update: {', '.join(parts) or 'as captured'}"


def _by_change(database: ProfileDatabase) -> list[dict[str, Any]]:
    from windtunnel.measure.fingerprint import machine

    groups: dict[tuple[str, bool], list[Measurement]] = {}
    for entry in database:
        label = _label(entry)
        groups.setdefault((label, entry.machine == machine()), []).append(entry)
    now = time.time()
    return [
        {
            "change": label,
            "num_measurements": len(some),
            "newest_age_s": max(0, round(now - max(item.measured_at for item in some))),
            "oldest_age_s": max(0, round(now - min(item.measured_at for item in some))),
            "median_spread_ratio": statistics.median(item.spread_ratio for item in some),
            "is_this_host": is_here,
        }
        for (label, is_here), some in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]
