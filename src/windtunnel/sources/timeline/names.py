"""What the names of events mean, in the vocabulary of PyTorch (sources, timeline).

In: distinct strings of a timeline. Out: the phase of training that each announces. Names are looked at once per
distinct string, never per event. Not here: classes of kernels, collectives (``graph.kernel_classes``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Phase
from windtunnel.graph.kernel_classes import BACKENDS

__all__ = ["HOST_COLLECTIVE", "INNER", "STEP", "matching", "phase_of"]

STEP = r"^(ProfilerStep|wt:step|wt:iteration)"
INNER = r"^aten::_(flash|efficient|cudnn)_attention_(forward|backward)$"
"""Operators that other ones call to do all of their work: the outer ones say what was computed."""
HOST_COLLECTIVE = f"^({'|'.join(backend for backend in BACKENDS if backend != 'nccl')}):"
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
