"""Blocks for every size of a microbatch.

In: one graph, a device, a batch. Out: ``Blocks`` by samples. As captured, times and tensors of another size are in
proportion to samples; on a device of the catalog each size is priced by its own work. Not here: capturing
(``sources``), which size is best (``two_bw``).
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.base.progress import Progress
from windtunnel.cost import price
from windtunnel.errors import InputError
from windtunnel.graph import Graph
from windtunnel.hardware import Device
from windtunnel.search.blocks import Blocks, blocks_of
from windtunnel.whatifs.another_batch import with_batch

__all__ = ["profiles_of", "sizes_of"]


def sizes_of(batch: int, given: Sequence[int] = ()) -> list[int]:
    """Samples of a microbatch to try: those that are given, or powers of two that divide the batch.

    Raises
    ------
    InputError
        One of them does not divide the batch.

    Examples
    --------
    >>> sizes_of(24)
    [1, 2, 4, 8]
    """
    if batch < 1:
        raise InputError(f"a batch of {batch}", where="--batch-size", fix="samples of one update")
    if not given:
        return [size for size in (1 << power for power in range(batch.bit_length())) if batch % size == 0]
    odd = next((size for size in given if size < 1 or batch % size), None)
    if odd is not None:
        raise InputError(
            f"microbatches of {odd} do not divide a batch of {batch}", where="--microbatch", fix="a divisor of it"
        )
    return sorted(set(given))


def profiles_of(
    graph: Graph,
    num_samples: int,
    sizes: Sequence[int],
    device: Device | None = None,
    *,
    progress: Progress | None = None,
) -> dict[int, Blocks]:
    """Blocks by samples of a microbatch.

    Parameters
    ----------
    graph : Graph
        One training step of one process.
    num_samples : int
        Samples of that step.
    sizes : sequence of int
    device : Device, optional
        Priced for it; with the graph's own times unless given.

    Raises
    ------
    InputError
        The graph has several ranks, or does not say how many samples its step has.
    NotApplicableError
        It has no equal blocks.
    """
    if num_samples < 1:
        raise InputError(
            "the graph does not show how many samples its step has", fix="give --samples N, or capture the graph again"
        )
    if graph.num_ranks > 1:
        raise InputError(
            f"the graph has {graph.num_ranks} ranks", where="graph", fix="plan with the step of one process"
        )
    if device is None:
        captured = blocks_of(graph, num_samples)
        return {size: captured.resize_tensors_and_times(size) for size in sizes}
    result = {}
    for done, size in enumerate(sizes):
        if progress is not None:
            progress("pricing microbatches", done, len(sizes))
        other = graph if size == num_samples else with_batch(graph, num_samples, size)
        priced = blocks_of(price(other, device), num_samples, is_on_device=True)
        result[size] = priced.resize_tensors(size)
    return result
