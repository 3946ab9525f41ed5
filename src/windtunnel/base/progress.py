"""How whoever works long says how far it is: what is done, how much of it, of how much.

Not here: showing it (``cli``).
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress"]

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""
