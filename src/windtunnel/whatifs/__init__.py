"""Optimizations that nobody has built yet, as edits of a graph (row 4).

In: a graph. Out: another graph, and answers that say what the change would buy. May not enter: running anything.

One file per family: every module of this package whose name has no leading underscore is imported here, so that its
what-ifs are found by their registration alone. A what-if is ``f(graph, parameters) -> graph``; it raises
``NotApplicableError`` with the reason where it has nothing to act on, edits the memory columns where memory changes,
and notes ``samples_ratio`` (``graph.note``) where an iteration then trains on more samples (absent: 1).
"""

import importlib
import pkgutil

from windtunnel.whatifs.answer import Answer
from windtunnel.whatifs.ask import whatif
from windtunnel.whatifs.request import Request, Step, apply, parse_request, parse_requests, parse_step

__all__ = ["Answer", "Request", "Step", "apply", "parse_request", "parse_requests", "parse_step", "whatif"]

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_module.name}")
