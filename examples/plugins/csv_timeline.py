"""A trace reader: timelines of host threads and GPU streams as CSV.

In: a CSV file with a row per event, ``category,name,start_ns,duration_ns,thread,stream,correlation``; ``stream`` and
``correlation`` may be empty. Out: a graph. The reader fills ``Events``; what the events mean (launches, order of a
stream, waits) is found by ``build_graph``, as for every other format.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from windtunnel import registry
from windtunnel.errors import TraceError
from windtunnel.graph import Graph
from windtunnel.sources.timeline import Category, Events, build_graph
from windtunnel.sources.timeline.events import MISSING, Stream

HEADER = ["category", "name", "start_ns", "duration_ns", "thread", "stream", "correlation"]
CATEGORIES = {category.name.lower(): category for category in Category if category != Category.SYNC}


def is_csv_timeline(path: Path) -> bool:
    """Whether the file begins with the header of this format."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.readline().strip() == ",".join(HEADER).encode()


@registry.source("csv-timeline", source="examples/plugins/csv_timeline.py", sniff=is_csv_timeline)
def load_csv_timeline(path: str | Path) -> Graph:
    """Load a timeline from a CSV file with a row per event."""
    rows = []
    with Path(path).open(newline="", encoding="utf-8", errors="replace") as lines:
        for position, fields in enumerate(csv.reader(lines)):
            if position == 0:  # the header
                continue
            try:
                row = dict(zip(HEADER, fields, strict=True))
                rows.append(
                    (CATEGORIES[row["category"]], row["name"], *(int(row[key] or MISSING) for key in HEADER[2:]))
                )
            except (KeyError, ValueError) as error:
                fix = f"categories are {', '.join(CATEGORIES)}; times are whole ns"
                raise TraceError(f"not an event: {fields}", where=f"{path}: line {position + 1}", fix=fix) from error
    category, name, start_ns, duration_ns, thread, stream, correlation = zip(*rows, strict=True) if rows else [[]] * 7
    names, streams = ("", *dict.fromkeys(name)), tuple(dict.fromkeys(n for n in stream if n != MISSING))
    threads = tuple(dict.fromkeys(thread))
    events = Events.of(
        category, start_ns, duration_ns, [names.index(text) for text in name], names,
        path=str(path), source="csv-timeline",
        thread=np.array([threads.index(value) for value in thread], np.int32), threads=tuple((0, n) for n in threads),
        stream=np.array([streams.index(n) if n != MISSING else -1 for n in stream], np.int32),
        streams=tuple(Stream("0", str(n)) for n in streams), correlation=np.array(correlation, np.int64),
    )  # fmt: skip
    return build_graph(events)
