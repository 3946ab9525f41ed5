"""Schedules: programs with the transformations that led to them, all that can be reached, and a proof for each.

In: a program. Out: every program that transformations make of it, once each; certificates that a schedule computes what
the program does. Not here: prices (``search``).

References
----------
Jangda et al., ASPLOS 2022, section 5. The published search takes one path; here all paths are followed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from windtunnel.errors import InputError, NotApplicableError
from windtunnel.systems.collectives.grouping import fuse, in_order, is_chunked, overlap, unit_predecessors, units
from windtunnel.systems.collectives.layouts import TensorType
from windtunnel.systems.collectives.program import Program, Stage
from windtunnel.systems.collectives.reference import assemble, random_inputs, run_reference
from windtunnel.systems.collectives.rules import POINTWISE, REDUCTIONS
from windtunnel.systems.collectives.transforms import as_slice, movable, norms_of_slices, reorder, split

__all__ = ["Certificate", "Schedule", "Step", "apply_steps", "canonical_form", "certify", "closure", "moves", "shrink"]

_TRANSFORMS = {"as_slice": as_slice, "fuse": fuse, "overlap": overlap, "reorder": reorder, "split": split}
_COMMUTATIVE = frozenset({"add", "mul", "maximum"})
_RANKS, _TOLERANCE = (2, 3, 4), 1e-12
MAX_SCHEDULES = 5_000
"""Schedules after which the closure stops and says that there are more."""

_LETTERS = {"matmul": "MM", "all_reduce": "AR", "reduce_scatter": "RS", "all_gather": "AG", "reduce": "RD",
            "broadcast": "BC", "send": "P2P"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One transformation with its arguments."""

    transform: str
    arguments: tuple[Any, ...]

    def apply(self, program: Program) -> Program:
        """The program after it.

        Raises
        ------
        NotApplicableError
            It would change the result.
        """
        return _TRANSFORMS[self.transform](program, *self.arguments)  # type: ignore[operator,no-any-return]

    def __str__(self) -> str:
        given = [f"[{', '.join(item)}]" if isinstance(item, tuple) else str(item) for item in self.arguments]
        return f"{self.transform}({', '.join(given)})"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A program, and how it came about."""

    program: Program
    steps: tuple[Step, ...] = ()

    @property
    def label(self) -> str:
        """Its units in their order, in the notation of the paper: ``RS - C - AG``; what is fused is in parentheses."""
        chained = {item: chain for chain in self.program.overlaps for item in chain.items}
        parts: list[str] = []
        shown: set[str] = set()
        before = unit_predecessors(self.program)
        for unit in in_order(before, before):
            if unit in shown:
                continue
            chain = chained.get(unit)
            names = list(chain.items) if chain else [unit]
            shown.update(names)
            texts = [text for text in (_unit_label(self.program, name) for name in names) if text]
            text = f"overlap({', '.join(texts)})" if chain else "".join(texts)
            if text and (text != "C" or parts[-1:] != ["C"]):
                parts.append(text)
        return " - ".join(parts)


def _unit_label(program: Program, unit: str) -> str:
    members = units(program)[unit]
    letters: list[str] = []
    for name in members:
        if program.types[name].is_scalar and program.by_name[name].communicates:
            continue
        letter = _LETTERS.get(program.by_name[name].op, "C")
        is_repeated = letter in letters and letter in ("C", "AG")
        if not is_repeated and program.by_name[name].op != "slice":
            letters.append(letter)
    return f"fuse({'-'.join(letters)})" if len(members) > 1 else "".join(letters)


def apply_steps(program: Program, steps: Sequence[Step]) -> Program:
    """A program after transformations, one after the other."""
    for step in steps:
        program = step.apply(program)
    return program


# --- canonical form -------------------------------------------------------------------------------------------


def canonical_form(program: Program) -> str:
    """A digest that is equal for programs that are the same up to names and the order of stages."""
    digests = {name: _digest("input", name, item) for name, item in program.inputs.items()}
    for stage in program.stages:
        operands = [digests[item] if isinstance(item, str) else repr(item) for item in stage.operands]
        if stage.op in _COMMUTATIVE:
            operands.sort()
        digests[stage.name] = _digest(stage.op, *operands, stage.settings)
    members = {unit: frozenset(digests[name] for name in names) for unit, names in units(program).items()}
    fusions = sorted((item.kind, sorted(members[item.name])) for item in program.fusions)
    chains = sorted((item.order, [sorted(members[unit]) for unit in item.items]) for item in program.overlaps)
    updates = sorted(digests[stage.name] for stage in program.updates.values())
    live = sorted(digests[name] for name in program.live)
    return _digest(program.group_sizes, [digests[name] for name in program.outputs], updates, live, fusions, chains)


def _digest(*parts: object) -> str:
    return hashlib.sha1(repr(parts).encode(), usedforsecurity=False).hexdigest()


# --- closure --------------------------------------------------------------------------------------------------


def moves(program: Program) -> Iterator[Step]:
    """Transformations to try; those that are not applicable raise when they are applied."""
    if not program.fusions and not program.overlaps:
        yield from _rewrites(program)
    if not program.overlaps:
        yield from _fusions(program)
    for chain in _chains(program):
        yield Step("overlap", (chain,))


def closure(program: Program, max_schedules: int = MAX_SCHEDULES) -> list[Schedule]:
    """All schedules that transformations reach, each once, nearest first.

    Raises
    ------
    InputError
        There are more than ``max_schedules``.
    """
    start = Schedule(program)
    seen = {canonical_form(program)}
    result = [start]
    for schedule in result:
        for step in moves(schedule.program):
            try:
                after = step.apply(schedule.program)
            except NotApplicableError:
                continue
            form = canonical_form(after)
            if form in seen:
                continue
            if len(result) >= max_schedules:
                raise InputError(
                    f"program {program.name} has more than {max_schedules} schedules",
                    fix="search parts of it, or raise max_schedules",
                )
            seen.add(form)
            result.append(Schedule(after, (*schedule.steps, step)))
    return result


def _rewrites(program: Program) -> Iterator[Step]:
    for stage in program.stages:
        if stage.op == "all_reduce" and not program.types[stage.name].is_scalar:
            yield Step("split", (stage.name, "scatter-gather"))
            yield Step("split", (stage.name, "reduce-broadcast"))
        if stage.op == "all_gather":
            names = movable(program, stage.name)
            behind_send = program.reach([name for name in names if program.by_name[name].op == "send"])
            before_send = tuple(
                name for name in names if name not in behind_send and program.by_name[name].op != "send"
            )
            behind = program.reach([stage.name])
            norms = norms_of_slices(program, [name for name in names if name in behind])
            plain = tuple(name for name in names if name not in norms)
            for computations in dict.fromkeys((names, before_send, plain)):
                if computations:
                    yield Step("reorder", (computations, stage.name))
    for name, update in program.updates.items():
        gathers = [user.name for user in program.users[update.name] if user.op == "all_gather"]
        if not set(gathers) & set(program.outputs):  # what is an output stays what it is for the program's caller
            yield Step("as_slice", (name,))


def _fusions(program: Program) -> Iterator[Step]:
    free = [stage for stage in program.stages if stage.name not in program.fusion_of]
    for members in _passes(program, free):
        yield Step("fuse", (members, "compute"))
    for stage in free:
        if stage.op == "reduce_scatter" and not program.types[stage.name].is_scalar:
            yield Step("fuse", (_ring_members(program, free, stage), "collective"))
        if stage.op == "send":
            item = program.types[stage.reads[0]]
            feeding = [
                other.name for other in free
                if other.op in POINTWISE | {"slice"} and _space(program, other) == _space_of(item)
            ]  # fmt: skip
            yield Step("fuse", ((*feeding, stage.name), "collective"))


def _passes(program: Program, free: list[Stage]) -> Iterator[tuple[str, ...]]:
    """Largest sets of stages that one pass over memory can do: by shape and layout, and before or after a sum."""
    groups: dict[tuple[object, ...], list[str]] = {}
    levels = _levels(program)
    for stage in program.stages:
        if stage in free and stage.op in POINTWISE | REDUCTIONS | {"slice"}:
            space = _space(program, stage)
            if space[0]:
                groups.setdefault((*space, levels[stage.name]), []).append(stage.name)
    yield from (tuple(names) for names in groups.values() if len(names) > 1)


def _levels(program: Program) -> dict[str, int]:
    """How many sums and messages come behind each stage at least, negative: stages wait for none of their own level."""
    levels: dict[str, int] = {}
    users: dict[str, list[str]] = {stage.name: [] for stage in program.stages}
    for stage in program.stages:
        for name in program.predecessors[stage.name]:
            users[name].append(stage.name)
    for stage in reversed(program.stages):
        ends_pass = stage.op in REDUCTIONS or stage.communicates
        levels[stage.name] = min((levels[name] for name in users[stage.name]), default=0) - ends_pass
    return levels


def _space(program: Program, stage: Stage) -> tuple[object, ...]:
    return _space_of(program.types[stage.reads[0] if stage.op in REDUCTIONS else stage.name])


def _space_of(item: TensorType) -> tuple[object, ...]:
    return ((), None, None) if item.is_scalar else (item.shape, item.layout, item.group)


def _ring_members(program: Program, free: list[Stage], scatter: Stage) -> tuple[str, ...]:
    """A reduce-scatter, what is computed on its slices, scalars in between, and the gathers of results."""
    space = _space_of(program.types[scatter.name])
    members = [scatter.name]
    behind = program.reach([scatter.name])
    for stage in free:
        is_served = stage.name in behind or any(name in members for name in program.predecessors[stage.name])
        is_scalar = program.types[stage.name].is_scalar and is_served
        is_slice = stage.op in POINTWISE | REDUCTIONS | {"slice"} and _space(program, stage) == space
        is_gather = stage.op == "all_gather" and stage.reads[0] in members
        if is_scalar or is_slice or is_gather:
            members.append(stage.name)
    return tuple(members)


def _chains(program: Program) -> Iterator[tuple[str, ...]]:
    """Longest chains of units that pass chunks on, with communication in them."""
    known, before = units(program), unit_predecessors(program)
    taken = {item for chain in program.overlaps for item in chain.items}
    able = {name for name, members in known.items() if name not in taken and is_chunked(program, members)}
    sends = {name for name in able if any(program.by_name[item].communicates for item in known[name])}

    def follow(chain: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        after = [name for name in able if chain[-1] in before[name] and (name in sends or chain[-1] in sends)]
        if not after and len(chain) > 1:
            yield chain
        for name in after:
            yield from follow((*chain, name))

    for start in known:
        if start in able and not any(first in able and (first in sends or start in sends) for first in before[start]):
            yield from follow((start,))


# --- certificates ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Certificate:
    """Why a schedule computes what its program does.

    Attributes
    ----------
    derivation : tuple of str
        Values whose layout the schedule has changed or added, with their types.
    errors : mapping of int to float
        Largest relative error in float64 by the number of ranks, on random inputs of small, uneven sizes.
    """

    derivation: tuple[str, ...]
    errors: dict[int, float]

    @property
    def holds(self) -> bool:
        """Whether all errors are rounding errors."""
        return all(error <= _TOLERANCE for error in self.errors.values())


def certify(program: Program, steps: Sequence[Step], seed: int = 0) -> Certificate:
    """Derive the layouts of a schedule, and run it against its program in float64 on 2, 3 and 4 ranks.

    Parameters
    ----------
    program : Program
        Before the steps; its dimensions are made small, which no transformation depends on.
    steps : sequence of Step
    seed : int
    """
    after = apply_steps(program, steps)
    derivation = [
        f"{name}: {item}" + (f", was {program.types[name].layout}" if name in program.types else "")
        for name, item in after.types.items()
        if program.types.get(name) != item
    ]
    errors = {}
    for num_ranks in _RANKS:
        small = shrink(program, num_ranks)
        errors[num_ranks] = difference(small, apply_steps(small, steps), seed)
    return Certificate(tuple(derivation), errors)


def difference(program: Program, schedule: Program, seed: int) -> float:
    """Largest relative difference of outputs and updated inputs of two programs in float64, on random inputs."""
    inputs = random_inputs(program, seed, "float64")
    ours, theirs = (run_reference(item, inputs, "float64") for item in (program, schedule))
    pairs = [(name, other) for name, other in zip(program.outputs, schedule.outputs, strict=True)]
    pairs += [(name, name) for name in program.updates]
    worst = 0.0
    for name, other in pairs:
        first, second = assemble(program.types[name], ours[name]), assemble(schedule.types[other], theirs[other])
        scale = max(float(np.abs(first).max(initial=0)), 1e-300)
        worst = max(worst, float(np.abs(first - second).max(initial=0)) / scale)
    return worst


def shrink(program: Program, num_ranks: int) -> Program:
    """The same program on few ranks, with small dimensions that are equal where those of the program are."""
    sizes = sorted({size for item in program.inputs.values() for size in item.shape if size > 1})
    small = {1: 1}
    for index, size in enumerate(sizes):
        small[size] = 3 * num_ranks + 1 + index if size >= program.num_ranks else 1 + index % (num_ranks - 1)
    inputs = {
        name: replace(item, shape=tuple(small[size] for size in item.shape)) for name, item in program.inputs.items()
    }
    return replace(program, inputs=inputs, group_sizes=(num_ranks,) * len(program.group_sizes))
