"""Storages of tensors, and the record of what became of them.

In: tensors of any layout. Out: the storages that they lie in; and ``Ledger``, the lists that a tracker fills.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from windtunnel.sources.memory.profile import CATEGORIES

__all__ = [
    "BIRTH",
    "CATEGORY",
    "DEATH",
    "EVENTS",
    "FEATURE_MAP",
    "GRADIENT",
    "INPUT",
    "RESIZE",
    "STATE",
    "TEMPORARY",
    "WEIGHT",
    "WORKSPACE",
    "Entry",
    "Ledger",
    "all_storages",
    "buffers_of",
    "storages_of",
]

EVENTS = ("birth", "death", "resize", "category")
BIRTH, DEATH, RESIZE, CATEGORY = range(len(EVENTS))
WEIGHT, GRADIENT, STATE, INPUT, FEATURE_MAP, WORKSPACE, TEMPORARY = range(len(CATEGORIES))  # by precedence

Entry = tuple[int, int, int, int, int, int]  # time_ns, event, storage, category, size_bytes, iteration


@dataclass
class Ledger:
    """What happened, in order, and one row per storage in the lists."""

    entries: list[Entry] = field(default_factory=list)
    initial: list[int] = field(default_factory=list)  # storages that were there before
    names: list[Any] = field(default_factory=list)  # text, or the operator that made it
    makers: list[Any] = field(default_factory=list)  # the same, whatever it was recognized as later
    layers: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    phases: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    categories: list[int] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)  # types of the devices that they lie on
    first_sizes: list[int] = field(default_factory=list)
    first_categories: list[int] = field(default_factory=list)


def storages_of(tensor: Any) -> tuple[Any, ...]:
    """The storages that a tensor of any layout lies in; none where it is opaque (MKL-DNN's own)."""
    if is_traceable_wrapper_subclass(tensor):
        inner, _ = tensor.__tensor_flatten__()
        parts = [getattr(tensor, name) for name in inner]  # a distributed tensor has its mesh among them
        return tuple(storage for part in parts if isinstance(part, torch.Tensor) for storage in storages_of(part))
    try:
        return (tensor.untyped_storage(),)
    except (NotImplementedError, RuntimeError):
        return tuple(storage for part in _parts(tensor) for storage in storages_of(part))


def _parts(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """Indices and values of a sparse tensor."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


def all_storages() -> Iterator[Any]:
    """Storages of every tensor that Python holds."""
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):
            yield from storages_of(thing)


def buffers_of(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, torch.Tensor]]:
    """Every buffer with the module that owns it and its name there."""
    for module in model.modules():
        for own, buffer in module.named_buffers(recurse=False):
            yield module, own, buffer
