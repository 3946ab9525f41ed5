"""What ``meta.json`` says, checked.

In: a document that somebody may have written by hand. Out: ``Meta``, or an error that names the field. Readers and
edits build their ``Meta`` themselves; only what comes from a file is checked. Not here: what a field means (``meta``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Required, TypedDict, get_type_hints

import msgspec

from windtunnel.base.reading import format_value
from windtunnel.errors import InputError
from windtunnel.graph.meta import Meta

__all__ = ["read_meta"]

_Number = Annotated[float, msgspec.Meta(ge=-(2.0**62), le=2.0**62)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Time = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class _Times(TypedDict, total=False):
    median: Required[_Number]
    low: _Number
    high: _Number
    samples: list[_Number]


class _Window(TypedDict, total=False):
    name: str
    duration_ns: _Count


class _Hardware(TypedDict, total=False):
    machine: str
    processor: str
    num_cores: _Count
    num_threads: _Count
    torch: str
    devices: list[Any]


class _Group(TypedDict):
    name: str
    ranks: list[_Count]


class _Loader(TypedDict, total=False):
    num_workers: _Count
    fetch_ns: _Number


class _Event(TypedDict, total=False):
    kind: str
    num_seen: _Count
    every: _Count | None
    cost_ns: _Count


class _Irregular(TypedDict, total=False):
    num_iterations: _Count
    iterations_per_epoch: _Count | None
    events: list[_Event]


# narrower than the annotations of ``Meta``
_TYPES: dict[str, Any] = {
    "origin_ns": _Time,
    "window": _Window,
    "num_unmeasured_tasks": _Count | None,
    "groups": list[_Group],
    "routes": list[list[_Count]],
    "slice_of": _Count | None,
    "hardware": _Hardware,
    "iteration_ns": _Times,
    "profiled_iteration_ns": _Times,
    "gc_pause_ns": _Count | None,
    "loader": _Loader,
    "irregular": _Irregular,
    "memory_base_bytes": _Count,
    "rank_base_bytes": list[_Count],
    "samples_ratio": Annotated[float, msgspec.Meta(gt=0, le=1e18)],
    "world_size": Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None,
}


def read_meta(document: Any, where: str) -> Meta:
    """The record that a file describes.

    Parameters
    ----------
    document
        The entry ``meta`` of ``meta.json``.
    where : str
        The file.

    Raises
    ------
    InputError
        It is no mapping, has a field that does not exist, or one of another type.
    """
    fix = "save or capture the graph again"
    if not isinstance(document, Mapping):
        raise InputError(f"meta is {format_value(document)} instead of a mapping", where=f"{where}: meta", fix=fix)
    hints = get_type_hints(Meta)
    expected = {field.name: _TYPES.get(field.name, hints[field.name]) for field in fields(Meta)}
    for name, value in document.items():
        if name not in expected:
            continue
        try:
            # The value to check: msgspec takes no halves of characters, which paths may hold.
            text = json.dumps(value, ensure_ascii=False)
            msgspec.convert(value if text.isascii() else json.loads(text.encode("utf-8", "replace")), expected[name])
        except (msgspec.ValidationError, RecursionError) as error:
            location = str(error).replace("`$", f"`{name}")
            raise InputError(f"meta: {name} is wrong: {location}", where=f"{where}: meta.{name}", fix=fix) from error
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"meta: {name} is {value}", where=f"{where}: meta.{name}", fix=fix)
    return Meta.of(document)
