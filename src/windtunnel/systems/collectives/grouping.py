"""Stages that run as one, and chains whose units work at the same time.

In: a program and names of its stages. Out: the same program with a fusion or an overlap more. Both raise
``NotApplicableError`` with the reason where the stages cannot run so. Not here: rewriting of stages (``transforms``).

    reduce_scatter, C, all_gather ─fuse─▶ one pipelined collective ─overlap─▶ works on chunks while its producer does

References
----------
Jangda et al., ASPLOS 2022, sections 4.3 and 4.4. The published check for cycles is inverted, and never fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from windtunnel.errors import NotApplicableError
from windtunnel.systems.collectives.program import Fusion, Overlap, Program, Stage
from windtunnel.systems.collectives.rules import COMMUNICATION, POINTWISE, REDUCTIONS

__all__ = ["fuse", "in_order", "is_chunked", "overlap", "require", "require_unscheduled", "unit_predecessors", "units"]


def require(condition: object, reason: str, where: object, fix: str = "") -> None:
    """Refuse a transformation whose condition does not hold."""
    if not condition:
        raise NotApplicableError(reason, where=str(where), fix=fix or "leave this transformation out")


def require_unscheduled(program: Program, names: Iterable[str]) -> None:
    """Fused stages are rewritten no more: what they do is one instruction."""
    fused = [name for name in names if name in program.fusion_of]
    require(not fused, f"{', '.join(fused)} is fused", program.name, "rewrite before fusing")
    require(not program.overlaps, "the program has overlaps", program.name, "rewrite before overlapping")


# --- fuse -----------------------------------------------------------------------------------------------------


def fuse(program: Program, members: Sequence[str], kind: Literal["compute", "collective"]) -> Program:
    """Run stages as one.

    Parameters
    ----------
    program : Program
    members : sequence of str
    kind : str
        ``compute``: one pass over memory. ``collective``: a reduce-scatter, computations on its slices and all-gathers
        as one pipelined collective, or computations and the send of their result.

    Raises
    ------
    NotApplicableError
        They cannot run as one: something between them is outside, an operator has no place in such a fusion.
    """
    stages = [stage for stage in program.stages if stage.name in set(members)]
    require(len(stages) == len(set(members)) > 1, "a fusion takes two stages or more", ", ".join(members))
    require_unscheduled(program, members)
    (_check_compute if kind == "compute" else _check_collective)(program, stages)
    fusion = Fusion(f"fused_{stages[-1].name}", kind, tuple(stage.name for stage in stages))
    result = replace(program, fusions=(*program.fusions, fusion))
    before = unit_predecessors(result)
    require(len(in_order(before, before)) == len(before), "something outside runs between the stages", fusion.name)
    return result


def _check_compute(program: Program, stages: list[Stage]) -> None:
    """One loop over elements: all of one shape, and no stage waits for a sum over others."""
    spaces = set()
    for stage in stages:
        require(stage.op in POINTWISE | REDUCTIONS | {"slice"}, f"{stage.op} is no pass over elements", stage)
        space = program.types[stage.reads[0] if stage.op in REDUCTIONS else stage.name]
        if not space.is_scalar:
            spaces.add((space.shape, space.layout, space.group))
        summed = [name for name in stage.reads if name in {item.name for item in stages if item.op in REDUCTIONS}]
        require(not summed, f"{', '.join(summed)} is known after a whole pass only", stage)
    require(len(spaces) == 1, "the stages work on tensors of different shapes or layouts", stages[0])


def _check_collective(program: Program, stages: list[Stage]) -> None:
    """ReduceScatter → computations → AllGather over one group and dimension, or computations → Send."""
    wide = [stage for stage in stages if not program.types[stage.name].is_scalar]
    ops = [stage.op for stage in wide if stage.communicates]
    for stage in stages:
        is_scalar = program.types[stage.name].is_scalar
        allowed = POINTWISE | REDUCTIONS | {"slice"} | (COMMUNICATION if not is_scalar else {"all_reduce"})
        require(stage.op in allowed, f"{stage.op} has no place in a collective", stage)
        require(is_scalar or stage.op not in ("reduce", "broadcast", "all_reduce"), f"{stage.op} is no ring", stage)
    if "send" in ops:
        require(ops == ["send"], "a send is fused with computations only", stages[0])
        require(len(wide) > 1, "a send is fused with computations only", stages[0])
        return
    require(ops.count("reduce_scatter") == 1, "a fused collective has one reduce-scatter", stages[0])
    require("all_gather" in ops, "a fused collective ends in an all-gather", stages[0])
    scatter = next(stage for stage in wide if stage.op == "reduce_scatter")
    cut = program.types[scatter.name]
    before = [stage.name for stage in stages if scatter.name in program.reach([stage.name])]
    require(not before, f"{', '.join(before)} comes before the reduce-scatter", scatter)
    for stage in stages:
        if stage in wide or stage.op in REDUCTIONS:
            item = program.types[stage.reads[0] if stage.op == "all_gather" or stage.op in REDUCTIONS else stage.name]
            is_equal = (item.layout, item.group, item.shape) == (cut.layout, cut.group, cut.shape)
            require(is_equal, "its slices are others than those of the reduce-scatter", stage)


def units(program: Program) -> dict[str, tuple[str, ...]]:
    """What runs as one, by its name: members of fusions, and single stages."""
    result: dict[str, tuple[str, ...]] = {}
    for stage in program.stages:
        fusion = program.fusion_of.get(stage.name)
        result[fusion.name if fusion else stage.name] = fusion.members if fusion else (stage.name,)
    return result


def unit_of(program: Program, name: str) -> str:
    """The unit that a stage belongs to."""
    fusion = program.fusion_of.get(name)
    return fusion.name if fusion else name


def unit_predecessors(program: Program) -> dict[str, set[str]]:
    """Units that must run before each unit."""
    result: dict[str, set[str]] = {}
    for unit, members in units(program).items():
        before = {unit_of(program, name) for member in members for name in program.predecessors[member]}
        result[unit] = before - {unit}
    return result


def in_order(items: Iterable[str], before: Mapping[str, set[str]]) -> list[str]:
    """Items after all that must come before them, otherwise as they come; without those that form a cycle."""
    result: list[str] = []
    left = list(items)
    while item := next((item for item in left if not (before[item] - {item}) & set(left)), ""):
        left.remove(item)
        result.append(item)
    return result


# --- overlap --------------------------------------------------------------------------------------------------


def overlap(program: Program, items: Sequence[str], order: Literal["ring", "natural"] = "ring") -> Program:
    """Let each unit of a chain start on the first chunks of the one before.

    Parameters
    ----------
    program : Program
    items : sequence of str
        Stages and fusions, producer first. Products are made row by row, collectives chunk by chunk.
    order : str
        In which order a rank makes chunks; all but ``ring`` leave the ring waiting.

    Raises
    ------
    NotApplicableError
        They are no chain, or one of them needs all of its operand before it starts.
    """
    known = units(program)
    require(len(items) > 1 and all(item in known for item in items), "an overlap takes two units or more", items)
    taken = {item for chain in program.overlaps for item in chain.items}
    require(not taken & set(items), "a unit is overlapped already", items)
    before = unit_predecessors(program)
    for producer, consumer in itertools.pairwise(items):
        require(producer in before[consumer], f"{consumer} does not read {producer}", program.name)
    for item in items:
        require(is_chunked(program, known[item]), f"{item} needs all of its operand before it starts", program.name)
    communicates = [any(program.by_name[name].communicates for name in known[item]) for item in items]
    require(any(communicates), "nothing of it communicates", program.name, "fuse computations instead")
    result = replace(program, overlaps=(*program.overlaps, Overlap(tuple(items), order)))
    chained = set(items)
    for item in items[1:]:
        late = [name for name in before[item] - chained if _comes_after(before, name, chained)]
        require(not late, f"{', '.join(late)} runs between the units", program.name)
    return result


def is_chunked(program: Program, members: tuple[str, ...]) -> bool:
    """Whether a unit can start before all of its operand is there."""
    chunked = POINTWISE | {"matmul", "reduce_scatter", "all_gather", "all_reduce", "send", "slice"}
    wide = [name for name in members if not program.types[name].is_scalar]
    return bool(wide) and all(program.by_name[name].op in chunked for name in wide)


def _comes_after(before: dict[str, set[str]], name: str, chain: set[str]) -> bool:
    """Whether a unit outside a chain needs a unit of it."""
    waiting, seen = [name], set()
    while waiting:
        for item in before[waiting.pop()]:
            if item in chain:
                return True
            if item not in seen:
                seen.add(item)
                waiting.append(item)
    return False
