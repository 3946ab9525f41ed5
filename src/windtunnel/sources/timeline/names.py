"""What the names of events mean, in the vocabulary of PyTorch and of communication libraries (sources, timeline).

In: distinct strings of a timeline. Out: the phase of training or the collective that each announces. Names are looked
at once per distinct string, never per event.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Phase

__all__ = ["HOST_COLLECTIVE", "STEP", "collective_of", "matching", "phase_of"]

STEP = r"^(ProfilerStep|wt:step)"
HOST_COLLECTIVE = r"^(gloo|mpi|ucc):"
"""Collectives that run on threads of the host."""


def matching(names: Sequence[str], pattern: str) -> NDArray[np.bool_]:
    """Which of the names hold the regular expression."""
    search = re.compile(pattern).search
    return np.array([search(name) is not None for name in names], bool)


# Innermost wins. Optimizers first: "Optimizer.step" inside "## backward ##" is an update.
_PHASES = (
    (Phase.UPDATE, re.compile(r"^Optimizer\.|\boptimi[sz]er\b|\bzero_grad\b")),
    (Phase.BACKWARD, re.compile(r"^autograd::engine::evaluate_function|\bbackward\b|Backward\d*$|_backward\b")),
    (Phase.FORWARD, re.compile(r"\bforward\b")),
    (Phase.DATA, re.compile(r"DataLoader|\b(load_batch|data_load|wait_for_batch|copy_batch_to_gpu)\b", re.IGNORECASE)),
)


def phase_of(name: str) -> int:
    """The phase that an event's name announces, or -1."""
    return next((int(phase) for phase, pattern in _PHASES if pattern.search(name)), -1)


# Names in kernels, annotations and `Collective name`, without case and separators -> our name.
_COLLECTIVES = {
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "sendrecv": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}
_COMMUNICATION = re.compile(r"nccl|rccl|oneccl|xccl|hccl|^(gloo|mpi|ucc):", re.IGNORECASE)


def collective_of(name: str, *, is_collective: bool = False) -> str:
    """The collective that a kernel, annotation or argument names; empty if it names none."""
    if not (is_collective or _COMMUNICATION.search(name)):
        return ""
    plain = re.sub(r"[^a-z]", "", name.lower())
    return next((ours for theirs, ours in _COLLECTIVES.items() if theirs in plain), "collective")
