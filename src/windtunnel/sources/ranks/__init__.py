"""Graphs of several ranks -> one graph on one clock, from whatever source.

Public modules: ``clocks``, ``merge``, ``reader``.
"""

from windtunnel.sources.ranks.merge import merge
from windtunnel.sources.ranks.reader import load_ranks

__all__ = ["load_ranks", "merge"]
