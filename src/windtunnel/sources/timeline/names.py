"""What the names of events mean, in the vocabulary of PyTorch, and what to call threads (sources, timeline).

In: distinct strings of a timeline. Out: the phase of training that each announces, looked at once per distinct string,
never per event; a name per thread: ``main thread`` runs the steps, ``backward thread`` the nodes of autograd. Where
several of a kind, or several processes, are in one file, their numbers tell them apart. Not here: classes of kernels,
collectives (``graph.kernel_classes``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Phase
from windtunnel.graph.kernel_classes import BACKENDS
from windtunnel.sources.timeline.events import Category, Events

__all__ = ["HOST_COLLECTIVE", "INNER", "STEP", "matching", "name_threads", "phase_of", "thread_roles"]

STEP = r"^(ProfilerStep|wt:step|wt:iteration)"
INNER = r"^aten::_(flash|efficient|cudnn)_attention_(forward|backward)$"
"""Operators that other ones call to do all of their work: the outer ones say what was computed."""
HOST_COLLECTIVE = f"^({'|'.join(backend for backend in BACKENDS if backend != 'nccl')}):"
"""Collectives that run on threads of the host."""

# Innermost wins. Optimizers first: "Optimizer.step" inside "## backward ##" is an update.
_PHASES = (
    (Phase.UPDATE, re.compile(r"^Optimizer\.|\boptimi[sz]er\b|\bzero_grad\b")),
    (Phase.BACKWARD, re.compile(r"^autograd::engine::evaluate_function|\bbackward\b|Backward\d*$|_backward\b")),
    (Phase.FORWARD, re.compile(r"\bforward\b")),
    (Phase.DATA, re.compile(r"DataLoader|\b(load_batch|data_load|wait_for_batch|copy_batch_to_gpu)\b", re.IGNORECASE)),
)
_NODE = r"^autograd::engine::evaluate_function"


def matching(names: Sequence[str], pattern: str) -> NDArray[np.bool_]:
    """Which of the names hold the regular expression."""
    search = re.compile(pattern).search
    return np.array([search(name) is not None for name in names], bool)


def phase_of(name: str) -> int:
    """The phase that an event's name announces, or -1."""
    return next((int(phase) for phase, pattern in _PHASES if pattern.search(name)), -1)


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
