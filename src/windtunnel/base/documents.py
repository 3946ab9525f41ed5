"""JSON that every reader takes: numbers that JSON does not know become null.

In: plain values, numpy numbers and arrays, paths. Out: text, or plain values. A result that knows no limit (infinite
memory) or has no number (a speed-up of nothing) says null. Not here: what a document holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["json_text", "strict"]


def json_text(document: Any, *, indent: int | None = None) -> str:
    """One JSON document.

    Examples
    --------
    >>> json_text({"memory_limit_bytes": float("inf"), "nodes": (1, 2)})
    '{"memory_limit_bytes": null, "nodes": [1, 2]}'
    """
    return json.dumps(strict(document), indent=indent, allow_nan=False, default=str)


def strict(value: Any) -> Any:
    """Return the value with null for every number that is none or has no end, in keys of text.

    Examples
    --------
    >>> strict([float("nan"), 0.5])
    [None, 0.5]
    """
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if hasattr(value, "tolist"):  # of numpy: a number or an array
        return strict(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
