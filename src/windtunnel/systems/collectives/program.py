"""A distributed step as a program over tensors with layouts, in single-assignment form.

In: inputs, stages, outputs. Out: a checked ``Program``: the type of every value, who reads it, what must come first.
Not here: writing programs by hand (``build``), type rules (``rules``), rewriting (``transforms``).

    inputs ──▶ stage ──▶ stage ──▶ outputs        a stage is one operator on whole tensors
                 └─ fusion ─┘                     stages of a fusion run as one pass, or as one pipelined collective
                 └─ overlap ────▶                 stages of an overlap pass chunks on while they work

References
----------
Jangda et al., ASPLOS 2022, sections 3 and 4.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from windtunnel.errors import InputError
from windtunnel.systems.collectives.layouts import TensorType
from windtunnel.systems.collectives.rules import COMMUNICATION, POINTWISE, infer, operator_names

__all__ = ["Fusion", "Overlap", "Program", "Stage"]

Operand = str | float


@dataclass(frozen=True, slots=True)
class Stage:
    """One operator.

    Attributes
    ----------
    name : str
        Of the value that it makes.
    op : str
        A name of ``rules``.
    operands : tuple of str or float
        Names of values, and constants.
    settings : tuple of (str, value)
        What the operator needs besides: ``dim``, ``root``, ``reduction``, ``probability``, ``seed``, ``dtype``.
    """

    name: str
    op: str
    operands: tuple[Operand, ...]
    settings: tuple[tuple[str, Any], ...] = ()

    def setting(self, name: str, default: Any = None) -> Any:
        """The value of a setting."""
        return dict(self.settings).get(name, default)

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the values that it reads, without constants."""
        return tuple(operand for operand in self.operands if isinstance(operand, str))

    @property
    def communicates(self) -> bool:
        """Whether ranks exchange data in it."""
        return self.op in COMMUNICATION

    @property
    def is_pointwise(self) -> bool:
        """Whether each element of the result depends on the same element of the operands only."""
        return self.op in POINTWISE

    def with_reads(self, names: Mapping[str, str]) -> Stage:
        """The same stage that reads other values."""
        return replace(
            self, operands=tuple(names.get(item, item) if isinstance(item, str) else item for item in self.operands)
        )

    def __str__(self) -> str:
        given = [item if isinstance(item, str) else f"{item:g}" for item in self.operands]
        given += [f"{name}={value}" for name, value in self.settings]
        return f"{self.name} = {self.op}({', '.join(given)})"


@dataclass(frozen=True, slots=True)
class Fusion:
    """Stages that run as one.

    Attributes
    ----------
    name : str
    kind : str
        ``compute``: one pass over memory. ``collective``: one pipelined collective whose chunks are computed on.
    members : tuple of str
        Names of stages, in their order.
    """

    name: str
    kind: Literal["compute", "collective"]
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overlap:
    """A chain whose later items start on the first chunks of the earlier ones.

    Attributes
    ----------
    items : tuple of str
        Names of stages and fusions, producer first.
    order : str
        ``ring``: a rank makes chunks in the order in which the ring takes them; ``natural``: chunk 0 first.
    """

    items: tuple[str, ...]
    order: Literal["ring", "natural"] = "ring"


@dataclass(frozen=True)
class Program:
    """A step of all ranks; equal programs are equal values.

    Parameters
    ----------
    name : str
    group_sizes : tuple of int
        Ranks of each group; ``Send`` leads from a group to the next.
    inputs : mapping of str to TensorType
    stages : tuple of Stage
        In an order in which they may run.
    outputs : tuple of str
        Values that are the answer. Updates of inputs are effects, and stay, too.
    fusions, overlaps : tuples

    Raises
    ------
    InputError
        A stage reads what is not there, a name is used twice, an updated input is read by its old name.
    LayoutError
        An operator does not take its operands; names the smallest repair.
    """

    name: str
    group_sizes: tuple[int, ...]
    inputs: Mapping[str, TensorType]
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]
    fusions: tuple[Fusion, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    types: Mapping[str, TensorType] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", self._infer_types())
        self._check_effects()

    def __hash__(self) -> int:
        return hash((self.name, self.group_sizes, self.stages, self.outputs, self.fusions, self.overlaps))

    # --- values and stages ----------------------------------------------------------------------------------

    @property
    def num_ranks(self) -> int:
        """Ranks of the first group."""
        return self.group_sizes[0]

    @cached_property
    def groups(self) -> tuple[range, ...]:
        """Ranks of each group, which are numbered one group behind the other."""
        stops = itertools.accumulate(self.group_sizes)
        return tuple(range(stop - size, stop) for stop, size in zip(stops, self.group_sizes, strict=True))

    @cached_property
    def by_name(self) -> dict[str, Stage]:
        """Stages by the name of their value."""
        return {stage.name: stage for stage in self.stages}

    @cached_property
    def users(self) -> dict[str, tuple[Stage, ...]]:
        """Stages that read each value."""
        result: dict[str, list[Stage]] = {name: [] for name in self.types}
        for stage in self.stages:
            for name in dict.fromkeys(stage.reads):
                result[name].append(stage)
        return {name: tuple(stages) for name, stages in result.items()}

    @cached_property
    def updates(self) -> dict[str, Stage]:
        """The stage that updates each input that is updated."""
        return {str(stage.operands[0]): stage for stage in self.stages if stage.op == "update"}

    def memory_bytes_of(self, group: int) -> int:
        """Bytes of all values on the first rank of a group, which has the most; an update overwrites its input."""
        overwriting = {stage.name for stage in self.updates.values()}
        kept = [item for name, item in self.types.items() if item.group == group and name not in overwriting]
        return sum(item.local_bytes(0, self.group_sizes[group]) for item in kept)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all values on all ranks."""
        return sum(size * self.memory_bytes_of(group) for group, size in enumerate(self.group_sizes))

    @cached_property
    def predecessors(self) -> dict[str, tuple[str, ...]]:
        """Stages that must run before each stage: makers of its operands, and earlier readers of what it overwrites."""
        result = {}
        for stage in self.stages:
            first = [name for name in stage.reads if name in self.by_name]
            if stage.op == "update":
                first += [user.name for user in self.users[str(stage.operands[0])] if user is not stage]
            result[stage.name] = tuple(dict.fromkeys(first))
        return result

    @cached_property
    def fusion_of(self) -> dict[str, Fusion]:
        """The fusion of each stage that is in one."""
        return {member: fusion for fusion in self.fusions for member in fusion.members}

    @cached_property
    def live(self) -> frozenset[str]:
        """Stages that outputs or updates need."""
        needed: set[str] = set()
        waiting = [*self.outputs, *(stage.name for stage in self.updates.values())]
        for stage in self.updates.values():  # a replicated input that is updated in slices has to be gathered
            waiting += [user.name for user in self.users[stage.name] if user.op == "all_gather"]
        while waiting:
            name = waiting.pop()
            if name in self.by_name and name not in needed:
                needed.add(name)
                waiting += self.by_name[name].reads
        return frozenset(needed)

    def reach(self, names: Iterable[str]) -> set[str]:
        """Stages that come after any of these, without them."""
        reached: set[str] = set()
        start = set(names)
        for stage in self.stages:
            if any(name in start or name in reached for name in self.predecessors[stage.name]):
                reached.add(stage.name)
        return reached

    def is_convex(self, names: Iterable[str]) -> bool:
        """Whether no path leaves these stages and comes back, so that they can run as one."""
        inside = set(names)
        left = self.reach(inside) - inside
        return not any(name in left for item in inside for name in self.predecessors[item])

    def lint(self) -> list[str]:
        """Warnings about what is legal and rarely meant."""
        warnings = []
        for stage in self.stages:
            types = [self.types[name] for name in stage.reads]
            replicated = [
                name for name, item in zip(stage.reads, types, strict=True)
                if item.layout.is_replicated and not item.is_scalar
            ]  # fmt: skip
            is_summed = any(
                self.by_name[name].op in ("all_reduce", "reduce_scatter")
                and self.by_name[name].setting("reduction") == "sum"
                for name in self.reach([stage.name])
            )
            if stage.is_pointwise and self.types[stage.name].layout.is_local and replicated and is_summed:
                warnings.append(
                    f"{stage}: replicated {', '.join(replicated)} is combined with a local tensor that is summed "
                    f"afterwards, so that it counts {self.num_ranks} times; combine it after the all-reduce"
                )
        return warnings

    def with_stages(self, stages: Iterable[Stage], **changes: Any) -> Program:
        """The program of other stages, put in an order in which they may run; changes go to ``dataclasses.replace``."""
        inputs = changes.get("inputs", self.inputs)
        return replace(self, stages=tuple(sort_stages(inputs, list(stages))), **changes)

    def __str__(self) -> str:
        width = max((len(str(stage)) for stage in self.stages), default=0)
        sizes = ", ".join(map(str, self.group_sizes))
        lines = [f"program {self.name} on {'groups' if len(self.group_sizes) > 1 else 'a group'} of {sizes} ranks"]
        lines += [f"  input {name}: {item}" for name, item in self.inputs.items()]
        for stage in self.stages:
            fusion = self.fusion_of.get(stage.name)
            inside = f"  in {fusion.name}" if fusion else ""
            lines.append(f"  {stage!s:<{width}}  : {self.types[stage.name]}{inside}")
        lines += [f"  fuse {item.name} ({item.kind}): {', '.join(item.members)}" for item in self.fusions]
        lines += [f"  overlap ({item.order} order): {' -> '.join(item.items)}" for item in self.overlaps]
        return "\n".join([*lines, f"  output {', '.join(self.outputs)}"])

    # --- checks ---------------------------------------------------------------------------------------------

    def _infer_types(self) -> dict[str, TensorType]:
        types: dict[str, TensorType] = dict(self.inputs)
        for stage in self.stages:
            if stage.op not in operator_names():
                raise InputError(
                    f"there is no operator {stage.op!r}", where=str(stage), fix=f"known: {', '.join(operator_names())}"
                )
            missing = [name for name in stage.reads if name not in types]
            if missing:
                raise InputError(
                    f"{missing[0]} is read before any stage makes it", where=str(stage), fix="define it above"
                )
            if stage.name in types:
                raise InputError(f"{stage.name} is defined twice", where=str(stage), fix="give it another name")
            operands = [types[item] if isinstance(item, str) else item for item in stage.operands]
            types[stage.name] = infer(stage, operands, self.group_sizes)
        lacking = [name for name in self.outputs if name not in types]
        if lacking:
            raise InputError(f"output {lacking[0]} is not a value of the program", where=self.name, fix="define it")
        return types

    def _check_effects(self) -> None:
        """Updated inputs are not read afterwards, and a replicated input is whole again at the end."""
        position = {stage.name: index for index, stage in enumerate(self.stages)}
        written = [stage for stage in self.stages if stage.op == "update"]
        if len(self.updates) < len(written):
            raise InputError("an input is updated twice", where=self.name, fix="combine the updates into one")
        for target, update in self.updates.items():
            if target not in self.inputs:
                raise InputError(f"{target} is not an input", where=str(update), fix="update inputs only")
            late = [user for user in self.users[target] if position[user.name] > position[update.name]]
            if late:
                raise InputError(
                    f"{target} is read after it is overwritten", where=str(late[0]), fix=f"read {update.name} instead"
                )
            is_partial = self.types[update.name].layout.is_sliced and not self.inputs[target].layout.is_sliced
            if is_partial and not any(user.op == "all_gather" for user in self.users[update.name]):
                raise InputError(
                    f"replicated {target} is updated in slices only, so that ranks disagree about it afterwards",
                    where=str(update),
                    fix=f"insert AllGather on `{update.name}`, or store {target} sliced",
                )


def sort_stages(inputs: Mapping[str, TensorType], stages: list[Stage]) -> Iterator[Stage]:
    """Stages in an order in which each comes after what it reads, and updates after all readers of the old value.

    Raises
    ------
    InputError
        There is none: a stage needs both the old and the new value of an input.
    """
    done = set(inputs)
    left = stages
    while left:
        stage = next((item for item in left if _is_ready(item, done, left)), None)
        if stage is None:
            raise InputError(
                "no order of the stages is possible", where=str(left[0]), fix="do not read an input after its update"
            )
        done.add(stage.name)
        left = [item for item in left if item is not stage]
        yield stage


def _is_ready(stage: Stage, done: set[str], left: list[Stage]) -> bool:
    """Whether all that a stage reads is there, and all readers of what it overwrites have run."""
    others = (item for item in left if item is not stage and stage.operands[0] in item.reads)
    return all(name in done for name in stage.reads) and not (stage.op == "update" and any(others))
