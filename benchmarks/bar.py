"""One line of JSON per claim, and fair timing for the scripts of this folder.

A script measures ours and the peer in one process tree, interleaved, and ends with ``report(...)``. Nothing here knows
what is measured.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # scripts share the data finder and the references of tests/


def report(name: str, value: float, target: str, holds: bool, **details: object) -> bool:
    """Print the bar as one JSON line; returns whether it holds.

    Parameters
    ----------
    name : str
        Name of the bar, that of the script.
    value : float
        The number that the claim is about.
    target : str
        What it has to be, with its sign and unit: ``">= 40 M tasks/s"``.
    holds : bool
    details
        Spread, parts, sizes, reasons; anything that JSON can hold.
    """
    line = {"bar": name, "value": _rounded(value), "target": target, "holds": bool(holds)}
    print(json.dumps({**line, **{key: _rounded(detail) for key, detail in details.items()}}))
    return bool(holds)


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


@dataclass(frozen=True)
class Timing:
    """Seconds of one contestant over all rounds."""

    seconds: list[float]

    @property
    def median(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        """The fastest round: the one least disturbed by others."""
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """(slowest - fastest) / median."""
        return (max(self.seconds) - min(self.seconds)) / self.median


def interleave(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time each function once per round, in turn, so that a disturbed minute hits all alike; warm-up is dropped.

    With ``clock=time.process_time`` a claim per core counts the time that the core really worked for it.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(warmup + rounds):
        for name, function in functions.items():
            before = clock()
            function()
            if turn >= warmup:
                seconds[name].append(clock() - before)
    return {name: Timing(values) for name, values in seconds.items()}


def peer_arguments(peer: str, description: str | None) -> argparse.Namespace:
    """``--peer-python`` and ``--verbose``, of a script whose peer lives in an environment of its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--peer-python", help=f"python of an environment that has {peer}")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def is_verbose() -> bool:
    """Whether the script was asked for its table (``--verbose``)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--verbose", action="store_true", help="print the table, not only the line")
    return bool(parser.parse_known_args()[0].verbose)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's correlation, tied values at their mean rank."""
    from scipy.stats import spearmanr

    return float(spearmanr(first, second).statistic)


def table(rows: list[Mapping[str, object]]) -> str:
    """Rows as aligned text."""
    if not rows:
        return "(nothing)"
    columns = list(rows[0])
    cells = [columns, *[[str(_rounded(row.get(column, ""))) for column in columns] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
