"""What to call the threads of a timeline (sources, timeline).

In: `Events`. Out: a name per thread: ``main thread`` runs the steps, ``backward thread`` the nodes of autograd. Where
several of a kind, or several processes, are in one file, their numbers tell them apart.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from windtunnel.sources.timeline.events import Category, Events
from windtunnel.sources.timeline.names import STEP, matching

__all__ = ["name_threads", "thread_roles"]

_NODE = r"^autograd::engine::evaluate_function"


def name_threads(events: Events) -> list[str]:
    """Names of all threads, in the order of ``events.threads``."""
    roles = thread_roles(events)
    counts = Counter(roles)
    works = (events.category >= Category.ANNOTATION) & (events.category <= Category.CALL)
    number = _count(events, works, len(events.threads))
    has_many = len({pid for code, (pid, _) in enumerate(events.threads) if number[code]}) > 1
    return [
        role
        if counts[role] == 1 and role != "thread"
        else f"{role} ({f'pid {pid} tid {tid}' if has_many else f'tid {tid}'})"
        for role, (pid, tid) in zip(roles, events.threads, strict=True)
    ]


def thread_roles(events: Events) -> list[str]:
    """What each thread does, in the order of ``events.threads``: ``main thread``, ``backward thread`` or ``thread``."""
    num = len(events.threads)
    works = (events.category >= Category.ANNOTATION) & (events.category <= Category.CALL)
    steps = _count(events, works & matching(events.names, STEP)[events.name], num)
    nodes = _count(events, works & matching(events.names, _NODE)[events.name], num)
    number = _count(events, works, num)
    roles = ["thread"] * num
    for process in dict.fromkeys(pid for pid, _ in events.threads):
        local = [code for code, (pid, _) in enumerate(events.threads) if pid == process and number[code]]
        if not local:
            continue
        main = max(local, key=lambda code: (steps[code], nodes[code] == 0, number[code]))
        for code in local:
            roles[code] = "backward thread" if nodes[code] else "thread"
        roles[main] = "main thread"
    return roles


def _count(events: Events, mask: np.ndarray, num: int) -> np.ndarray:
    return np.bincount(events.thread[mask], minlength=num)
