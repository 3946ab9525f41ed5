"""Whether a device waits, and for what; how well it computes; what to change first.

In: a graph with work on a device, and its replay. Out: ``DeviceUse``. A trace of ``torch.profiler`` holds a host that
the profiler slowed: its host times are reduced to the share that is typical before waiting is reported. Not
here: words (``reports.device_use``), why single tasks started when they did (``sources.timeline``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.pricing import floor_of, in_type, with_known_peaks, with_library_types
from windtunnel.cost.work import work_of
from windtunnel.errors import NotApplicableError, WindtunnelError
from windtunnel.graph import Graph, Kind, Phase, Strings
from windtunnel.graph.kernel_classes import class_of
from windtunnel.simulate import Timeline, replay
from windtunnel.simulate.device_gaps import BETWEEN_KERNELS, HOST, LOADER, ON_DEVICE, UNEXPLAINED, walk_gaps
from windtunnel.simulate.iterations import iteration_ns
from windtunnel.sources.kineto.unprofiled import TYPICAL_SHARE, scale_host_times
from windtunnel.whatifs.ask import whatif
from windtunnel.whatifs.device_tasks import computes_on_device, lies_on_device
from windtunnel.whatifs.host_waits import is_blocking_copy
from windtunnel.whatifs.insert_tasks import chip_of, is_on_host, products_by_type
from windtunnel.whatifs.speed import speed_of_measurement

__all__ = ["DeviceUse", "DeviceWait", "FirstChange", "KernelUse", "find_device_use"]

# T tasks, G gaps
Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]

STACKS_SHARE = 0.18
"""Of the recorded host time with shapes, stacks and modules; 0.14 to 0.28 in seven jobs of torch 2.11 on an H200."""
_MAX_TASKS = 2_000_000  # of a graph whose gaps are walked
_MAX_ASKED = 200_000  # of a graph whose what-ifs are asked
_MIN_GAIN = 0.01
_MAX_CHANGES = 3
_CHANGES = (
    "no-sync",
    "non-blocking-copies",
    "cuda-graphs",
    "fused-optimizer",
    "amp",
    "tf32",
    "sdpa",
    "compile",
    "channels-last",
    "loader-workers",
    "prefetch",
    "faster-link",
)


@dataclass(frozen=True, slots=True)
class DeviceWait:
    """Time in which a device computes nothing, by its cause.

    Attributes
    ----------
    cause : str
        ``launches`` (the host), ``synchronization`` (the host had waited for the device, and could not launch ahead),
        ``blocking copy`` (the same, by a copy), ``loader``, ``copies`` and ``communication`` (these run, and nothing
        computes), ``between kernels`` or ``unexplained``.
    duration_ns : float
        Of an iteration, the mean of all devices.
    ratio : float
        Of the iteration.
    operator, line, layer : str
        Of the waiting call; empty where the graph does not know, or where there is none.
    """

    cause: str
    duration_ns: float
    ratio: float
    operator: str = ""
    line: str = ""
    layer: str = ""


@dataclass(frozen=True, slots=True)
class KernelUse:
    """What the kernels of one class achieve.

    Attributes
    ----------
    kernel_class : str
        Of ``windtunnel.graph.kernel_classes.CLASSES``.
    duration_ns, ratio : float
        Of an iteration, the mean of all devices, and over all kernels.
    num_kernels : float
        Of an iteration.
    flops_per_s, bytes_per_s : float or None
        Achieved, where the graph says what kernels compute and move.
    bound_ratio : float or None
        Least time by the data sheet over the time taken: 1 is as good as it gets, and where caches serve the kernels.
    """

    kernel_class: str
    duration_ns: float
    ratio: float
    num_kernels: float
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    bound_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class FirstChange:
    """A what-if that applies, and what it gains."""

    whatif: str
    speedup: float
    gain_ns: float


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """How a device spends an iteration.

    Attributes
    ----------
    step_ns : float
        Of an iteration, without what the profiler cost the host.
    host_ratio : float
        Share of the recorded host time in that; 1 where nothing had to be taken out.
    num_devices : int
    computing_ns, waiting_ns : float
        Sum to ``step_ns``.
    waits : tuple of DeviceWait
        Longest first; sum to ``waiting_ns``.
    kernels : tuple of KernelUse
        Longest first.
    changes : tuple of FirstChange
        Best first.
    mfu_ratio : float or None
        Model FLOPs utilization of such a step, where the graph says what it computes.
    """

    step_ns: float
    host_ratio: float
    num_devices: int
    computing_ns: float
    waiting_ns: float
    waits: tuple[DeviceWait, ...]
    kernels: tuple[KernelUse, ...]
    changes: tuple[FirstChange, ...] = ()
    mfu_ratio: float | None = None

    @property
    def waiting_ratio(self) -> float:
        """Of the iteration."""
        return self.waiting_ns / self.step_ns if self.step_ns else 0.0


def find_device_use(graph: Graph, timeline: Timeline | None = None, *, asks: bool = True) -> DeviceUse | None:
    """Say how the devices of a graph spend an iteration.

    Parameters
    ----------
    graph : Graph
    timeline : Timeline, optional
        Its replay, if there is one already.
    asks : bool
        Also predict what the first changes would gain.

    Returns
    -------
    DeviceUse or None
        None where nothing computes on a device, or the graph is too large.
    """
    if not computes_on_device(graph).any() or graph.num_tasks > _MAX_TASKS:
        return None
    share = host_share(graph)
    if share < 1.0:
        graph, timeline = shorten_host_times(graph, share), None
    timeline = replay(graph) if timeline is None else timeline
    scale = max(graph.num_iterations, 1)
    devices = list(_devices(graph))
    mean = 1.0 / (scale * len(devices))
    totals: dict[tuple[str, ...], float] = {}
    computing_ns = 0.0
    for members in devices:
        computing_ns += _add_waits(timeline, members, totals)
    step_ns = iteration_ns(timeline, scale)
    waits = [DeviceWait(cause, ns * mean, ns * mean / step_ns, *about) for (cause, *about), ns in totals.items() if ns]
    return DeviceUse(
        step_ns=step_ns,
        host_ratio=share,
        num_devices=len(devices),
        computing_ns=computing_ns * mean,
        waiting_ns=step_ns - computing_ns * mean,
        waits=tuple(sorted(waits, key=lambda wait: (-wait.duration_ns, wait.cause, wait.operator, wait.line))),
        kernels=_kernel_uses(graph, mean),
        mfu_ratio=_mfu_ratio(graph, step_ns),
        changes=_first_changes(graph) if asks and step_ns and graph.num_tasks <= _MAX_ASKED else (),
    )


def host_share(graph: Graph) -> float:
    """Share of the recorded host time that a host without the profiler takes; 1 where that is in the graph already."""
    if graph.meta.source != "kineto" or graph.meta.overhead or graph.meta.iteration_ns or graph.edits:
        return 1.0
    if not graph.duration_ns[is_on_host(graph)].any():
        return 1.0
    skipped = graph.meta.trace.get("categories that are no tasks", {})
    has_stacks = "line" in graph.tasks or ("python_function" in skipped if isinstance(skipped, dict) else False)
    return STACKS_SHARE if has_stacks else TYPICAL_SHARE


def shorten_host_times(graph: Graph, share: float) -> Graph:
    """Host tasks, and the time between them, in this share; getting batches is Python, which is not recorded."""
    return scale_host_times(graph, is_on_host(graph) & ~_loads(graph), share)


def _devices(graph: Graph) -> Iterator[Mask]:
    """The tasks of each device of each rank that computes, bool [T]."""
    works = lies_on_device(graph) & ~graph.select(kind=(Kind.SYNC, Kind.VIRTUAL))
    number = graph.resources.get("device", np.zeros(graph.num_resources, dtype=np.int64))
    device = np.append(number, -1)[graph.tasks["resource"]].astype(np.int64)
    rank = graph.tasks.get("rank", np.zeros(graph.num_tasks, dtype=np.int64)).astype(np.int64)
    computes = computes_on_device(graph)
    pairs, member = np.unique(np.stack([rank, device]), axis=1, return_inverse=True)
    member = member.reshape(-1)
    for index in np.unique(member[computes]).tolist():
        yield works & (member == index)
    assert pairs.size


def _add_waits(timeline: Timeline, members: Mask, totals: dict[tuple[str, ...], float]) -> float:
    """Add the waits of one device to the totals by cause; returns the time in which it computes."""
    graph, start, finish = timeline.graph, timeline.start_ns, timeline.finish_ns
    computes, sends = members & graph.select(kind=Kind.COMPUTE), members & graph.select(kind=Kind.COMM)
    computing_ns, *_ = _gaps(start, finish, computes, 0)
    or_sending_ns, *_ = _gaps(start, finish, computes | sends, 0)
    busy_ns, begin, end, task = _gaps(start, finish, members, timeline.makespan_ns)
    # computing is part of (computing or sending), and that of busy: each difference is what nothing before it hides
    _add(totals, ("communication", "", "", ""), or_sending_ns - computing_ns)
    _add(totals, ("copies", "", "", ""), busy_ns - or_sending_ns)
    if not len(begin):
        return float(computing_ns)
    task[task < 0] = int(np.argmax(finish))
    _, binding_task, binding_edge = timeline.execution.bindings
    role = np.where(is_on_host(graph), np.where(_loads(graph), LOADER, HOST), ON_DEVICE)
    causes, call = walk_gaps(
        begin, end, task, start, finish, binding_task, binding_edge, timeline.execution.from_start, role
    )
    for column, cause in ((LOADER, "loader"), (BETWEEN_KERNELS, "between kernels"), (UNEXPLAINED, "unexplained")):
        _add(totals, (cause, "", "", ""), causes[:, column].sum())
    _add(totals, ("launches", "", "", ""), causes[call < 0, HOST].sum())
    blocking = is_blocking_copy(graph)
    for row in np.unique(call[call >= 0]).tolist():
        cause = "blocking copy" if blocking[row] else "synchronization"
        about = (_text(graph, "op", row) or _text(graph, "name", row), _text(graph, "line", row))
        _add(totals, (cause, *about, _text(graph, "layer", row)), causes[call == row, HOST].sum())
    return float(computing_ns)


def _add(totals: dict[tuple[str, ...], float], key: tuple[str, ...], duration_ns: float) -> None:
    totals[key] = totals.get(key, 0.0) + float(duration_ns)


def _gaps(start: Ints, finish: Ints, members: Mask, until_ns: int) -> tuple[int, Ints, Ints, Ints]:
    """Time covered by the members, and the gaps between them with the task after each; -1 behind the last."""
    rows = np.flatnonzero(members & (finish > start))
    rows = rows[np.argsort(start[rows], kind="stable")]
    covered_to = np.concatenate([[0], np.maximum.accumulate(finish[rows])]) if len(rows) else np.zeros(1, np.int64)
    begins, ends = covered_to, np.append(start[rows], until_ns)
    is_gap = ends > begins
    inner_ns = int((ends - begins)[:-1][is_gap[:-1]].sum())
    return int(covered_to[-1]) - inner_ns, begins[is_gap], ends[is_gap], np.append(rows, -1)[is_gap]


def _loads(graph: Graph) -> Mask:
    """Host tasks that get batches."""
    if "phase" not in graph.tasks:
        return np.zeros(graph.num_tasks, dtype=bool)
    return graph.select(phase=Phase.DATA) & ~graph.select(kind=(Kind.COPY, Kind.COMPUTE))


def _text(graph: Graph, column: str, row: int) -> str:
    strings = graph.tasks.get(column)
    return strings.decode(row) if isinstance(strings, Strings) else ""


def _kernel_uses(graph: Graph, mean: float) -> tuple[KernelUse, ...]:
    rows = np.flatnonzero(computes_on_device(graph))
    names = graph.tasks.strings("name").take(rows)
    operators = graph.tasks.strings("op").take(rows) if "op" in graph.tasks else Strings.repeat("", len(rows))
    pairs, member = np.unique(np.stack([operators.codes, names.codes]), axis=1, return_inverse=True)
    of_pair = [class_of(operators.values[op], names.values[name]) for op, name in pairs.T.tolist()]
    classes, code_of_pair = np.unique(np.array(of_pair, dtype=object).astype(str), return_inverse=True)
    code = code_of_pair[member.reshape(-1)]
    duration_ns = graph.duration_ns[rows].astype(np.float64)
    flops, moved, bound_ns = _work_of_kernels(graph, rows)
    result = []
    total_ns = duration_ns.sum()
    for index, name in enumerate(classes.tolist()):
        mask = code == index
        took_ns = float(duration_ns[mask].sum())
        if not took_ns:
            continue
        known = mask & ((flops > 0) | (moved > 0))
        known_ns = float(duration_ns[known].sum())
        rates: list[float | None] = [None, None, None]
        if known_ns:
            rates[0] = 1e9 * float(flops[known].sum()) / known_ns or None
            rates[1] = 1e9 * float(moved[known].sum()) / known_ns or None
            rates[2] = float(np.minimum(bound_ns, duration_ns)[known].sum()) / known_ns or None
        result.append(KernelUse(name, took_ns * mean, took_ns / total_ns, float(mask.sum()) * mean, *rates))
    return tuple(sorted(result, key=lambda use: (-use.duration_ns, use.kernel_class)))


def _work_of_kernels(graph: Graph, rows: Ints) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Flops, bytes and least time of each kernel; 0 where they are not known."""
    nothing = np.zeros(len(rows))
    chip = chip_of(graph)
    if chip is None or not {"flops", "bytes_read", "bytes_written"} & set(graph.tasks):
        return nothing, nothing, nothing
    mask = np.zeros(graph.num_tasks, dtype=bool)
    mask[rows] = True
    work, row_T = work_of(graph, mask)
    index = row_T[rows]
    flops, moved = work.flops[index], work.bytes_moved[index]
    try:
        bound_ns = floor_of(with_known_peaks(with_library_types(work, chip), chip), chip).bound_ns[index]
        if {"fp32", "tf32"} <= set(chip.peak_flops_per_s):
            # inputs are float32 where the kernel rounds them to TF32, as the name says, or as only that explains
            rounded = floor_of(in_type(work, "tf32"), chip).bound_ns[index]
            is_rounded = (work.dtype[index] == "fp32") & (bound_ns > graph.duration_ns[rows])
            is_rounded |= products_by_type(graph, mask)["tf32"][rows]
            bound_ns = np.where(is_rounded, rounded, bound_ns)
    except WindtunnelError:  # a type without a peak
        bound_ns = nothing
    return flops, moved, bound_ns


def _mfu_ratio(graph: Graph, step_ns: float) -> float | None:
    """Against the peak of TF32 where most products of float32 inputs ran in that."""
    speed, chip = speed_of_measurement(graph, step_ns), chip_of(graph)
    if speed.dtype == "fp32" and chip is not None and "tf32" in chip.peak_flops_per_s:
        took_ns = {form: graph.duration_ns[mask].sum() for form, mask in _products(graph).items()}
        if took_ns["tf32"] > took_ns["fp32"]:
            return speed.model_flops_per_s / (speed.num_devices * chip.flops_per_s("tf32")) or None
    return speed.mfu_ratio or None


def _products(graph: Graph) -> dict[str, Mask]:
    return products_by_type(graph, computes_on_device(graph))


def _first_changes(graph: Graph) -> tuple[FirstChange, ...]:
    """What-ifs that apply without running anything, the best first."""
    known = registry.all("whatif")
    result = []
    try:
        answers = whatif(graph, [name for name in _CHANGES if name in known], prices="paper")
    except NotApplicableError:
        return ()
    for answer in answers:
        if answer.is_applicable and answer.speedup > 1 + _MIN_GAIN:
            gain_ns = answer.baseline_ns * (1 - 1 / answer.speedup)
            result.append(FirstChange(str(answer.request), answer.speedup, gain_ns))
    return tuple(sorted(result, key=lambda change: (-change.speedup, change.whatif))[:_MAX_CHANGES])
