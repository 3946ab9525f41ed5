"""A model as a chain of equal blocks: what one microbatch takes and keeps, block by block.

In: a ``Graph`` of one microbatch forward and backward and an update, captured, or dry and priced. Out: ``Blocks``: what
comes before the blocks, the blocks, what comes behind them, the loss; times, weights, and every tensor that is kept or
handed on, so that the memory of any run of blocks is known. Not here: which blocks form a stage
(``systems.pipelines.two_bw``), versions of weights (``systems.pipelines.stage_memory``).
"""

# T tasks, N nodes (a layer, forward or backward), U units: before, blocks, behind, loss; X tensors

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, Phase, ResourceKind
from windtunnel.graph.parameters import optimizer_state_ratio, parameter_bytes_by_layer
from windtunnel.search.placement.from_graph import nodes_of, step_of, sum_by_node
from windtunnel.simulate import replay

__all__ = ["Blocks", "blocks_of", "cut_evenly"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_INDEXED = re.compile(r"(?:^|(?<=\.))\d+(?=\.|$)")
_NEVER = 1 << 30


@dataclass(frozen=True, eq=False)
class Blocks:
    """Units of a model in the order in which samples meet them.

    Parameters
    ----------
    names : tuple of str [U]
        Paths of the blocks; before and behind them the path of the module with most weights there; ``loss``: what comes
        behind all weights.
    unit_of : dict of str to int
        Unit by path of a module.
    num_samples : int
        Of the microbatch.
    forward_ns, backward_ns, update_ns : float64 [U]
        The last once per batch.
    weight_bytes : float64 [U]
        Of parameters, as large as their gradients.
    largest_bytes : float64 [U]
        Of the largest parameter.
    home_X, reader_X, backward_X : int64 [X]
        Of each tensor of the forward pass: the unit that makes it, the last one that reads it forward (its home if
        none does), the first one whose backward pass needs it (a large number if none does).
    size_X : float64 [X]
        Bytes.
    workspace_bytes : float64 [U]
        Temporary memory of a unit's backward pass, in addition to its saved activations.
    input_bytes : float
        Of one sample, with its target.
    state_ratio : float
        Bytes of the optimizer's state over those of the weights.
    update_ratio : float
        Bytes that an update holds for a moment, over those of the largest parameter.
    """

    names: tuple[str, ...]
    unit_of: dict[str, int]
    num_samples: int
    forward_ns: Floats
    backward_ns: Floats
    update_ns: Floats
    weight_bytes: Floats
    largest_bytes: Floats
    home_X: Ints
    reader_X: Ints
    backward_X: Ints
    size_X: Floats
    workspace_bytes: Floats
    input_bytes: float
    state_ratio: float
    update_ratio: float = 0.0

    @property
    def num_units(self) -> int:
        """U."""
        return len(self.names)

    @property
    def num_blocks(self) -> int:
        """Units that are blocks."""
        return len(self.names) - 3

    def crossing_bytes(self, unit: int) -> float:
        """What units before this one hand on to it or to later ones, every tensor once."""
        return float(self.size_X[(self.home_X < unit) & (self.reader_X >= unit)].sum())

    def own_bytes(self, first: int, last: int) -> float:
        """What units ``first`` up to ``last`` make of a microbatch that is kept for a backward pass, or handed on.

        What is handed to the loss is gone when that is computed, unless a backward pass needs it.
        """
        # A tensor is kept if a backward task of a unit up to ``last`` reads it, or if it goes on to later units.
        is_own = (self.home_X >= first) & (self.home_X < last)
        is_handed_on = (self.reader_X >= last) & (last < self.num_units - 1)
        return float(self.size_X[is_own & (is_handed_on | (self.backward_X < last))].sum())

    def activation_bytes(self, first: int, last: int) -> float:
        """What these units keep of a microbatch gone forward: their own, and what they got."""
        return self.own_bytes(first, last) + self.crossing_bytes(first)

    @property
    def again_ns(self) -> Floats:
        """What computing activations again takes [U]: the forward pass without the loss."""
        return np.where(np.arange(self.num_units) < self.num_units - 1, self.forward_ns, 0.0)

    def resize_tensors(self, num_samples: int) -> Blocks:
        """With another microbatch: tensors in proportion to samples, all else as it is."""
        factor = num_samples / self.num_samples
        return replace(
            self, num_samples=num_samples, size_X=self.size_X * factor, workspace_bytes=self.workspace_bytes * factor
        )

    def resize_tensors_and_times(self, num_samples: int) -> Blocks:
        """With another microbatch: times and tensors in proportion to samples, weights and updates as they are."""
        factor = num_samples / self.num_samples
        return replace(
            self.resize_tensors(num_samples), forward_ns=self.forward_ns * factor, backward_ns=self.backward_ns * factor
        )


def cut_evenly(num_blocks: int, num_stages: int) -> tuple[tuple[int, int], ...]:
    """Units (first, behind the last) of equal stages; what is before joins the first, what is behind the last.

    Raises
    ------
    InputError
        The blocks do not divide.

    Examples
    --------
    >>> cut_evenly(4, 2)
    ((0, 3), (3, 7))
    """
    if num_stages < 1 or num_blocks % num_stages:
        fits = ", ".join(str(index) for index in range(1, num_blocks + 1) if num_blocks % index == 0)
        raise InputError(
            f"{num_blocks} blocks do not divide by a depth of {num_stages}", where="depth", fix=f"one of {fits}"
        )
    size = num_blocks // num_stages
    #      units    before | b1 b2 | b3 b4 | behind loss          two stages of two blocks
    #      stage    0 ............ | 1 ...................
    ends = [0, *(1 + size * stage for stage in range(1, num_stages)), num_blocks + 3]
    return tuple(pairwise(ends))


def blocks_of(
    graph: Graph,
    num_samples: int,
    *,
    iteration: int | None = None,
    num_held: int | None = None,
    is_on_device: bool | None = None,
) -> Blocks:
    """The longest run of equal blocks in a model, and what lies around it.

    Blocks are modules of one list, such as ``blocks.0``, ``blocks.1``, with equal weights; one without weights belongs
    to the one before it.

    Parameters
    ----------
    graph : Graph
        One microbatch forward and backward, and an update, with times.
    num_samples : int
        Of that microbatch.
    iteration : int, optional
        Which step; the last unless given.
    num_held : int, optional
        Samples that lay in memory while it was captured, where that was not only the microbatch.
    is_on_device : bool, optional
        Whether the host's own tasks count nothing; by default where kernels run on a device.

    Raises
    ------
    NotApplicableError
        No task has a layer, there is no backward pass, or no two blocks of a list are equal.
    """
    step = graph.remove(~step_of(graph, iteration), keep_gaps=False)
    known, node_T = nodes_of(step)
    if not any(is_backward for _, is_backward in known):
        raise NotApplicableError("there is no backward pass", where="phase BACKWARD", fix="capture a training step")
    num = len(known)
    weights_N, largest_N = _weights(step, known, node_T)
    taken_T = _compute_times(step, is_on_device)
    times_N = sum_by_node(taken_T, node_T, num)
    run = _list_blocks(known, weights_N, times_N)
    unit_N = _units(known, run, weights_N)
    num_units = len(run) + 3
    is_backward = np.array([back for _, back in known], bool)
    weights_U = _by_unit(weights_N, unit_N, num_units)
    unit_T = np.where(node_T >= 0, unit_N[node_T], -1)
    tensors = _tensors(step, unit_T)
    largest_U = np.zeros(num_units)
    np.maximum.at(largest_U, unit_N, largest_N)
    update_ns = float(taken_T[np.asarray(step.tasks["phase"]) == int(Phase.UPDATE)].sum())
    # The update is captured as a whole; its time is divided by the bytes of weights that it updates.
    share_U = weights_U / weights_U.sum() if weights_U.any() else np.full(num_units, 1.0 / num_units)
    ends = []
    for unit, nothing in ((0, "before"), (len(run) + 1, "behind")):
        rows = [row for row in np.flatnonzero(unit_N == unit).tolist() if known[row][0] and not known[row][1]]
        ends.append(known[max(rows, key=lambda row: weights_N[row])][0] if rows else nothing)
    return Blocks(
        (ends[0], *(names[0] for names in run), ends[1], "loss"),
        {name: int(unit_N[row]) for row, (name, back) in enumerate(known) if not back},
        num_samples,
        _by_unit(np.where(is_backward, 0.0, times_N), unit_N, num_units),
        _by_unit(np.where(is_backward, times_N, 0.0), unit_N, num_units),
        update_ns * share_U,
        weights_U,
        largest_U,
        *tensors,
        _workspace(step, unit_T, num_units),
        _peak_bytes_by_category(step).get("input", 0) / (num_held or num_samples),
        optimizer_state_ratio(step),
        _update_ratio(step, float(weights_U.sum()), float(largest_U.max())),
    )


def _compute_times(step: Graph, is_on_device: bool | None) -> Ints:
    """What each task takes of who computes [T]."""
    devices = np.isin(np.asarray(step.resources["kind"]), (int(ResourceKind.STREAM), int(ResourceKind.DEVICE)))
    computes = step.select(kind=Kind.COMPUTE)
    own = computes & np.isin(np.asarray(step.tasks["resource"]), np.flatnonzero(devices))
    if is_on_device or (is_on_device is None and own.any()):
        return np.where(computes, step.duration_ns, 0)
    return step.duration_ns


def _peak_bytes_by_category(step: Graph) -> dict[str, int]:
    """Bytes of each category at the peak of the captured step."""
    return dict(dict(step.meta.memory or {}).get("by_category", {}))


def _weights(step: Graph, known: Sequence[tuple[str, bool]], node_T: Ints) -> tuple[Floats, Floats]:
    """Bytes of the parameters of forward nodes, and of their largest [N]: backward ones read the same."""
    sizes = parameter_bytes_by_layer(step)
    if sizes:
        own = [() if is_backward else sizes.get(name, ()) for name, is_backward in known]
        return np.array([sum(item) for item in own], float), np.array([max(item, default=0) for item in own], float)
    if "param_bytes" not in step.tasks:
        return np.zeros(len(known)), np.zeros(len(known))
    is_forward = np.asarray(step.tasks["phase"]) == int(Phase.FORWARD)
    read = sum_by_node(np.where(is_forward, step.tasks["param_bytes"], 0), node_T, len(known))
    return read, read


def _list_blocks(known: Sequence[tuple[str, bool]], weights_N: Floats, times_N: Floats) -> list[list[str]]:
    """Paths of the blocks, each with those of the modules without weights that follow it."""
    # Blocks are members of a numbered list of modules (layers.0, layers.1, ...). Neighbors are equal if
    # their weights are; of all runs of equal neighbors the one that takes most time is the model's body.
    children: dict[str, dict[str, list[float]]] = {}
    for (name, is_backward), weight, used in zip(known, weights_N.tolist(), times_N.tolist(), strict=True):
        for match in _INDEXED.finditer(name):
            of_list = children.setdefault(name[: match.start()], {})
            sums = of_list.setdefault(name[: match.end()], [0.0, 0.0])
            sums[0] += 0.0 if is_backward else weight
            sums[1] += used
    best: tuple[float, list[list[str]]] = (0.0, [])
    for of_list in children.values():
        groups: list[tuple[list[str], float, float]] = []
        for path in sorted(of_list, key=lambda path: int(path.rpartition(".")[2])):
            weight, used = of_list[path]
            if weight or not groups:
                groups.append(([path], weight, used))
            else:
                names, before, time = groups.pop()
                groups.append(([*names, path], before, time + used))
        begin = 0
        for index in range(1, len(groups) + 1):
            if index == len(groups) or groups[index][1] != groups[begin][1]:
                time = sum(group[2] for group in groups[begin:index])
                if index - begin > 1 and time > best[0]:
                    best = (time, [group[0] for group in groups[begin:index]])
                begin = index
    if not best[1]:
        raise NotApplicableError(
            "no two blocks of this model are equal, so that no even stages can be cut", where="layers",
            fix="windtunnel place verify cuts any model",
        )  # fmt: skip
    return best[1]


def _units(known: Sequence[tuple[str, bool]], run: Sequence[Sequence[str]], weights_N: Floats) -> Ints:
    """The unit of each node: by path, else by where its layer first runs."""
    of_path = {path: 1 + index for index, paths in enumerate(run) for path in paths}

    def find_block(name: str) -> int | None:
        ends = [match.end() for match in _INDEXED.finditer(name)]
        return next((of_path[name[:end]] for end in ends if name[:end] in of_path), None)

    behind, loss = len(run) + 1, len(run) + 2
    has_weights = [row for row, (_, is_backward) in enumerate(known) if not is_backward and weights_N[row]]
    unit_of: dict[str, int] = {}
    # Layers without weights (an addition, a dropout outside of any block) belong to the block that runs then.
    reached = 0
    for row, (name, is_backward) in enumerate(known):
        if is_backward:
            continue
        unit = find_block(name)
        if unit is None:
            unit = reached if reached < len(run) else loss if has_weights and row > has_weights[-1] else behind
        reached = max(reached, min(unit, len(run)))
        unit_of[name] = unit
    result = []
    for name, is_backward in known:
        unit = find_block(name)
        result.append(unit_of.get(name, loss if is_backward else 0) if unit is None else unit)
    return np.array(result, np.int64)


def _by_unit(values_N: Floats, unit_N: Ints, num_units: int) -> Floats:
    return np.bincount(unit_N, values_N, minlength=num_units).astype(np.float64)


def _tensors(step: Graph, unit_T: Ints) -> tuple[Ints, Ints, Ints, Floats]:
    """Home, last reader, first backward reader and size of each tensor that a forward task makes [X]."""
    phases = np.asarray(step.tasks["phase"])
    src, dst = np.asarray(step.edges["src"]), np.asarray(step.edges["dst"])
    rows = (np.asarray(step.edges["kind"]) == int(EdgeKind.DATA)) & (unit_T[src] >= 0) & (unit_T[dst] >= 0)
    rows &= phases[src] == int(Phase.FORWARD)
    src, dst, sizes = src[rows], dst[rows], np.asarray(step.edges["size_bytes"])[rows]
    # A tensor goes along several edges, one per reader: it is counted once, by its largest size.
    size_T = np.zeros(step.num_tasks)
    np.maximum.at(size_T, src, sizes)
    reader_T, backward_T = unit_T.copy(), np.full(step.num_tasks, _NEVER)
    is_back = phases[dst] == int(Phase.BACKWARD)
    np.maximum.at(reader_T, src[~is_back], unit_T[dst[~is_back]])
    np.minimum.at(backward_T, src[is_back], unit_T[dst[is_back]])
    created = np.flatnonzero(size_T)
    return unit_T[created], reader_T[created], backward_T[created], size_T[created]


def _workspace(step: Graph, unit_T: Ints, num_units: int) -> Floats:
    """Maximum temporary bytes while a unit runs, in addition to saved activations [U].

    What the capture saw no reader of goes to the next that makes something. A gradient of weights is added up and gone.
    """
    if "output_bytes" not in step.tasks:
        return np.zeros(num_units)
    phases, made_T = np.asarray(step.tasks["phase"]), np.asarray(step.tasks["output_bytes"])
    src, dst = np.asarray(step.edges["src"]), np.asarray(step.edges["dst"])
    is_data = np.asarray(step.edges["kind"]) == int(EdgeKind.DATA)
    goes_on = np.zeros(step.num_tasks, bool)
    goes_on[src[is_data & (phases[src] == int(Phase.FORWARD)) & (phases[dst] == int(Phase.BACKWARD))]] = True
    # Which temporaries coincide depends on when tasks run: they are added up in the order of a replay.
    #      change[i] = bytes allocated by the i-th task - bytes freed behind it;  held = running sum
    played = replay(step)
    order = np.argsort(played.start_ns, kind="stable")
    place_T = np.empty(step.num_tasks, np.int64)
    place_T[order] = np.arange(step.num_tasks)
    freed_T = place_T.copy()
    stays = is_data & (phases[dst] != int(Phase.UPDATE))
    np.maximum.at(freed_T, src[stays], place_T[dst[stays]])
    counted = order[(made_T[order] > 0) & ~goes_on[order] & (unit_T[order] >= 0)]
    has_reader = np.zeros(step.num_tasks, bool)
    has_reader[src[is_data]] = True
    unread = ~has_reader[counted[:-1]]
    freed_T[counted[:-1][unread]] = place_T[counted[1:][unread]]
    change = np.zeros(step.num_tasks + 2)
    np.add.at(change, place_T[counted], made_T[counted])
    np.add.at(change, freed_T[counted] + 1, -made_T[counted])
    held = np.cumsum(change)[place_T]
    result = np.zeros(num_units)
    np.maximum.at(result, unit_T[unit_T >= 0], held[unit_T >= 0])
    return result


def _update_ratio(step: Graph, weight_bytes: float, largest_bytes: float) -> float:
    """Maximum bytes of an update in addition to weights, gradients and state, per byte of the largest parameter."""
    held, peak = _peak_bytes_by_category(step), dict(step.meta.memory or {}).get("update", {}).get("peak_bytes", 0)
    if not largest_bytes or not peak:
        return 0.0
    kept = held.get("weight", 0) + held.get("optimizer state", 0) + held.get("input", 0) + weight_bytes
    return max(0.0, float(peak - kept) / largest_bytes)
