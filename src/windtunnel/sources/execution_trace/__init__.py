"""PyTorch execution traces: operators and their dependencies without times.

Public modules: ``reader``.
"""

from windtunnel.sources.execution_trace.reader import count_unmeasured_tasks, is_execution_trace, load_execution_trace

__all__ = ["count_unmeasured_tasks", "is_execution_trace", "load_execution_trace"]
