"""Gradients of the rows that were read only (flight of "sparse-embedding-gradients").

In: a live program with embeddings. Out: the same embeddings, whose tables get sparse gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.errors import FlightError
from windtunnel.flights.proof import proven_by, rises
from windtunnel.sources.torch.live import LiveProgram, Undo

if TYPE_CHECKING:
    import torch


@registry.flight("sparse-embedding-gradients", source="PyTorch, torch.nn.Embedding(sparse=True)")
@proven_by(rises("sparse gradients"))
@contextmanager
def sparse_embedding_gradients(program: LiveProgram) -> Iterator[None]:
    """Give embedding tables gradients of the rows that were read, and update these rows only."""
    changed: list[torch.nn.Module] = []

    def change(model: torch.nn.Module) -> Undo:
        import torch

        tables = [
            module
            for module in model.modules()
            if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag)
            and not module.sparse
            and module.weight.requires_grad
            and not _is_shared(model, module)
        ]
        changed.extend(tables)
        _set_sparse(tables, is_sparse=True)
        return lambda: _set_sparse(tables, is_sparse=False)

    with program.each_model(change):
        if program.models and not changed:
            raise FlightError("no trained table has dense gradients and is read by embeddings alone")
        yield


def _is_shared(model: torch.nn.Module, table: torch.nn.Module) -> bool:
    """Whether a layer that is no embedding has the same weights, such as the output layer of a language model."""
    import torch

    return any(
        parameter is table.weight
        for module in model.modules()
        if not isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag)
        for parameter in module.parameters(recurse=False)
    )


def _set_sparse(tables: Iterable[torch.nn.Embedding | torch.nn.EmbeddingBag], *, is_sparse: bool) -> None:
    for table in tables:
        table.sparse = is_sparse
        table.weight.grad = None  # a gradient of the other kind would be added to
