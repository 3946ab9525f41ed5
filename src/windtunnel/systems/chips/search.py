"""The best chips for a network, each with its best plan.

In: a network per microbatch, a space of chips, jobs. Out: ``Codesign``: the chip and plan of the highest throughput,
proven over the whole space; the front that nothing beats in throughput, area and energy; what one finds by searching
only the chip or only the plan. A chip is planned for only while its bound is above what is known: if every layer takes
at least r times what it takes on a chip that was planned for, r at most 1, no plan is more than 1 / r times as fast, as
transfers are the same. Not here: what a plan yields (``stages``), what layers take (``model``).

Source: PHAZE (Wang et al., ICML 2024), section 4.4; the bounds, which are in place of its walk over areas, are ours.
"""

# P chips, S settings

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from windtunnel.base.pareto import is_best
from windtunnel.base.progress import Progress
from windtunnel.errors import InfeasibleError
from windtunnel.systems.chips.model import ChipSpace, LayerTimes, Model, layer_times
from windtunnel.systems.chips.networks import Expert
from windtunnel.systems.chips.stages import Job, StagePlan, Stages

__all__ = ["Case", "Choice", "Codesign", "Search", "Setting"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_ROUNDING = 1e-9
_KEPT_PLANS = 6  # that were best on other chips, and bound what is searched on the next


@dataclass(frozen=True)
class Setting:
    """Choices besides chip and stages: sequences of a microbatch, memory of a device, recomputation."""

    microbatch: int
    memory_bytes: float
    is_recomputed: bool


@dataclass(frozen=True)
class Choice:
    """A chip of the space, by its row, and a plan on it.

    Parameters
    ----------
    chip : int
    setting : Setting
    plan : StagePlan
    samples_per_s : float
    area_um2 : float
    energy_j : float
        Of a sequence: multiplications, buffers and memories of all devices, not links, nor what stands still.
    """

    chip: int
    setting: Setting
    plan: StagePlan
    samples_per_s: float
    area_um2: float
    energy_j: float


@dataclass(frozen=True)
class Codesign:
    """Result of a search for chips and plans.

    Parameters
    ----------
    best : Choice
    front : tuple of Choice
        By area, smallest first, each chip and setting with its fastest plan: what no other beats in area, energy and
        throughput, by over the tolerance. A chip is left out if one that is no larger yields as much, and with the
        plan of that one it would take no less energy.
    bound_samples_per_s : float
        No chip with any plan yields more, with any schedule of operators.
    num_planned : int
        Chips with settings for which plans were searched, of ``num_possible``.
    """

    best: Choice
    front: tuple[Choice, ...]
    bound_samples_per_s: float
    num_planned: int
    num_possible: int


@dataclass
class Case:
    """A setting with its stages and the bounds of every chip."""

    setting: Setting
    stages: Stages
    times: LayerTimes
    distinct: Ints
    upper_P: Floats
    known_P: Floats = field(init=False, repr=False)  # yielded by chips that are no larger and take no more energy
    scratch: Floats = field(init=False, repr=False)
    open: Ints = field(init=False, repr=False)  # chips that could still be better than what is known
    anchors: list[tuple[int, float]] = field(default_factory=list)
    last: list[StagePlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scratch = self.stages.scratch()
        self.begin()

    def begin(self) -> None:
        """Start a search in which any chip may be the best; bounds are kept."""
        self.open, self.known_P = np.arange(len(self.upper_P)), np.zeros(len(self.upper_P))

    def layers_of(self, chip: int) -> tuple[Floats, Floats]:
        """Seconds of all layers on a chip, forward and backward [L, T]."""
        return self.times.forward_PUT[chip][self.distinct], self.times.backward_PUT[chip][self.distinct]

    def energy_j(self, rows: Ints, plan: StagePlan) -> Floats:
        """Joules of a sequence with a plan on some chips, the plan's own microbatch apart."""
        degrees, total = self.stages.network.degrees, np.zeros(len(rows))
        for index, stage in enumerate(plan.stages):
            kinds, counts = np.unique(self.distinct[list(stage.layers)], return_counts=True)
            times, column = 2 if plan.is_recomputed and index < len(plan.stages) - 1 else 1, degrees.index(stage.degree)
            for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True):
                forward, backward = (joule[rows, kind, column] for joule in self.joules)
                total += stage.num_devices * count * (times * forward + backward)
        result: Floats = total / self.setting.microbatch
        return result

    @property
    def joules(self) -> tuple[Floats, Floats]:
        """Energy of each pass in joules, [P, U, T]."""
        return self.times.forward_j_PUT, self.times.backward_j_PUT

    def plan(self, chip: int, batch_size: int, above: float) -> StagePlan | None:
        """The best plan on a chip, or None if none yields more than ``above``; bounds all chips by what comes out."""
        upper_s = batch_size / above if above > 0 else np.inf
        known = min((self._again(item, chip) for item in self.last), key=lambda plan: plan.batch_s, default=None)
        known = known if known is not None and known.batch_s < upper_s else None
        if known is not None:  # of plans that take the same time the search finds the same one each time
            upper_s = min(upper_s, known.batch_s * (1 + _ROUNDING))
        result = self.stages.best(*self.layers_of(chip), upper_s=upper_s, scratch=self.scratch) or known
        if result is not None and result is not known:
            self.last = [result, *self.last[: _KEPT_PLANS - 1]]
        value = above if result is None else batch_size / result.batch_s
        self.anchors.append((chip, value))
        _bound(self.upper_P, self.open, self.times.columns, self.times.columns[chip], value)
        return result

    def _again(self, plan: StagePlan, chip: int) -> StagePlan:
        """A plan that was best on another chip."""
        cuts, degrees = [stage.layers for stage in plan.stages], [stage.degree for stage in plan.stages]
        return self.stages.price_plan(cuts, degrees, plan.num_pipelines, *self.layers_of(chip))

    def upper_bound(self) -> float:
        """Return the throughput that no chip exceeds with any schedule of operators."""
        upper_P, every = np.full(len(self.upper_P), np.inf), np.arange(len(self.upper_P))
        for chip, value in self.anchors:
            _bound(upper_P, every, self.times.min_columns, self.times.columns[chip], value)
        return float(upper_P.max())


@numba.njit(cache=True)
def _bound(upper_P: Any, rows: Any, columns_PX: Any, anchor_X: Any, value: float) -> None:
    """Lower the bounds of chips to what they cannot exceed if ``value`` is the maximum throughput of an anchor chip."""
    # Every layer takes at least ``ratio`` of its time on the anchor, so no plan is faster than value / ratio.
    for chip in rows:
        ratio = 1.0
        for column in range(anchor_X.size):
            if columns_PX[chip, column] < ratio * anchor_X[column]:
                ratio = columns_PX[chip, column] / anchor_X[column]
        if value < upper_P[chip] * ratio:
            upper_P[chip] = value / ratio


class Search:
    """Chips and plans for one network.

    Parameters
    ----------
    models : mapping of int to Model
        Models by microbatch.
    space : ChipSpace
    job : Job
        Its memory, recomputing and number of microbatches are set by every setting.
    batch_size : int
        Sequences.
    memories : sequence of float
        Bytes of a device, to choose from.
    recomputing : sequence of bool
        Whether to recompute; all values are tried.
    """

    def __init__(
        self,
        models: Mapping[int, Model],
        space: ChipSpace,
        job: Job,
        *,
        batch_size: int = 4096,
        memories: Sequence[float] = (80 * 2.0**30,),
        recomputing: Sequence[bool] = (False, True),
        progress: Progress | None = None,
    ) -> None:
        self.models, self.space, self.batch_size, self.progress = models, space, batch_size, progress
        self.cases: list[Case] = []
        self.refused: InfeasibleError | None = None
        self.depth = next(iter(models.values())).depth
        for microbatch, model in models.items():
            times = layer_times(model, space, job.bandwidth_bytes_per_s, progress)
            network = model.network()
            for memory_bytes in memories:
                for is_recomputed in recomputing:
                    stage_job = replace(job, memory_bytes=memory_bytes, is_recomputed=is_recomputed,
                                  num_microbatches=-(-batch_size // microbatch))  # fmt: skip
                    try:
                        stages = Stages.of(network, stage_job)
                    except InfeasibleError as error:
                        self.refused = error
                        continue
                    setting = Setting(microbatch, memory_bytes, is_recomputed)
                    self.cases.append(Case(setting, stages, times, model.distinct, np.full(len(space), np.inf)))
        if not self.cases and self.refused is not None:
            raise self.refused

    def run(self, *, tolerance: float = 0.05) -> Codesign:
        """Search chips and plans together.

        Parameters
        ----------
        tolerance : float
            Relative: chips of the front that yield no more than this above a smaller one are left out. The best chip
            is exact.

        Raises
        ------
        InfeasibleError
            No plan fits into the memory.
        """
        result: list[Choice] = []
        planned, best = 0, 0.0
        for case in self.cases:
            case.begin()
        begin = [(case, int(case.times.columns.sum(axis=1).argmin())) for case in self.cases]
        while True:
            index = begin.pop() if begin else self._next(best, tolerance)
            if index is None:
                break
            case, chip = index
            planned += 1
            plan = case.plan(chip, self.batch_size, float(case.known_P[chip]))
            case.open = case.open[case.open != chip]
            if plan is not None:
                choice = self.choice(case, chip, plan)
                result.append(choice)
                best = max(best, choice.samples_per_s)
                self._note(choice, tolerance)
            if self.progress is not None:
                self.progress("planning for chips", planned, planned + 1)
        for case in self.cases:
            case.begin()
        if not result:
            raise self._infeasible()
        proven = max(case.upper_bound() for case in self.cases)
        front = _front(result, tolerance)
        return Codesign(max(result, key=lambda choice: choice.samples_per_s), front, proven, planned,
                        len(self.space) * len(self.cases))  # fmt: skip

    @property
    def upper(self) -> Floats:
        """Upper bound on the throughput of any plan on each chip, [P]."""
        result: Floats = np.max([case.upper_P for case in self.cases], axis=0)
        return result

    def choice(self, case: Case, chip: int, plan: StagePlan) -> Choice:
        """A plan on a chip with all that counts."""
        area_um2, energy_j = float(self.space.area_um2[chip]), float(case.energy_j(np.array([chip]), plan)[0])
        return Choice(chip, case.setting, plan, self.batch_size / plan.batch_s, area_um2, energy_j)

    def _note(self, choice: Choice, tolerance: float) -> None:
        """Require more throughput than this chip's of all chips that are no smaller and need no less energy."""
        area_P = self.space.area_um2
        for case in self.cases:
            rows = case.open
            takes_j = case.energy_j(rows, choice.plan)
            is_behind = (area_P[rows] >= choice.area_um2) & (takes_j * (1 + tolerance) >= choice.energy_j)
            behind = rows[is_behind]
            case.known_P[behind] = np.maximum(case.known_P[behind], choice.samples_per_s)

    def _next(self, best: float, tolerance: float) -> tuple[Case, int] | None:
        """The chip and setting with the highest bound among those that could be better than what is known.

        Bounds only fall and what is known only rises: what cannot be better now never will be.
        """
        result: tuple[float, Case, int] | None = None
        for case in self.cases:
            needed = case.known_P[case.open] * (1 + tolerance)
            needed = np.where(needed > best, np.maximum(best, case.known_P[case.open]), needed) * (1 + _ROUNDING)
            case.open = case.open[case.upper_P[case.open] > needed]
            if case.open.size:
                chip = int(case.open[case.upper_P[case.open].argmax()])
                if result is None or case.upper_P[chip] > result[0]:
                    result = float(case.upper_P[chip]), case, chip
        return None if result is None else result[1:]

    def plans_of(self, chip: int) -> Choice:
        """The best plan on one chip over all settings.

        Raises
        ------
        InfeasibleError
            No plan fits into the memory.
        """
        best: Choice | None = None
        for case in self.cases:
            known = best.samples_per_s if best else 0.0
            plan = case.plan(chip, self.batch_size, known)
            if plan is not None:
                best = self.choice(case, chip, plan)
        if best is None:
            raise self._infeasible()
        return best

    def chips_for(self, expert: Expert, chips: Iterable[int] | None = None) -> Choice:
        """The best chip for a plan that is given, over all settings that it fits.

        Raises
        ------
        InfeasibleError
            It fits in no setting; names the tightest stage and layer.
        InputError
            The plan takes more devices than there are.
        """
        rows = np.arange(len(self.space)) if chips is None else np.array(list(chips), np.int64)
        cuts = expert.cuts(self.depth)
        best: Choice | None = None
        refused: InfeasibleError | None = None
        for case in self.cases:
            try:
                yields_P = self._yields(case, cuts, expert, rows)
            except InfeasibleError as error:
                refused = error
                continue
            chip = int(rows[yields_P.argmax()])
            if best is None or yields_P.max() > best.samples_per_s:
                plan = case.stages.price_plan(
                    cuts, [expert.degree] * len(cuts), expert.num_pipelines, *case.layers_of(chip)
                )
                best = self.choice(case, chip, plan)
        if best is None:
            assert refused is not None
            raise refused
        return best

    def _yields(self, case: Case, cuts: list[list[int]], expert: Expert, rows: Ints) -> Floats:
        """Samples per second of a given plan on chips [P]."""
        stage_plan = case.stages.price_plan(
            cuts, [expert.degree] * len(cuts), expert.num_pipelines, *case.layers_of(int(rows[0]))
        )
        column = case.stages.network.degrees.index(expert.degree)
        forward = case.times.forward_PUT[rows, :, column][:, case.distinct]
        backward = case.times.backward_PUT[rows, :, column][:, case.distinct]
        worst_P = np.zeros(len(rows))
        for index, cut in enumerate(cuts):
            waits = case.stages.waits(cuts, index, column)
            forward_P, backward_P = forward[:, cut].sum(axis=1), backward[:, cut].sum(axis=1)
            again_P = np.maximum(waits[1], forward_P if case.setting.is_recomputed and index < len(cuts) - 1 else 0.0)
            worst_P = np.maximum(worst_P, waits[0] + forward_P + again_P + backward_P)
        batches = -(-case.stages.job.num_microbatches // expert.num_pipelines)
        yields: Floats = self.batch_size / (worst_P * (batches + len(cuts) - 1) + stage_plan.sync_s)
        return yields

    def _infeasible(self) -> InfeasibleError:
        return self.refused or InfeasibleError(
            "no plan fits into the memory",
            where=", ".join(f"{case.setting.memory_bytes / 2**30:.0f} GiB" for case in self.cases),
            fix="more memory (--hbm), a smaller microbatch, or more devices",
        )


def _front(choices: Iterable[Choice], tolerance: float) -> tuple[Choice, ...]:
    """Return the Pareto front in area, energy and throughput, thinned by the tolerance; the fastest is kept."""
    given = sorted(choices, key=lambda choice: (choice.area_um2, -choice.samples_per_s))
    goals = [(entry.area_um2, entry.energy_j, -entry.samples_per_s) for entry in given]
    ordered = [entry for entry, is_kept in zip(given, is_best(goals).tolist(), strict=True) if is_kept]
    fastest = max(ordered, key=lambda choice: choice.samples_per_s)
    result: list[Choice] = []
    for item in ordered:
        is_behind = any(
            item.samples_per_s <= other.samples_per_s * (1 + tolerance)
            and item.energy_j * (1 + tolerance) >= other.energy_j
            for other in result
        )
        if not is_behind or item is fastest:
            result.append(item)
    return tuple(result)
