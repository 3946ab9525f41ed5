"""Chip and plan for published networks, compared with searches that choose only one of the two.

In: names, what is given. Out: ``Answer`` per network: the given chip with the plan of the network's makers, the best
chip for that plan, the best plan on that chip, both chosen together; and one chip for several networks. Not here: the
searches (``search``), words and pictures (``reports``, ``cli``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.hardware.templates import LARGEST, Templates, template_space
from windtunnel.systems.chips.cheapest import Cheapest, Goal, cheapest
from windtunnel.systems.chips.model import ChipSpace, Model
from windtunnel.systems.chips.networks import EXPERTS, Expert, check_network, trace_network
from windtunnel.systems.chips.search import Choice, Codesign, Search
from windtunnel.systems.chips.stages import Job, MemoryModel

__all__ = [
    "GOALS",
    "PARTS",
    "Answer",
    "Options",
    "Shared",
    "chip_name",
    "choice_dict",
    "codesign",
    "codesign_models",
    "find_shared_chip",
    "geometric_mean",
    "template_of",
]

PARTS = ("given", "chip", "plan", "both")
"""Given chip and plan, the best chip for that plan, the best plan on that chip, both chosen together."""
GOALS: Mapping[str, Goal] = MappingProxyType({"smallest": "area", "frugal": "energy"})
"""Further parts: the chip of least area, and that of least energy, that yields what is asked for."""
_GIB = 2.0**30


@dataclass(frozen=True)
class Options:
    """Options of a search.

    Parameters
    ----------
    microbatches : tuple of int
        To choose from, and so on for memories and recomputing.
    memories : tuple of float
        Bytes.
    chip : tuple of int
        The given one, as ``hardware.templates.LARGEST``.
    area_limit_um2 : float, optional
        Of the space; by default that of ``LARGEST``.
    mode : str
        How products are priced: see ``cost.accelerators.engine.MODES``.
    copies : int
        Of parameters: 2 for SGD, 3 with a further state, 4 for Adam.
    tolerance : float
        Tolerance that thins the front.
    min_samples_per_s : float, optional
        What the cheapest chips have to yield.
    """

    microbatches: tuple[int, ...] = (1,)
    memories: tuple[float, ...] = (80 * _GIB,)
    recomputing: tuple[bool, ...] = (False, True)
    num_devices: int = 1024
    bandwidth_bytes_per_s: float = 4 * _GIB
    memory_bandwidth_bytes_per_s: float = 1.2e12
    clock_hz: float = 1.05e9
    batch_size: int = 4096
    chip: tuple[int, ...] = LARGEST
    area_limit_um2: float | None = None
    mode: str = "tiled"
    copies: int = 2
    memory_model: MemoryModel = "alive"
    tolerance: float = 0.05
    min_samples_per_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse options that contradict each other."""
        for name in ("bandwidth_bytes_per_s", "memory_bandwidth_bytes_per_s", "clock_hz", "batch_size", "num_devices"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} cannot be {value}", where="codesign", fix="give a number above zero")
        if not (self.microbatches and self.memories and self.recomputing):
            raise InputError("there is nothing to choose from", where="microbatches, memories, recomputing")

    def space(self, templates: Templates) -> ChipSpace:
        """Chips with this clock and memory."""
        return ChipSpace(templates, self.clock_hz, self.memory_bandwidth_bytes_per_s, self.mode)

    def job(self) -> Job:
        """Job with what all settings have in common."""
        return Job(
            num_devices=self.num_devices,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s,
            copies=self.copies,
            memory_model=self.memory_model,
        )


@dataclass(frozen=True)
class Answer:
    """Result of the search for one network.

    Parameters
    ----------
    name : str
    choices : mapping of str to Choice
        By part; a part for which nothing fits is missing.
    refused : mapping of str to str
        Why a part is missing.
    codesign : Codesign, optional
        The front and the proof, where both were chosen.
    search : Search
        Over the whole space.
    templates : mapping of str to Templates
        What ``Choice.chip`` of a part is a row of.
    cheapest : mapping of str to Cheapest
        Of the chips that are the cheapest by some goal.
    """

    name: str
    choices: Mapping[str, Choice]
    refused: Mapping[str, str]
    codesign: Codesign | None
    search: Search
    templates: Mapping[str, Templates] = field(repr=False)
    cheapest: Mapping[str, Cheapest] = field(default_factory=dict)

    @property
    def base(self) -> str:
        """The baseline of comparisons: the published plan or, without one, the best plan on the given chip."""
        return "given" if {"given", "chip"} & {*self.choices, *self.refused} else "plan"

    def gain(self, part: str = "both", over: str = "") -> float:
        """Return the ratio of throughputs of two parts; NaN where one is missing."""
        over = over or self.base
        if part not in self.choices or over not in self.choices:
            return math.nan
        return self.choices[part].samples_per_s / self.choices[over].samples_per_s

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values in raw units."""
        result = self.codesign
        proof = {} if result is None else {
            "bound_samples_per_s": result.bound_samples_per_s,
            "num_planned": result.num_planned,
            "num_possible": result.num_possible,
            "front": [choice_dict(item, self.templates["both"]) for item in result.front],
        }  # fmt: skip
        return {
            "model": self.name,
            "searches": {part: choice_dict(choice, self.templates[part]) for part, choice in self.choices.items()},
            "refused": dict(self.refused),
            f"gain_over_{self.base}": {part: self.gain(part) for part in self.choices},
            "cheapest": {
                part: {"num_planned": item.num_planned, "num_possible": item.num_possible}
                for part, item in self.cheapest.items()
            },
            **proof,
        }


def chip_name(templates: Templates, row: int) -> str:
    """A template spelled out.

    Examples
    --------
    >>> chip_name(Templates.of(8, 128, 128, 2, 128, 2**27), 0)
    'phaze:8x128x128+2x128+128MiB'
    """
    cores, width, depth, vectors, num_lanes, sram = (
        int(getattr(templates, field_.name)[row]) for field_ in fields(templates)
    )
    return f"phaze:{cores}x{width}x{depth}+{vectors}x{num_lanes}+{sram >> 20}MiB"


def choice_dict(choice: Choice, templates: Templates) -> dict[str, Any]:
    """Return a choice as plain values in raw units."""
    plan, setting = choice.plan, choice.setting
    return {
        "chip": chip_name(templates, choice.chip),
        "area_um2": choice.area_um2,
        "samples_per_s": choice.samples_per_s,
        "energy_j_per_sample": choice.energy_j,
        "microbatch": setting.microbatch,
        "memory_bytes": setting.memory_bytes,
        "is_recomputed": setting.is_recomputed,
        "batch_s": plan.batch_s,
        "sync_s": plan.sync_s,
        "num_pipelines": plan.num_pipelines,
        "num_devices": plan.num_devices,
        "stages": [
            {
                "num_layers": len(stage.layers),
                "first_layer": stage.layers[0],
                "tensor_degree": stage.degree,
                "load_s": stage.load_s,
                "memory_bytes": stage.memory_bytes,
            }
            for stage in plan.stages
        ],
    }


def codesign(name: str, options: Options, parts: Sequence[str] = PARTS, progress: Progress | None = None) -> Answer:
    """Search for a published network and compare with its published plan; parameters are those of ``codesign_models``.

    Raises
    ------
    InputError
        A name is unknown.
    """
    check_network(name)
    template_space(options.area_limit_um2)  # an area that cannot be is refused before anything is traced
    models = {
        microbatch: trace_network(name, microbatch, progress) for microbatch in dict.fromkeys(options.microbatches)
    }
    return codesign_models(models, options, parts, expert=EXPERTS[name], progress=progress)


def codesign_models(
    models: Mapping[int, Model],
    options: Options,
    parts: Sequence[str] = PARTS,
    *,
    expert: Expert | None = None,
    progress: Progress | None = None,
) -> Answer:
    """Search for one network.

    Parameters
    ----------
    models : mapping of int to Model
        Models by microbatch.
    options : Options
    parts : sequence of str
        Some of ``PARTS``; those with a given plan need an expert.
    expert : Expert, optional
        The given plan.
    progress : callable
        Called with (what, done, total).

    Raises
    ------
    InputError
        A number cannot be, or the given chip lies outside of the space of templates.
    InfeasibleError
        Nothing that was asked for fits into the memory; names the layer or stage and by how much.
    """
    # "both" searches all chips and plans, "plan" only plans on the given chip, goals the cheapest chip that is fast
    # enough; parts with the expert's plan price that plan. A part that does not fit is refused, and the others go on.
    given, space = Templates.of(*options.chip), template_space(options.area_limit_um2)

    def over(templates: Templates) -> Search:
        return Search(
            models,
            options.space(templates),
            options.job(),
            batch_size=options.batch_size,
            memories=options.memories,
            recomputing=options.recomputing,
            progress=progress,
        )

    on_given, on_all = over(given), over(space)
    choices, refused = dict[str, Choice](), dict[str, str]()
    result: Codesign | None = None
    cheap: dict[str, Cheapest] = {}
    failed: InfeasibleError | None = None
    for part in parts:
        try:
            if part == "both":
                result = on_all.run(tolerance=options.tolerance)
                choices[part] = result.best
            elif part == "plan":
                choices[part] = on_given.plans_of(0)
            elif part in GOALS:
                cheap[part] = cheapest(on_all, options.min_samples_per_s or math.nan, GOALS[part])
                choices[part] = cheap[part].choice
            elif expert is None:
                raise InputError(
                    "this network has no published plan", where="plan", fix="search both, or give --fixed-chip"
                )
            else:
                choices[part] = (on_all if part == "chip" else on_given).chips_for(expert)
        # A part that is refused is an answer as well, unless every part is. An InputError about anything but
        # the expert's plan is a mistake of the caller and ends the search.
        except (InfeasibleError, InputError) as error:
            if isinstance(error, InputError) and part not in ("given", "chip"):
                raise
            refused[part] = f"{error.message} ({error.where})"
            failed = error if isinstance(error, InfeasibleError) else failed
    if not choices:
        raise failed or InputError(next(iter(refused.values())), where="plan")
    templates = {part: given if part in ("given", "plan") else space for part in (*PARTS, *GOALS)}
    name = next(iter(models.values())).name
    return Answer(name, choices, refused, result, on_all, templates, cheap)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


@dataclass(frozen=True)
class Shared:
    """One chip for several networks.

    Parameters
    ----------
    chip : int
        Row of the space.
    choices : mapping of str to Choice
        Best plan on the chip, by network.
    share : float
        Geometric mean of what it yields over what each network's own best chip does.
    """

    chip: int
    choices: Mapping[str, Choice]
    share: float


def find_shared_chip(answers: Sequence[Answer]) -> Shared:
    """The chip whose geometric mean over networks is highest, each relative to its own best; proven over the space.

    Raises
    ------
    InfeasibleError
        A network fits on no chip.
    """
    best = [answer.choices["both"].samples_per_s for answer in answers]
    result: Shared | None = None
    tried = np.zeros(len(answers[0].search.space), np.bool_)
    while True:
        uppers = [answer.search.upper / value for answer, value in zip(answers, best, strict=True)]
        share = np.exp(np.mean(np.log(np.minimum(np.stack(uppers), 1.0)), axis=0))
        share[tried] = 0.0
        chip = int(share.argmax())
        if result is not None and share[chip] <= result.share * (1 + 1e-9):
            return result
        tried[chip] = True
        choices = {answer.name: answer.search.plans_of(chip) for answer in answers}
        yields = [choice.samples_per_s / value for choice, value in zip(choices.values(), best, strict=True)]
        mean = geometric_mean(yields)
        if result is None or mean > result.share:
            result = Shared(chip, choices, mean)


def template_of(text: str) -> tuple[int, ...]:
    """The numbers of a template that a name spells out."""
    from windtunnel.hardware.accelerators import parse_template

    chip = parse_template(text)
    arrays = chip.arrays[0]
    return (arrays.count, arrays.cols, arrays.rows, chip.num_vector_units, chip.vector_width, chip.sram_bytes["global"])
