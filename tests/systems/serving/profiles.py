"""Random profiles, a slow search that tries every multiset of instances, and a model to serve."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

from hypothesis import strategies as st

from windtunnel.systems.serving.profile import Cell, Profile

MODEL = """
import torch
from windtunnel.systems.serving.job import Served

def make():
    return Served(torch.nn.Linear(16, 4), lambda batch: (torch.ones(batch, 16),))

def nothing():
    return 7
"""


@st.composite
def profiles(draw, max_threads: int = 4, most_batch: int = 6) -> Profile:
    """Some cells of a small server, equal latencies among them; the largest instance is always there."""
    cells = st.tuples(st.integers(1, max_threads), st.integers(1, most_batch))
    found = draw(st.dictionaries(cells, st.integers(1, 12), max_size=8))
    found.setdefault((max_threads, draw(st.integers(1, most_batch))), draw(st.integers(1, 12)))
    return Profile.of({cell: float(one) for cell, one in found.items()})


def plain_best(profile: Profile, num_threads: int, batch: int, rule: str) -> float:
    """The shortest latency over all multisets of instances, by counting."""
    return min((value for value, _ in plain_splits(profile, num_threads, batch, rule)), default=math.inf)


def plain_splits(profile: Profile, num_threads: int, batch: int, rule: str) -> list[tuple[float, tuple[Cell, ...]]]:
    """All of them that the rule allows, with their latency."""
    cells = profile.cells
    found = []
    for count in range(1, num_threads + 1):
        for chosen in combinations_with_replacement(sorted(cells), count):
            threads, inputs = (sum(one[at] for one in chosen) for at in (0, 1))
            fits = threads == num_threads if rule == "exact" else threads <= num_threads
            if fits and (inputs >= batch if rule == "ragged" else inputs == batch):
                found.append((max(cells[one] for one in chosen), chosen))
    return found
