"""What is known about a graph as a whole.

In: what a reader, an edit or a pricer says. Out: ``Meta``, a frozen record; its fields are all that a graph can carry
beside its tables, and ``store`` writes them with the version of the schema. A plug-in keeps what no field is for under
its own name in ``own``. Readers and edits build their ``Meta`` themselves; only what comes from a file, which somebody
may have written by hand, is checked field by field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Annotated, Any, TypedDict, get_type_hints

import msgspec

from windtunnel.base.reading import format_value
from windtunnel.errors import InputError

__all__ = ["Meta", "ProcessGroup", "read_meta"]

Facts = Mapping[str, Any]
_Duration = Annotated[float, msgspec.Meta(ge=0.0, le=2.0**62)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Time = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Ranks that communicate together; column ``group`` of a task is its place in ``Meta.groups``.

    Parameters
    ----------
    name : str
    ranks : tuple of int
        Its members, in the order of the group; empty where the source does not tell, or cut the list.
    members_text : str
        The members in the source's own words, where they could not be read.
    """

    name: str
    ranks: tuple[int, ...] = ()
    members_text: str = ""

    @classmethod
    def read(cls, name: str, members_text: str) -> ProcessGroup:
        """A group whose members are text, as profilers write them: ``"[0, 1]"``, or cut: ``"[0, 1, ...]"``."""
        inner = members_text.strip().strip("[]").split(",") if members_text.strip("[] ") else []
        is_whole = all(part.strip().isdecimal() for part in inner)
        return cls(name, tuple(map(int, inner))) if is_whole else cls(name, members_text=members_text)

    def __str__(self) -> str:
        return f"group {self.name!r} {list(self.ranks) if self.ranks else self.members_text}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """Facts about a graph; what is not known has the default of its field.

    Parameters
    ----------
    source : str
        Name of the source that made the graph.
    origin : mapping
        How to make it again: ``workload`` and ``parameters``, or ``script`` and ``argv``.
    own : mapping
        Facts of a plug-in by its name.

    trace : mapping
        Of a file: its path, and what was left out, by reason.
    origin_ns : int
        Time of its clock at which the graph's times begin.
    window : mapping
        ``name`` and ``duration_ns`` of the part that was loaded.
    iterations : tuple of str
        Names of the iterations.
    num_unmeasured_tasks : int, optional
        Tasks whose duration nothing told.
    other_ratio : float, optional
        Share of the tasks' time in no known phase.
    ranks : mapping
        File of each rank.
    clocks : mapping
        Of several ranks: the ``hosts`` with what was added to their clocks, the ``spread_ns`` that is left, and
        ``notes``.
    groups : tuple of ProcessGroup
    routes : tuple of tuple of int
        Links that a message uses at once, as rows of resources; column ``route`` of a task is its place here.
    distributed : mapping
        What the profiler says of the job: ``backend``, ``rank``, ``world_size``.
    slice_of : int, optional
        Tasks of the whole that this graph is a part of.

    hardware : mapping
        ``machine``, ``processor``, ``num_cores``, ``num_threads``, ``torch``, ``devices``.
    iteration_ns, profiled_iteration_ns : mapping
        ``median``, ``samples`` and quartiles of iterations without and with a profiler.
    overhead : mapping
        What measuring cost, and how it was corrected.
    disturbance : mapping
        What other programs took of the measured iterations: ``lost_ratio``, the median share of an iteration for which
        it waited for a core, absent where that was next to none; ``num_repeated``, how many were measured again.
    allocator : mapping
        What holding the heap changed.
    shapes : mapping
        ``inputs``, shapes of the tensors that the models are called with, and other forms of the iterations, where
        their inputs differ in shape.
    gc_pause_ns : int, optional
        What the garbage collector takes per iteration.
    loader : mapping
        ``num_workers`` and ``fetch_ns`` of a data loader.
    irregular : mapping
        What the loop does only now and then: ``events`` of a ``kind`` (validation, checkpoint, logging, end of epoch),
        each seen ``num_seen`` times in ``num_iterations``, ``every`` so many iterations (None: seen once), at a
        ``cost_ns``; ``iterations_per_epoch`` where the loader says it.
    is_complete : bool
        Whether all iterations that were asked for were measured.
    is_uncompiled : bool
        Whether the program is given to ``torch.compile``, and this graph holds its operators one by one all the same.
    has_default_device : bool
        Whether the program ran with a device as torch's default (``torch.set_default_device``): each call from Python
        passes through a mode of torch then, and counters of optimizers lie on that device.
    runs_ahead : bool
        Whether the work was put on queues of a device where it never ran: its threads go on to the next iteration while
        these still work.
    memory_base_bytes : int
        What is always there, on each rank: parameters, optimizer state, buffers.
    rank_base_bytes : tuple of int
        Memory that is always in use in addition on rank 0, 1 ..., where ranks differ, as stages of a pipeline do.
    memory : mapping
        What one real step held (``MemoryProfile.summary``).

    program : mapping
        The calls of the step, to run operators again.
    optimizers, models : tuple
        Optimizers with their groups of parameters; names of the models.
    parameters : mapping
        Bytes of each parameter, where no optimizer tells.

    samples_ratio : float
        Samples of an iteration over those of the captured one.
    world_size : int, optional
        Workers of a what-if.
    link : mapping, optional
        The link that a what-if priced its messages with.
    buckets : mapping, optional
        How gradients are gathered to messages.
    steady_iterations : tuple of int
        First and last iteration that stand for all.
    price_spread_ratio : float
        How far the prices that were measured for a what-if varied: interquartile range over median, the largest.
    price_waited_ratio : float
        Share of that time for which other programs kept the measured one from running; 0 where that was next to none.
    memory_form, memory_update : mapping, optional
        The form in which a what-if runs program and update.

    priced_for, priced_in : str
        Device and type of numbers that the graph is priced for.
    """

    source: str = "unknown"
    origin: Facts = field(default_factory=dict)
    own: Facts = field(default_factory=dict)
    # of a file
    trace: Facts = field(default_factory=dict)
    origin_ns: int = 0
    window: Facts = field(default_factory=dict)
    iterations: tuple[str, ...] = ()
    num_unmeasured_tasks: int | None = None
    other_ratio: float | None = None
    ranks: Facts = field(default_factory=dict)
    clocks: Facts = field(default_factory=dict)
    groups: tuple[ProcessGroup, ...] = ()
    routes: tuple[tuple[int, ...], ...] = ()
    distributed: Facts = field(default_factory=dict)
    slice_of: int | None = None
    # of a measurement
    hardware: Facts = field(default_factory=dict)
    iteration_ns: Facts = field(default_factory=dict)
    profiled_iteration_ns: Facts = field(default_factory=dict)
    overhead: Facts = field(default_factory=dict)
    disturbance: Facts = field(default_factory=dict)
    allocator: Facts = field(default_factory=dict)
    shapes: Facts = field(default_factory=dict)
    gc_pause_ns: int | None = None
    loader: Facts = field(default_factory=dict)
    irregular: Facts = field(default_factory=dict)
    is_complete: bool = True
    is_uncompiled: bool = False
    has_default_device: bool = False
    runs_ahead: bool = False
    memory_base_bytes: int = 0
    rank_base_bytes: tuple[int, ...] = ()
    memory: Facts = field(default_factory=dict)
    # of the program that was measured
    program: Facts = field(default_factory=dict)
    optimizers: tuple[Facts, ...] = ()
    models: tuple[str, ...] = ()
    parameters: Facts = field(default_factory=dict)
    # of what-ifs
    samples_ratio: float = 1.0
    world_size: int | None = None
    link: Facts | None = None
    buckets: Facts | None = None
    steady_iterations: tuple[int, ...] = ()
    price_spread_ratio: float = 0.0
    price_waited_ratio: float = 0.0
    memory_form: Facts | None = None
    memory_update: Facts | None = None
    # of prices
    priced_for: str = ""
    priced_in: str = ""

    @classmethod
    def of(cls, entries: Meta | Mapping[str, Any] | None) -> Meta:
        """The record with these fields.

        Raises
        ------
        InputError
            There is no such field.
        """
        return entries if isinstance(entries, Meta) else cls().with_entries(entries or {})

    def with_entries(self, entries: Mapping[str, Any]) -> Meta:
        """The record with these fields set.

        Raises
        ------
        InputError
            There is no such field.
        """
        known = {field_.name for field_ in fields(self)}
        if unknown := sorted(set(entries) - known):
            raise InputError(
                f"meta has no field {unknown[0]!r}",
                where=f"source {entries.get('source', self.source)}",
                fix=f"use own={{'NAME OF THE PLUG-IN': ...}}, or one of {', '.join(sorted(known))}",
            )
        return replace(self, **{name: _cast_field(name, value) for name, value in entries.items()})

    def to_dict(self) -> dict[str, Any]:
        """The fields that are known, as JSON has them; ``of`` reads them back."""
        result = {}
        for field_ in fields(self):
            value = getattr(self, field_.name)
            default = field_.default if field_.default is not MISSING else {}
            if value != default:
                result[field_.name] = [_group_to_dict(group) for group in value] if field_.name == "groups" else value
        return result


_TUPLES = {field_.name for field_ in fields(Meta) if field_.default == ()}


def _cast_field(name: str, value: Any) -> Any:
    if name == "groups":
        return tuple(group if isinstance(group, ProcessGroup) else _group_from_dict(group) for group in value)
    if name == "routes":
        return tuple(tuple(int(link) for link in route) for route in value)
    return tuple(value) if name in _TUPLES else value


def _group_to_dict(group: ProcessGroup) -> dict[str, Any]:
    document = {"name": group.name, "ranks": list(group.ranks)}
    return document | ({"told": group.members_text} if group.members_text else {})


def _group_from_dict(document: Mapping[str, Any]) -> ProcessGroup:
    return ProcessGroup(document["name"], tuple(document["ranks"]), document.get("told", ""))


class _Spread(TypedDict, total=False):
    low: _Duration
    high: _Duration
    samples: list[_Duration]


class _Times(_Spread):
    median: _Duration


class _TimesIfRun(_Spread, total=False):
    median: _Duration


class _Window(TypedDict, total=False):
    name: str
    duration_ns: _Count


class _NamedDevice(TypedDict, total=False):
    name: str
    totalGlobalMem: _Count
    memory_bytes: _Count


class _Hardware(TypedDict, total=False):
    machine: str
    processor: str
    num_cores: _Count
    num_threads: _Count
    torch: str
    devices: list[_NamedDevice]


class _Allocator(TypedDict, total=False):
    is_held: bool
    iteration_before_ns: _TimesIfRun | None


class _Group(TypedDict):
    name: str
    ranks: list[_Count]


class _Loader(TypedDict, total=False):
    num_workers: _Count
    fetch_ns: _Duration


class _Event(TypedDict, total=False):
    kind: str
    num_seen: _Count
    every: _Count | None
    cost_ns: _Count


class _Irregular(TypedDict, total=False):
    num_iterations: _Count
    iterations_per_epoch: _Count | None
    events: list[_Event]


# narrower than the annotations of ``Meta``
_TYPES: dict[str, Any] = {
    "origin_ns": _Time,
    "window": _Window,
    "num_unmeasured_tasks": _Count | None,
    "groups": list[_Group],
    "routes": list[list[_Count]],
    "slice_of": _Count | None,
    "hardware": _Hardware,
    "iteration_ns": _Times,
    "profiled_iteration_ns": _Times,
    "allocator": _Allocator,
    "gc_pause_ns": _Count | None,
    "loader": _Loader,
    "irregular": _Irregular,
    "memory_base_bytes": _Count,
    "rank_base_bytes": list[_Count],
    "samples_ratio": Annotated[float, msgspec.Meta(gt=0, le=1e18)],
    "world_size": Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None,
}


def read_meta(document: Any, where: str) -> Meta:
    """The record that a file describes.

    Parameters
    ----------
    document
        The entry ``meta`` of ``meta.json``.
    where : str
        The file.

    Raises
    ------
    InputError
        It is no mapping, has a field that does not exist, or one of another type.
    """
    fix = "save or capture the graph again"
    if not isinstance(document, Mapping):
        raise InputError(f"meta is {format_value(document)} instead of a mapping", where=f"{where}: meta", fix=fix)
    hints = get_type_hints(Meta)
    expected = {field.name: _TYPES.get(field.name, hints[field.name]) for field in fields(Meta)}
    for name, value in document.items():
        if name not in expected:
            continue
        try:
            # The value to check: msgspec takes no halves of characters, which paths may hold.
            text = json.dumps(value, ensure_ascii=False)
            msgspec.convert(value if text.isascii() else json.loads(text.encode("utf-8", "replace")), expected[name])
        except (msgspec.ValidationError, RecursionError) as error:
            location = str(error).replace("`$", f"`{name}")
            raise InputError(f"meta: {name} is wrong: {location}", where=f"{where}: meta.{name}", fix=fix) from error
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"meta: {name} is {value}", where=f"{where}: meta.{name}", fix=fix)
    return Meta.of(document)
