"""CUDA graphs without a GPU: what is captured is recorded, and replayed on the host into the same memory."""

from __future__ import annotations

from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from windtunnel.flights import cuda_graphs


class RecordedGraph:
    """Operators in order, with the tensors that they read and wrote."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.num_replays = 0

    def replay(self) -> None:
        """Run them again; results go where they went before."""
        self.num_replays += 1
        with torch.no_grad():
            for operator, args, kwargs, before in self.calls:
                for old, new in zip(tree_leaves(before), tree_leaves(operator(*args, **kwargs)), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class Capture(TorchDispatchMode):
    """As ``torch.cuda.graph``; what is captured runs as well, so in-place results are put back at the end."""

    def __init__(self, graph: RecordedGraph, **_: Any) -> None:
        super().__init__()
        self._graph = graph
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        for tensor in tree_leaves((args, kwargs)) if func._schema.is_mutable else ():
            if isinstance(tensor, torch.Tensor):
                self._before.setdefault(id(tensor), (tensor, tensor.detach().clone()))
        result = func(*args, **(kwargs or {}))
        self._graph.calls.append((func, args, kwargs or {}, result))
        return result

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        with torch.no_grad():
            for tensor, value in self._before.values():
                tensor.copy_(value)


@contextmanager
def no_stream(*_: Any) -> Any:
    yield


def install(monkeypatch: Any) -> None:
    """Put the recorder in the place of torch's own."""
    for owner in (torch.cuda, torch.cuda.graphs):
        monkeypatch.setattr(owner, "CUDAGraph", RecordedGraph)
        monkeypatch.setattr(owner, "graph", Capture)
        monkeypatch.setattr(owner, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "stream", no_stream)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(cuda_graphs, "GRAPH_DEVICES", ("cpu",))
