"""What to call the threads of a timeline (sources, timeline).

In: `Events`. Out: a name per thread: ``main thread`` runs the steps, ``backward thread`` the nodes of autograd. Where
several of a kind, or several processes, are in one file, their numbers tell them apart.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from windtunnel.sources.timeline.events import Category, Events
from windtunnel.sources.timeline.names import STEP, matching

__all__ = ["name_threads"]

_NODE = r"^autograd::engine::evaluate_function"


def name_threads(events: Events) -> list[str]:
    """Names of all threads, in the order of ``events.threads``."""
    num = len(events.threads)
    works = (events.category >= Category.ANNOTATION) & (events.category <= Category.CALL)
    steps = _count(events, works & matching(events.names, STEP)[events.name], num)
    nodes = _count(events, works & matching(events.names, _NODE)[events.name], num)
    number = _count(events, works, num)
    kinds = ["thread"] * num
    for process in dict.fromkeys(pid for pid, _ in events.threads):
        local = [code for code, (pid, _) in enumerate(events.threads) if pid == process and number[code]]
        if not local:
            continue
        main = max(local, key=lambda code: (steps[code], nodes[code] == 0, number[code]))
        for code in local:
            kinds[code] = "backward thread" if nodes[code] else "thread"
        kinds[main] = "main thread"
    counts = Counter(kinds)
    has_many = len({pid for code, (pid, _) in enumerate(events.threads) if number[code]}) > 1
    return [
        kind
        if counts[kind] == 1 and kind != "thread"
        else f"{kind} ({f'pid {pid} tid {tid}' if has_many else f'tid {tid}'})"
        for kind, (pid, tid) in zip(kinds, events.threads, strict=True)
    ]


def _count(events: Events, mask: np.ndarray, num: int) -> np.ndarray:
    return np.bincount(events.thread[mask], minlength=num)
