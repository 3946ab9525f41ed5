"""Adaptation of the split of a server to its queue.

In: a running server, the best split for every batch. Out: changes of its split. Not here: how large a
batch the queue asks for (``estimate``), how a change takes place (``live``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from windtunnel.systems.serving.estimate import BatchEstimate
from windtunnel.systems.serving.live import LiveServer
from windtunnel.systems.serving.model import Split

__all__ = ["adapt_to_queue"]

_WINDOW_S = 0.005  # between two looks, as in the published program


@contextmanager
def adapt_to_queue(live: LiveServer, splits: Mapping[int, Split], period_s: float = 1.0) -> Iterator[None]:
    """Change the server, at the end of every period, to the split for the batch size that its queue demands.

    Parameters
    ----------
    live : LiveServer
    splits : mapping of batch to Split
        For all powers of two up to the largest batch, as ``best_splits`` gives them.
    period_s : float
    """
    estimate = BatchEstimate(live.split.batch, max(splits))
    is_over = threading.Event()

    def follow() -> None:
        depths: list[int] = []
        while not is_over.wait(_WINDOW_S):
            depths.append(live.num_unanswered)
            if len(depths) * _WINDOW_S >= period_s:
                live.change(splits[estimate.after(depths)])
                depths.clear()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
