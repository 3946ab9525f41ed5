"""Lower scheduled programs to plans: instructions on buffers for each rank.

In: a program with its fusions and overlaps. Out: a ``Plan``. Not here: which schedule pays (``search``), how an
instruction runs.

    unit ─┬─ computation ────────▶ one kernel call
          ├─ collective ─────────▶ hops of a ring, whole chunks
          └─ fused collective, ──▶ ``stream``: piece by piece, with a thread for communication where a producer overlaps
             overlap

References
----------
Jangda et al., ASPLOS 2022, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.systems.collectives.grouping import in_order, unit_predecessors, units
from windtunnel.systems.collectives.plan import Plan
from windtunnel.systems.collectives.program import Program
from windtunnel.systems.collectives.ranks import RankLowering
from windtunnel.systems.collectives.stream import Stream

__all__ = ["lower", "run_order"]


def lower(program: Program, num_pieces: int = 0) -> Plan:
    """The plan of a scheduled program.

    Parameters
    ----------
    program : Program
    num_pieces : int
        Into how many pieces a chunk is cut where collectives are pipelined, and rows of products are; by default pieces
        of about 256 KiB, at most 8. Programs that shall agree bit for bit need equal numbers.

    Examples
    --------
    >>> from windtunnel.systems.collectives.workloads import sgd
    >>> plan = lower(sgd(num_ranks=2, num_parameters=8))
    >>> [rank.traffic_bytes() for rank in plan.ranks]
    [32, 32]
    """
    chains = run_order(program)
    plans = []
    for group, size in enumerate(program.group_sizes):
        for rank in range(size):
            lowering = RankLowering(program, group, rank, num_pieces)
            for unit_members, order in chains:
                _add(lowering, unit_members, order)
            plans.append(lowering.plan())
    return Plan(program.name, program.group_sizes, tuple(plans))


def run_order(program: Program) -> list[tuple[list[list[str]], str]]:
    """What all ranks run one after the other: live stages of a unit, or of the units of an overlap, and its order."""
    chain_of = {item: chain for chain in program.overlaps for item in chain.items}
    live = {name: [item for item in names if item in program.live] for name, names in units(program).items()}
    members = {name: names for name, names in live.items() if names}
    before = unit_predecessors(program)
    # an overlap runs as one, as a fusion does
    groups: dict[str, list[str]] = {}
    for name in members:
        chain = chain_of.get(name)
        groups[chain.items[0] if chain else name] = (
            [item for item in chain.items if item in members] if chain else [name]
        )
    key_of = {name: key for key, names in groups.items() for name in names}
    between = {
        key: {key_of[first] for name in names for first in before[name] if first in key_of}
        for key, names in groups.items()
    }
    return [
        ([members[name] for name in groups[key]], chain_of[key].order if key in chain_of else "ring")
        for key in in_order(groups, between)
    ]


def _add(lowering: RankLowering, unit_members: Sequence[Sequence[str]], order: str) -> None:
    """Add a unit, or the units of an overlap, to the instructions of a rank."""
    program = lowering.program
    stages = [program.by_name[name] for members in unit_members for name in members]
    if not any(program.types[name].group == lowering.group for stage in stages for name in (stage.name, *stage.reads)):
        return
    stages = lowering.add_slices(stages)
    is_stream = len(stages) > 1 and any(stage.communicates for stage in stages)
    if is_stream and Stream.fits(program, unit_members):
        Stream(lowering, unit_members, order).add()
        return
    for members in unit_members:
        lowering.add_unit([stage for stage in stages if stage.name in members])
