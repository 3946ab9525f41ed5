"""Rewriting of stages: each transformation computes the same from other collectives and layouts.

In: a program and names of its stages. Out: a new program; the old one stays as it is. Each transformation ``f`` raises
``NotApplicableError`` with the reason where it would change the result. Not here: running stages as
one (``grouping``), which transformations pay (``search``), proofs by running (``schedules``).

    all_reduce ─split─▶ reduce_scatter, all_gather
               ─reorder─▶ reduce_scatter, computation on slices, all_gather
               ─as_slice─▶ states stored in slices

References
----------
Jangda et al., ASPLOS 2022, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from windtunnel.errors import NotApplicableError
from windtunnel.systems.collectives.grouping import require, require_unscheduled
from windtunnel.systems.collectives.layouts import FLAT, ring_dim, slice_layout
from windtunnel.systems.collectives.program import Program, Stage
from windtunnel.systems.collectives.rules import POINTWISE, REDUCTIONS, LayoutError, infer, spans

__all__ = ["as_slice", "dead", "movable", "norms_of_slices", "reorder", "split"]

_MOVABLE = POINTWISE | REDUCTIONS | {"slice", "send"}


def _stage(program: Program, name: str) -> Stage:
    require(name in program.by_name, f"there is no stage {name}", program.name, "see the stages of the program")
    return program.by_name[name]


# --- split ----------------------------------------------------------------------------------------------------


def split(
    program: Program, name: str, form: Literal["scatter-gather", "reduce-broadcast"] = "scatter-gather"
) -> Program:
    """Replace an all-reduce by two collectives: ``NAME_rs`` and ``NAME_ag``, or ``NAME_rd`` and ``NAME_bc``.

    Parameters
    ----------
    program : Program
    name : str
        An all-reduce.
    form : str
        ``scatter-gather``: reduce-scatter and all-gather over the ring's chunks. ``reduce-broadcast``: over root 0.

    Raises
    ------
    NotApplicableError
        The stage is no all-reduce, or it is fused.
    """
    stage = _stage(program, name)
    require(stage.op == "all_reduce", f"{name} is no all-reduce", stage)
    require_unscheduled(program, [name])
    source, reduction = stage.operands, ("reduction", stage.setting("reduction", "sum"))
    if form == "scatter-gather":
        item = program.types[str(source[0])]
        dim = ring_dim(item, program.group_sizes[item.group])
        first = Stage(f"{name}_rs", "reduce_scatter", source, (reduction, ("dim", dim)))
        second = Stage(f"{name}_ag", "all_gather", (first.name,))
    else:
        first = Stage(f"{name}_rd", "reduce", source, (reduction, ("root", 0)))
        second = Stage(f"{name}_bc", "broadcast", (first.name,), (("root", 0),))
    return _substitute(program, {name: second.name}, {name: (first, second)})


def _substitute(
    program: Program, names: dict[str, str], instead: dict[str, tuple[Stage, ...]], **changes: Any
) -> Program:
    """The program with stages replaced, and their values read under other names."""
    stages: list[Stage] = []
    for stage in program.stages:
        stages += instead.get(stage.name, (stage.with_reads(names),))
    return program.with_stages(stages, outputs=tuple(names.get(name, name) for name in program.outputs), **changes)


# --- reorder --------------------------------------------------------------------------------------------------


def movable(program: Program, gather: str) -> tuple[str, ...]:
    """All stages behind an all-gather that can run before it, on slices."""
    moved: list[str] = []
    behind: set[str] = set()  # depends on what is moved, and stays: what reads it stays, too
    for stage in program.stages:
        reads_moved = any(name == gather or name in moved for name in program.predecessors[stage.name])
        if any(name in behind for name in program.predecessors[stage.name]):
            behind.add(stage.name)
        elif reads_moved and _moves(program, stage):
            moved.append(stage.name)
        elif reads_moved:
            behind.add(stage.name)
    return tuple(moved) + _feeding(program, moved) + norms_of_slices(program, moved)


def norms_of_slices(program: Program, moved: Sequence[str]) -> tuple[str, ...]:
    """Reductions of replicated values of which moved computations read slices anyway, and scalars up to these.

    LAMB's norm of the weights is one: it costs a rank one slice of them and a second number in an all-reduce, instead
    of a pass over all weights.
    """
    read = {name for item in moved for name in program.by_name[item].reads if not program.types[name].is_scalar}
    norms = [
        stage.name for stage in program.stages
        if stage.op in REDUCTIONS and stage.name not in moved and stage.reads[0] in read
        and program.types[stage.reads[0]].layout.is_replicated and not program.reach(moved) & {stage.name}
    ]  # fmt: skip
    behind = program.reach(norms) if norms else set()
    serving = [
        stage.name for stage in program.stages
        if stage.name in behind and stage.name not in moved and stage.is_pointwise
        and program.types[stage.name].is_scalar and program.reach([stage.name]) & set(moved)
    ]  # fmt: skip
    return (*norms, *serving)


def _feeding(program: Program, moved: list[str]) -> tuple[str, ...]:
    """Pointwise stages whose results only moved computations read: they can be computed in slices, too."""
    feeding: list[str] = []
    for stage in reversed(program.stages):
        users = [user.name for user in program.users[stage.name]]
        is_free = stage.name not in moved and stage.name not in program.outputs and stage.op != "update"
        is_plain = stage.is_pointwise and not program.types[stage.name].is_scalar and _moves(program, stage)
        if is_free and is_plain and users and all(name in moved or name in feeding for name in users):
            feeding.append(stage.name)
    return tuple(feeding)


def _moves(program: Program, stage: Stage) -> bool:
    return stage.op in _MOVABLE and not any(program.types[name].layout.is_local for name in stage.reads)


def reorder(program: Program, computations: Sequence[str], gather: str) -> Program:
    """Compute on slices before an all-gather instead of on everything after it.

    Each value that is still needed everywhere gets an all-gather of its own, ``VALUE_ag``; reductions of slices get an
    all-reduce of one element, ``VALUE_total``; replicated operands get a ``Slice``.

    Parameters
    ----------
    program : Program
    computations : sequence of str
        Pointwise operators, reductions, slices, sends and updates; ``movable`` finds all that can be moved.
    gather : str
        An all-gather.

    Raises
    ------
    NotApplicableError
        No computation reads the gather, a path between two of them leaves them, or one of them has no slices.
    """
    stage = _stage(program, gather)
    require(stage.op == "all_gather", f"{gather} is no all-gather", stage)
    moved = [item for item in program.stages if item.name in set(computations)]
    require_unscheduled(program, [gather, *computations])
    require(any(gather in item.reads for item in moved), f"no computation reads {gather}", stage)
    needless = [item.name for item in moved if not _is_behind(program, item, gather, computations)]
    require(not needless, f"{', '.join(needless)} has nothing to do with {gather}", stage)
    require(program.is_convex(computations), "a path between the computations leaves them", gather)
    for item in moved:
        require(item.op in _MOVABLE, f"{item.op} does not work on slices", item)
        local = [name for name in item.reads if program.types[name].layout.is_local]
        require(not local, f"operand {', '.join(local)} is local", item)
    try:
        return _Reordering(program, stage, moved).program()
    except LayoutError as error:
        raise NotApplicableError(f"no slices: {error.message}", where=error.where, fix=error.fix) from None


def _is_behind(program: Program, stage: Stage, gather: str, computations: Sequence[str]) -> bool:
    """Whether a computation depends on the gather, or only serves computations."""
    users = program.users[stage.name]
    is_shared = stage.op in REDUCTIONS or program.types[stage.name].is_scalar
    return is_shared or stage.name in program.reach([gather]) or all(user.name in computations for user in users)


class _Reordering:
    """Computations rewritten one after the other, with their types."""

    def __init__(self, program: Program, gather: Stage, moved: list[Stage]) -> None:
        self.before, self.gather, self.moved = program, gather, moved
        self.names = {gather.name: str(gather.operands[0])}  # old value -> value that moved computations read
        self.types = dict(program.types)
        self.stages: list[Stage] = []
        behind = program.reach([gather.name])
        # computations that only feed others are made in slices when a slice of them is needed
        self.feeding = {
            stage.name: stage for stage in moved
            if stage.name not in behind and stage.op not in REDUCTIONS and not program.types[stage.name].is_scalar
        }  # fmt: skip

    def program(self) -> Program:
        for stage in self.moved:
            if stage.name not in self.feeding:
                self._move(stage)
        for stage in self.feeding.values():  # nothing needs slices of these
            if stage.name not in self.names:
                self.names[stage.name] = stage.name
                self.stages.append(stage)
        inside = {stage.name for stage in self.moved}
        outside: dict[str, str] = {}
        for stage in self.moved:
            used = any(user.name not in inside for user in self.before.users[stage.name])
            name = self.names[stage.name]
            is_split = self.types[name].layout.is_sliced and not self.before.types[stage.name].layout.is_sliced
            is_state = stage.op == "update" and is_split
            if is_split and (used or is_state or stage.name in self.before.outputs):
                outside[stage.name] = f"{stage.name}_ag"
                self.stages.append(Stage(f"{stage.name}_ag", "all_gather", (name,)))
            elif name != stage.name:
                outside[stage.name] = name
        kept = [stage.with_reads(outside) for stage in self.before.stages if stage.name not in inside]
        outputs = tuple(outside.get(name, name) for name in self.before.outputs)
        return dead(self.before.with_stages([*kept, *self.stages], outputs=outputs))

    def _move(self, stage: Stage) -> None:
        """Add one computation on slices, with what it needs."""
        renamed = stage.with_reads(self.names)
        gathered, first = self.types[str(self.gather.operands[0])], self.types.get(next(iter(renamed.reads), ""))
        if (
            stage.op in REDUCTIONS
            and first is not None
            and first.layout.is_replicated
            and first.shape == gathered.shape
        ):
            renamed = renamed.with_reads({renamed.reads[0]: self._slice(renamed.reads[0], gathered.layout.dim)})
        if stage.op == "slice" and self.types[renamed.reads[0]].layout == slice_layout(stage.setting("dim")):
            self.names[stage.name] = renamed.reads[0]
            return
        while True:
            operands = [self.types[item] if isinstance(item, str) else item for item in renamed.operands]
            try:
                self.types[stage.name] = infer(renamed, operands, self.before.group_sizes)
                break
            except LayoutError as error:
                repair, target, settings = error.repair
                if repair != "slice":
                    raise
                renamed = renamed.with_reads({target: self._slice(target, settings["dim"])})
        self.stages.append(renamed)
        self.names[stage.name] = stage.name
        if stage.op in REDUCTIONS and self.types[stage.name].layout.is_local:
            total = Stage(f"{stage.name}_total", "all_reduce", (stage.name,), (("reduction", "sum"),))
            self.types[total.name] = infer(total, [self.types[stage.name]], self.before.group_sizes)
            self.stages.append(total)
            self.names[stage.name] = total.name

    def _slice(self, name: str, dim: int) -> str:
        """A slice of a replicated value, the same one for all that read it; computed of slices where it can be."""
        if name in self.feeding:
            return self._compute_slice(self.feeding[name], dim)
        sliced_name = f"{name}_slice" + ("" if dim in (0, FLAT) else str(dim))
        if sliced_name not in self.types:
            stage = Stage(sliced_name, "slice", (name,), (("dim", dim),))
            self.types[sliced_name] = infer(stage, [self.types[name]], self.before.group_sizes)
            self.stages.append(stage)
        return sliced_name

    def _compute_slice(self, stage: Stage, dim: int) -> str:
        """A computation on slices of its operands; its value keeps its name."""
        if stage.name not in self.names:
            shape = self.before.types[stage.name].shape
            slices = {}
            for name in stage.reads:
                item = self.types[name]
                if item.layout.is_replicated and spans(item, shape, dim):
                    slices[name] = self._slice(name, dim if dim == FLAT else dim - (len(shape) - len(item.shape)))
            renamed = stage.with_reads(slices)
            operands = [self.types[item] if isinstance(item, str) else item for item in renamed.operands]
            self.types[stage.name] = infer(renamed, operands, self.before.group_sizes)
            self.stages.append(renamed)
            self.names[stage.name] = stage.name
        return stage.name


# --- as_slice and dead ----------------------------------------------------------------------------------------


def as_slice(program: Program, name: str) -> Program:
    """Store a replicated input as slices, such as the state of an optimizer.

    The slices of it go away, and so does the all-gather of its new value; if that was an output, the slices are.

    Raises
    ------
    NotApplicableError
        It is read as a whole, or its new value is not sliced, or the whole new value is needed.
    """
    require(name in program.inputs, f"{name} is no input", program.name)
    item = program.inputs[name]
    require(item.layout.is_replicated, f"{name} is {item.layout} already", program.name)
    require(name in program.updates, f"{name} is not updated", program.name)
    update = program.updates[name]
    layout = program.types[update.name].layout
    require(layout.is_sliced, f"the new value of {name} is not sliced", update, "reorder the update first")
    require_unscheduled(program, [update.name])
    whole = [user for user in program.users[name] if user is not update and user.op != "slice"]
    require(not whole, f"{name} is read as a whole", whole[0] if whole else "")
    slices = [user for user in program.users[name] if user.op == "slice"]
    require(all(program.types[user.name].layout == layout for user in slices), f"{name} has other slices, too", update)
    gathers = [user.name for user in program.users[update.name] if user.op == "all_gather"]
    for gather in gathers:
        require(not program.users[gather], f"the whole new value of {name} is read", gather)
    names = dict.fromkeys((user.name for user in slices), name) | dict.fromkeys(gathers, update.name)
    inputs = {**program.inputs, name: item.with_layout(layout)}
    return _substitute(program, names, dict.fromkeys(names, ()), inputs=inputs)


def dead(program: Program) -> Program:
    """Drop the stages that neither outputs nor updates need."""
    return program.with_stages([stage for stage in program.stages if stage.name in program.live])
