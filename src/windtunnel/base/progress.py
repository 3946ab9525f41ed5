"""How long-running functions report progress: the task, the parts done, all parts.

Not here: showing it (``cli``).
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress"]

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""
