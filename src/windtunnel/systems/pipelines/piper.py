"""Piper's planner: stages that each have their own data and tensor degree, layers their own variant.

In: a ``PiperProblem``. Out: ``PiperPlan``: which layers form a stage, on how many devices and how, and which variant
each runs, such as one that computes its activations again; the slowest stage is as fast as can be. Exact over all
contiguous stages, by the lattice that all planners share. ``equal_stages`` is the plan that PipeDream-2BW's planner
would take: equal counts of layers, one data and tensor degree for all, activations computed again everywhere or
nowhere. Not here: reading files (``piper_format``).

Source: Piper (Tarnawski et al., NeurIPS 2021), section 4.
"""

# N layers, T tensor degrees, V variants, I downsets, K devices in use, D data degrees summed from a stage on

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.search.downsets import Lattice, breadth_first, chain, depth_first, downsets
from windtunnel.systems.pipelines import piper_kernels as kernels
from windtunnel.systems.pipelines.piper_format import PiperProblem
from windtunnel.units import format_size

__all__ = ["CAP", "PiperPlan", "PiperStage", "equal_stages", "plan_piper", "require_memory", "stage_of"]

CAP = 40_000
_MAX_TABLE_BYTES = 8 * 2**30
_SLACK = 1e-9  # relative: what sums of floats differ by
Masks = list[NDArray[np.bool_]]


@dataclass(frozen=True)
class PiperStage:
    """Layers that run together.

    Parameters
    ----------
    layers : tuple of int
        Rows of the problem.
    data, tensor : int
        Replicas, and devices that share each layer.
    variants : tuple of int
        Number of variants of each layer.
    num_kept : int
        Microbatches under way on each replica.
    time_s : float
        Per microbatch.
    memory_bytes : float
        Memory of each device.
    """

    layers: tuple[int, ...]
    data: int
    tensor: int
    variants: tuple[int, ...]
    num_kept: int
    time_s: float
    memory_bytes: float

    @property
    def num_devices(self) -> int:
        """Number of devices, data degree times tensor degree."""
        return self.data * self.tensor


@dataclass(frozen=True)
class PiperPlan:
    """Stages, first to last.

    Parameters
    ----------
    stages : tuple of PiperStage
    num_downsets, num_pairs : int
        How many sets of layers, and stages between them, were looked at; 0 for a plan that was not searched for.
    """

    stages: tuple[PiperStage, ...]
    num_downsets: int = 0
    num_pairs: int = 0

    @property
    def time_s(self) -> float:
        """Time of the slowest stage per microbatch."""
        return max(stage.time_s for stage in self.stages)


def plan_piper(problem: PiperProblem, *, cap: int = CAP, progress: Progress | None = None) -> PiperPlan | None:
    """The plan whose slowest stage is fastest, or None where no plan fits into memory.

    Raises
    ------
    TooManyDownsets
        The layers have more cuts than the cap.
    GraphError
        The layers have a cycle.
    InputError
        So many devices and cuts do not fit into a table.
    """
    lattice = downsets(problem.num_layers, problem.src, problem.dst, cap=cap, closed_under="successors")
    known = [item for item in (equal_stages(problem), *_along_orders(problem)) if item is not None]
    upper_s = min((item.time_s for item in known), default=math.inf)
    return _best(problem, lattice, upper_s * (1 + _SLACK), progress)


def _along_orders(problem: PiperProblem) -> Iterator[PiperPlan | None]:
    """The best plans whose stages follow each other in one order: quick, and a bound for all."""
    for order in (depth_first, breadth_first):
        layers = order(problem.num_layers, problem.src, problem.dst)
        yield _best(problem, chain(layers[::-1]), math.inf, None)


def _best(problem: PiperProblem, lattice: Lattice, upper_s: float, progress: Progress | None) -> PiperPlan | None:
    """The best plan of a lattice that is faster than a bound."""
    num = problem.num_devices + 1
    if 16 * lattice.num_downsets * num * num > _MAX_TABLE_BYTES:
        raise InputError(
            f"the tables of {lattice.num_downsets:,} downsets on {problem.num_devices} devices would not fit",
            where="devices", fix="plan for fewer devices, or merge layers",
        )  # fmt: skip
    best_IKD = np.full((lattice.num_downsets, num, num), upper_s)
    best_IKD[0, :, 0] = 0.0
    choice_IKD = np.full(best_IKD.shape, -1, np.int64)
    quickest_NT = problem.time_s_NTV.min(axis=2)
    has_none_NT = np.isinf(quickest_NT)
    quickest_IT = lattice.sums(np.where(has_none_NT, 0.0, quickest_NT))
    none_IT = lattice.sums(has_none_NT.astype(np.int64))
    threads = numba.get_num_threads()
    for size in range(1, lattice.num_nodes + 1):
        kernels.level(
            threads, int(lattice.level_ptr[size]), int(lattice.level_ptr[size + 1]), best_IKD, choice_IKD,
            lattice.words_IW, lattice.parent_I, lattice.added_I, quickest_IT, none_IT, np.array(problem.degrees),
            _divisors(problem), problem.time_s_NTV, problem.weights_NTV, problem.kept_NTV, problem.fixed_NTV,
            problem.src, problem.dst, problem.sent_E, problem.sync_in_ETV, problem.sync_out_ETV,
            float(problem.memory_bytes), float(problem.bandwidth_bytes_per_s), problem.num_microbatches,
        )  # fmt: skip
        if progress is not None:
            progress("planning", size, lattice.num_nodes)
    if choice_IKD[-1, -1].max() < 0:
        return None
    stages = tuple(_stages(problem, lattice, best_IKD[-1, -1], choice_IKD))
    return PiperPlan(stages, lattice.num_downsets, lattice.num_pairs)


def _divisors(problem: PiperProblem) -> NDArray[np.int64]:
    """Data degrees that share the microbatches evenly."""
    degrees = range(1, problem.num_devices + 1)
    return np.array([degree for degree in degrees if problem.num_microbatches % degree == 0], np.int64)


def _stages(
    problem: PiperProblem, lattice: Lattice, last_KD: NDArray[np.float64], choice_IKD: NDArray[np.int64]
) -> Iterator[PiperStage]:
    """First to last, back along the choices."""
    num = problem.num_devices + 1
    index, devices, summed = lattice.num_downsets - 1, num - 1, int(last_KD.argmin())
    while index:
        code = int(choice_IKD[index, devices, summed])
        code, data = divmod(code, num)
        before, degree = divmod(code, len(problem.degrees))
        inside = lattice.members(index) & ~lattice.members(before)
        stage = stage_of(problem, inside, degree, data, -(-summed // data))
        assert stage is not None, "a stage of the best plan fits"
        yield stage
        index, devices, summed = before, devices - stage.num_devices, summed - data


def stage_of(
    problem: PiperProblem,
    inside: NDArray[np.bool_],
    degree: int,
    data: int,
    num_kept: int,
    variant: int | None = None,
) -> PiperStage | None:
    """Return the stage of some layers; None where they do not fit or a layer lacks the variant.

    Parameters
    ----------
    inside : bool [N]
    degree : int
        Row of the problem's tensor degrees.
    data : int
    num_kept : int
        Microbatches under way.
    variant : int, optional
        Of all layers; the best that fit together unless given.
    """
    rows = np.flatnonzero(inside)
    time_NV = np.empty((problem.num_layers, len(problem.variants)))
    kernels.node_times(
        inside, degree, problem.time_s_NTV, problem.src, problem.dst, problem.sent_E, problem.sync_in_ETV,
        problem.sync_out_ETV, float(problem.bandwidth_bytes_per_s), time_NV,
    )  # fmt: skip
    # twice what ``cost.collective.ring_ratio`` says (``SYNC_RATIOS``), in one division as the published planner rounds
    shared = 4.0 * (data - 1) / (data * problem.num_microbatches * problem.bandwidth_bytes_per_s)
    time_NV = time_NV[rows] / data + shared * problem.weights_NTV[rows, degree]
    memory_NV = problem.kept_NTV[rows, degree] * num_kept + problem.fixed_NTV[rows, degree]
    if variant is not None:
        time_NV = np.where(np.arange(time_NV.shape[1]) == variant, time_NV, math.inf)
    choice_N = np.zeros(len(rows), np.int64)
    time = kernels.choose(time_NV, memory_NV, float(problem.memory_bytes), choice_N)
    if not math.isfinite(time):
        return None
    used = float(memory_NV[np.arange(len(rows)), choice_N].sum())
    layers, variants = tuple(rows.tolist()), tuple(choice_N.tolist())
    return PiperStage(layers, data, problem.degrees[degree], variants, num_kept, time, used)


def equal_stages(problem: PiperProblem) -> PiperPlan | None:
    """The best plan of equal stages, or None where none fits.

    Every stage holds as many of the repeated layers as the others, the last ones one more where they do not divide;
    what comes before and behind those joins the first and the last stage, or has a stage of its own.
    """
    best: PiperPlan | None = None
    for masks in _equal_cuts(problem):
        most = problem.num_devices // len(masks)
        degrees = [row for row, degree in enumerate(problem.degrees) if degree <= most]
        for degree, data in itertools.product(degrees, _divisors(problem).tolist()):
            if data * problem.degrees[degree] > most:
                continue
            # every combination is tried: stages are equal, so one choice of degree, replicas and variant holds for all
            for variant in range(len(problem.variants)):
                stages = [
                    stage_of(problem, inside, degree, data, len(masks) - index, variant)
                    for index, inside in enumerate(masks)
                ]
                result = [stage for stage in stages if stage is not None]
                if len(result) == len(stages):
                    plan = PiperPlan(tuple(result))
                    best = plan if best is None or plan.time_s < best.time_s else best
    return best


def _equal_cuts(problem: PiperProblem) -> Iterator[Masks]:
    """Stages as masks, for every number of them."""
    order = np.asarray(depth_first(problem.num_layers, problem.src, problem.dst))
    names = Counter(problem.names).most_common(1)[0]
    is_repeated = np.array([names[1] < 3 or name == names[0] for name in problem.names])[order]
    begin, end = int(is_repeated.argmax()), problem.num_layers - int(is_repeated[::-1].argmax())
    count = np.cumsum(is_repeated)
    total = int(count[-1])
    for num in range(1, min(total, problem.num_devices) + 1):
        sizes = [total // num + (index >= num - total % num) for index in range(num)]
        # a stage ends before the first repeated layer of the next one
        inner = [int(np.searchsorted(count, reached + 1)) for reached in np.cumsum(sizes)[:-1].tolist()]
        for ends in {(0, problem.num_layers), (0, begin, end, problem.num_layers)}:
            cuts = sorted({*ends, *inner})
            if len(cuts) - 1 <= problem.num_devices:
                yield [np.isin(np.arange(problem.num_layers), order[a:b]) for a, b in itertools.pairwise(cuts)]


def require_memory(problem: PiperProblem) -> None:
    """Raise an error that names a layer that does not fit alone, or states that they do not fit together.

    Raises
    ------
    InputError
    """
    min_NTV = np.where(np.isfinite(problem.time_s_NTV), problem.kept_NTV + problem.fixed_NTV, math.inf)
    min_N = min_NTV.min(axis=(1, 2))
    tightest = int(min_N.argmax())
    limit, needed = problem.memory_bytes, float(min_N[tightest])
    name = f"layer {problem.names[tightest]} (row {tightest})"
    if needed > limit:
        raise InputError(
            f"{name} takes {format_size(round(needed))} on every device, of {format_size(round(limit))}: "
            f"{format_size(round(needed - limit))} too much",
            where="memory", fix=f"{format_size(round(needed))} or more, or a larger tensor degree",
        )  # fmt: skip
    raise InputError(
        f"no plan fits into {problem.num_devices} devices of {format_size(round(limit))}; all layers take "
        f"{format_size(round(float(min_N.sum())))} at the least, the largest is {name} with "
        f"{format_size(round(needed))}",
        where="memory", fix="more devices, or more memory of each",
    )  # fmt: skip
