"""A reader of Kineto traces, of CPUs and GPUs, of one rank or many; ``sources.timeline`` makes graphs of what it reads.

Public modules: ``events``, ``reader``, ``trace``, ``unprofiled``.
"""

from windtunnel.sources.kineto.reader import load_kineto

__all__ = ["load_kineto"]
