"""Defects made by hand, each one a mistake that would matter; the list is ``planted.toml`` beside this file.

In: the folder of the sources. Out: ``Mutant`` records with why each matters. Not here: whether a test sees it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from benchmarks.defects.population import Mutant

__all__ = ["planted"]

RECORDS = Path(__file__).with_suffix(".toml")


def planted(source: Path) -> list[Mutant]:
    """Every defect of the list, as a file with one change.

    Raises
    ------
    SystemExit
        The old text of a defect is not there exactly once: the list has to follow the sources.
    """
    return [_mutant(record, source) for record in tomllib.loads(RECORDS.read_text())["defect"]]


def _mutant(record: dict[str, str], source: Path) -> Mutant:
    path = source / record["file"]
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    old, new = record["old"].strip("\n"), record["new"].strip("\n")
    if text.count(old) != 1:
        raise SystemExit(
            f"error: the planted defect '{record['why']}' finds its old text {text.count(old)} times\n"
            f"  where: {record['file']}: {old.strip().splitlines()[0]}\n"
            f"  fix:   bring its record in {RECORDS.name} up to date with the file"
        )
    same = 0
    while old.splitlines()[same : same + 1] == new.splitlines()[same : same + 1]:
        same += 1
    first = text[: text.index(old)].count("\n") + 1 + min(same, len(old.splitlines()) - 1)
    last = text[: text.index(old)].count("\n") + len(old.splitlines())
    return Mutant(record["file"], first, last, record["why"], text.replace(old, new))
