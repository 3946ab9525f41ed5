"""The semantics of a GPU timeline: launches, stream order, waits, hand-offs, slices, layers, phases.

Public modules: ``explain``, ``recorded``, ``tables``.
"""

import windtunnel.sources.kineto  # noqa: F401
