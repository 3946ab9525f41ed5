"""State of a search, generation by generation, from which it can resume.

In: populations with the state of the generator. Out: a folder with one file per generation, each written whole and
then renamed; the last one that is whole. Not here: searching (``search``).
Source: forms of a population file of GEVO.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel.base.documents import json_text
from windtunnel.base.outputs import whole
from windtunnel.base.reading import ReadLimit, read_json
from windtunnel.errors import InputError
from windtunnel.systems.kernels.edits import from_json, to_json
from windtunnel.systems.kernels.model import Candidate, Evaluation

__all__ = ["Page", "last_page", "write_page"]

_VERSION = 1


@dataclass(frozen=True)
class Page:
    """One generation.

    Attributes
    ----------
    generation : int
    population : tuple of Candidate
    settings : dict
        Of the search; a folder belongs to one.
    counts : dict
        What became of candidates up to here.
    history : tuple of dict
        Best time and error of each generation.
    """

    generation: int
    population: tuple[Candidate, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    history: tuple[dict[str, Any], ...] = ()


def write_page(folder: Path, page: Page) -> Path:
    """Write a generation: a population file that other tools read, and the state that resuming needs.

    Raises
    ------
    InputError
        The folder cannot be written.
    """
    path = folder / f"generation-{page.generation:04d}.json"
    rows = [
        {"edits": to_json(item.edits), "fitness": list(item.evaluation.fitness), "evaluation": _evaluation(item)}
        for item in page.population
    ]
    document = {
        "version": _VERSION, "generation": page.generation, "settings": page.settings, "counts": page.counts,
        "history": list(page.history), "population": rows,
    }  # fmt: skip
    with whole(path) as scratch:
        scratch.write_text(json_text(document, indent=1), encoding="utf-8")
    return path


def _evaluation(candidate: Candidate) -> dict[str, Any]:
    result = candidate.evaluation
    return {"kind": result.kind, "is_exact": result.is_exact, "digest": result.digest, "times_ns": result.times_ns}


def last_page(folder: Path) -> Page | None:
    """The latest generation in a folder; None where there is none.

    Raises
    ------
    InputError
        It cannot be read.
    """
    files = sorted(folder.glob("generation-*.json"))
    if not files:
        return None
    document = read_json(ReadLimit(files[-1]))
    try:
        if document["version"] != _VERSION:
            raise InputError(f"written by another version ({document['version']})", where=str(files[-1]))
        population = tuple(_candidate(row, str(files[-1])) for row in document["population"])
        return Page(
            int(document["generation"]), population, document["settings"], document["counts"],
            tuple(document["history"]),
        )  # fmt: skip
    except (KeyError, TypeError) as error:
        raise InputError(f"this is no generation of a search: {error}", where=str(files[-1])) from error


def _candidate(row: dict[str, Any], where: str) -> Candidate:
    ratio, error = ((math.inf if value is None else float(value)) for value in row["fitness"])
    more = row.get("evaluation", {})
    times = tuple((float(before), float(after)) for before, after in more.get("times_ns", ()))
    result = Evaluation(
        more.get("kind", "ok"), ratio, error, is_exact=bool(more.get("is_exact")), digest=more.get("digest", ""),
        times_ns=times,
    )  # fmt: skip
    return Candidate(from_json(row["edits"], where), result)
