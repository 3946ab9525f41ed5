"""Optimizations that nobody has built yet, as edits of a graph.

In: a graph. Out: another graph, and answers that say what the change would buy. May not enter: running anything.

One file per family, found by its registration alone. A what-if is a pure function of graph and
parameters: it returns the changed graph or, where that takes prices, an ``Unpriced`` change. It raises
``NotApplicableError`` with the reason where it has nothing to act on, edits the memory columns where memory changes,
and notes ``samples_ratio`` (``graph.note``) where an iteration then trains on more samples (absent: 1).

Internal modules: ``batch_shapes``, ``block_patterns``, ``ddp_reducer``, ``peak_memory``,
``samples_per_iteration``, ``saved_activations``.
"""

from windtunnel import registry
from windtunnel.whatifs.answer import Answer
from windtunnel.whatifs.ask import apply, whatif
from windtunnel.whatifs.measured import Unpriced
from windtunnel.whatifs.request import Request, Step, parse_request, parse_requests, parse_step

__all__ = ["Answer", "Request", "Step", "Unpriced", "apply", "parse_request", "parse_requests", "parse_step", "whatif"]

registry.discover(__name__)
