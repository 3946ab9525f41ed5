"""Kineto traces of CPUs and GPUs, of one rank or many.

Public modules: ``reader``, ``unprofiled``.
"""

from windtunnel.sources.kineto.reader import KinetoRules, load_kineto

__all__ = ["KinetoRules", "load_kineto"]
