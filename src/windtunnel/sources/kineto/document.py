"""The top level of a Kineto trace (sources, Kineto).

In: the text of a file, and who reads the events. Out: the document's other entries, as far as requested. Not here:
events (``trace``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windtunnel.errors import TraceError
from windtunnel.sources.kineto.text_window import Text

__all__ = ["read_document"]

_META_KEYS = ("baseTimeNanoseconds", "deviceProperties", "distributedInfo", "host_name")


def read_document(text: Text, read_events: Callable[[], None]) -> dict[str, Any]:
    """Read an object or a bare list; returns those of the object's other entries that are wanted.

    Raises
    ------
    TraceError
        The text is cut, or no JSON (byte offset); there are no events.
    """
    if text.more() and text.buffer[:3].tobytes() == b"\xef\xbb\xbf":
        text.position = 3
    first = text.peek()
    if first < 0 and text.is_cut:
        raise text.truncation_error("before anything could be read")
    if first < 0:
        raise TraceError("the trace is empty", where=str(text.path), fix="export it again")
    if first == ord("["):
        text.position += 1
        read_events()
        meta: dict[str, Any] = {}
    elif first == ord("{"):
        meta = _read_object(text, read_events)
    else:
        raise text.syntax_error("this is no trace")
    if text.peek() >= 0:
        raise text.syntax_error("there is more text after the end of the trace")
    if text.is_cut:
        raise text.truncation_error("after the last event")
    return meta


def _read_object(text: Text, read_events: Callable[[], None]) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    keys: list[str] = []
    text.position += 1
    result = False
    byte = _next(text)
    while byte != ord("}"):
        if byte != ord('"'):
            raise text.syntax_error("a key in quotes is missing")
        key = str(text.value())
        if _next(text) != ord(":"):
            raise text.syntax_error("a colon is missing")
        text.position += 1
        if key == "traceEvents" and _next(text) == ord("["):
            text.position += 1
            result = True
            read_events()
        else:
            value = text.value()
            keys.append(key[:80])
            meta |= {key: value} if key in _META_KEYS else {}
        byte = _next(text)
        if byte == ord(","):
            text.position += 1
            byte = _next(text)
            if byte == ord("}"):
                raise text.syntax_error("a key is missing after the comma")
        elif byte != ord("}"):
            raise text.syntax_error("a comma is missing")
    text.position += 1
    if not result:
        named = ", ".join(keys[:8])[:200]
        raise TraceError(
            "the file holds no `traceEvents`",
            where=f"{text.path}: keys {named or '(none)'}",
            fix="give a trace that torch.profiler exported (export_chrome_trace)",
        )
    return meta


def _next(text: Text) -> int:
    """The next byte that is not white space; it must be there."""
    byte = text.peek()
    if byte < 0:
        raise text.truncation_error("between two entries of the top level")
    return byte
