"""How many samples an iteration trains on, seen from its calls (room whatifs, private).

In: a captured program. Out: a size, 0 where that is not clear. Not here: another size (``batch``, ``another_batch``).
"""

from __future__ import annotations

from windtunnel.cost.rerun import Program, data_of, random_inputs, tensors_of
from windtunnel.graph import Phase

__all__ = ["batch_size_of"]

_ALIGNED = frozenset({"add", "div", "masked_fill", "mul", "sub", "where"})  # repeat a tensor of fewer dimensions


def batch_size_of(program: Program) -> int:
    """The size by which inputs and outputs of a model can be parted; 0 where that is not clear.

    Every tensor that enters a model votes for its first dimension by which the model's outputs can be parted: a
    data set from which the step draws, weights, and inputs of time steps first are not taken for the batch. The
    size counts by which most tensors can be parted (one that begins with 1 is repeated), then the one with most
    votes, with votes of more dimensions, and a larger one than 1.
    """
    entering, outputs = _around_models(program)
    entering = entering or [spec.shape for spec in program.data_inputs().values() if spec.shape]
    votes: dict[int, list[int]] = {}
    # what begins with several ones is repeated over samples, as tables of positions are
    voting = [shape for shape in entering if shape[:2] != (1, 1)] or entering
    for shape in voting:
        if size := _parting(shape, outputs):
            votes.setdefault(size, []).append(len(shape))
    ranks = {
        size: (sum(shape[0] == 1 or _parts(size, shape) for shape in entering), len(dims), max(dims), size > 1)
        for size, dims in votes.items()
    }
    best = max(ranks.values(), default=None)
    found = [size for size, rank in ranks.items() if rank == best]
    return found[0] if len(found) == 1 else 0


def _around_models(program: Program) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Shapes of the data that enter models, each tensor once, and of what losses reduce to a number."""
    origin: dict[int, str] = {}  # by identity; what nobody made is data
    entering: dict[int, tuple[int, ...]] = {}
    outputs: list[tuple[int, ...]] = []
    for call in program.calls:
        if call.mark:
            continue
        specs = tensors_of(call.inputs, call.shapes, call.types, call.strides)
        results = tensors_of(call.outputs, call.output_shapes, call.output_types)
        made = [spec for spec in specs if origin.get(spec.identity) == "model"]
        outside = [spec for spec in data_of(call) if spec.identity not in program.parameters]
        data = [spec for spec in outside if origin.get(spec.identity, "data") == "data"]
        is_aligned = call.operator.removeprefix("aten::").rstrip("_") in _ALIGNED
        dims = max((len(spec.shape) for spec in made), default=0) if is_aligned else 0
        if made or any(spec.identity in program.parameters for spec in specs):
            # what is repeated over a model's first dimensions, as positions are, says nothing of the batch
            found = {spec.identity: spec.shape for spec in data if len(spec.shape) >= max(dims, 1)}
            entering = found | entering
            if results and all(spec.num_elements == 1 for spec in results):
                outputs += [spec.shape for spec in made if spec.num_elements > 1]
            kind = "model"
        else:
            kind = "data" if data or random_inputs(call) or call.phase is Phase.DATA else "own"
        origin |= {spec.identity: kind for spec in results}
    # a loss of means over the batch, as that which balances experts, says nothing of its size
    outputs = [shape for shape in outputs if shape[0] > 1] or outputs
    return list(entering.values()), [shape for shape in outputs if len(shape) > 1] or outputs


def _parting(shape: tuple[int, ...], outputs: list[tuple[int, ...]]) -> int:
    """The first size of a tensor by which all outputs can be parted, theirs where it has several of each; 0: none."""
    first = {output[0] for output in outputs}
    if len(first) == 1 and shape[0] and not shape[0] % min(first):
        return min(first)
    return next((size for size in shape if size and all(_parts(size, output) for output in outputs)), 0)


def _parts(size: int, shape: tuple[int, ...]) -> bool:
    return any(side % size == 0 for side in shape)
