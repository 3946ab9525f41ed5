"""What leads from the times of one day to those of another.

In: a set that was measured earlier on a host of this kind, and a bench here. Out: by which factor each target is slower
or faster than it was then, found by measuring some of the set's programs again. A virtual machine's clock is another
one tomorrow; without this, two halves of a set would differ for no reason that a program shows. Not here: what is added
to the set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from windtunnel.errors import FlightError, InputError
from windtunnel.systems.tensor_programs.program_set import ProgramSet
from windtunnel.systems.tensor_programs.run.batch import Bench, Member
from windtunnel.systems.tensor_programs.run.pages import OTHERS

__all__ = ["Bridge", "bridge"]

NUM_PROGRAMS, BATCH_SIZE = 192, 48
LEAST_TIMES = 24
MAX_NOISY = 20
MAX_SPREAD = 0.10


@dataclass(frozen=True)
class Bridge:
    """Seconds of the earlier set over those of now.

    Parameters
    ----------
    factor : tuple of float
        Median by target.
    spread : tuple of float
        Half the distance between the quartiles of the factor's logarithm, by target.
    num_times : tuple of int
        Programs that both have a time of, by target.
    """

    factor: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()
    num_times: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For a set's notes."""
        return {"factor": list(self.factor), "spread": list(self.spread), "num_times": list(self.num_times)}

    def best_of(self, rates: Sequence[dict[str, float]], begun: ProgramSet | None) -> list[dict[str, float]]:
        """Rates measured now, on the clock of the set that was begun, or its own where they are greater.

        Others only take away. What is in bytes has no clock, and what others do has none of this host.
        """
        before: Sequence[Mapping[str, Any]] = begun.devices if begun else [{}] * len(rates)
        return [
            {
                name: known.get(name, rate)
                if name == OTHERS
                else max(rate if name.endswith("_bytes") else rate / factor, known.get(name, 0.0))
                for name, rate in one.items()
            }
            for one, known, factor in zip(rates, before, self.factor, strict=True)
        ]


def bridge(bench: Bench, begun: ProgramSet, seed: int) -> Bridge:
    """Measure some programs of a set again.

    Raises
    ------
    FlightError
        The machine is never quiet.
    InputError
        The programs do not all differ by the same factor: the set is of another machine.
    """
    chosen = np.random.default_rng([seed, begun.num_programs]).permutation(begun.num_programs)[:NUM_PROGRAMS]
    ratios: list[list[float]] = [[] for _ in begun.devices]
    num_noisy = 0
    for at in range(0, len(chosen), BATCH_SIZE):
        rows = chosen[at : at + BATCH_SIZE]
        members = [Member(int(row), int(begun.task[row]), 0, begun.sched[row]) for row in rows]
        while (found := bench.measure(members, seed=seed + at)) is None:
            num_noisy += 1
            if num_noisy == MAX_NOISY:
                raise FlightError("the canary moved all the time: something else runs here", where="bridge")
        for (member, _), timings in zip(found.programs, found.timings, strict=True):
            for column, timing in enumerate(timings):
                before_s = float(begun.mean_s[member.key, column])
                if timing is not None and np.isfinite(before_s):
                    ratios[column].append(before_s / timing.mean_s)
    return _judged(ratios, [str(device["name"]) for device in begun.devices], min(LEAST_TIMES, begun.num_programs // 2))


def _judged(ratios: list[list[float]], names: list[str], least_times: int) -> Bridge:
    quartiles = [np.percentile(np.log(values), (25, 50, 75)) if values else np.zeros(3) for values in ratios]
    spread = tuple(float(high - low) / 2 for low, _, high in quartiles)
    for name, values, apart in zip(names, ratios, spread, strict=True):
        if len(values) < least_times or apart > MAX_SPREAD:
            raise InputError(
                f"of {len(values)} programs measured again, the times differ from the earlier ones by factors that "
                f"spread by {apart:.0%}, more than {MAX_SPREAD:.0%}" if len(values) >= least_times
                else f"only {len(values)} of the set's programs could be measured again",
                where=name, fix="the set is of another machine: begin a new one",
            )  # fmt: skip
    return Bridge(tuple(float(np.exp(middle)) for _, middle, _ in quartiles), spread, tuple(map(len, ratios)))
