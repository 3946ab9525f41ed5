"""Chakra execution traces, read and written.

Public modules: ``reader``, ``writer``.
"""

from windtunnel.sources.chakra.reader import is_chakra_json, load_chakra
from windtunnel.sources.chakra.writer import save_chakra

__all__ = ["is_chakra_json", "load_chakra", "save_chakra"]
