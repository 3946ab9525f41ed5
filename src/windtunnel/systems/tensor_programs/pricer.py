"""Compact trees of tensor programs as a pricer of graphs.

In: work of a graph and a CPU, priced as a tensor compiler would run it: each operator is the task that it is, and each
task takes as long as the fastest of its programs in a library is predicted to, after its tensors came into the caches:
programs are measured one after another, where they stay there, and in a graph others run between. Out: prices with
intervals. The libraries of torch run other kernels: how long those take, ``measured`` knows. Not here: training,
schedules.

Source: CDMPP (EuroSys 2024), section 5.3.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.intervals import ConformalIntervals
from windtunnel.cost.pricer import Prices, exact_prices
from windtunnel.cost.work import Work
from windtunnel.hardware import Device
from windtunnel.systems.tensor_programs.model.context import bound_of
from windtunnel.systems.tensor_programs.model.shipped import load_shipped_programs, predictor_of
from windtunnel.systems.tensor_programs.model.traffic import CACHE_BYTES
from windtunnel.systems.tensor_programs.program_set import ProgramSet
from windtunnel.systems.tensor_programs.run.captured import task_of_call
from windtunnel.systems.tensor_programs.run.tasks import Task

if TYPE_CHECKING:
    from windtunnel.systems.tensor_programs.model.predictor import Predictor

__all__ = ["AstPricer", "ast", "cold_s"]

NUM_PASSES = 3  # how long a step takes hangs on what stays in caches, and the other way round
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class AstPricer:
    """A predictor and the programs that it may choose from.

    Parameters
    ----------
    predictor : Predictor, optional
    library : ProgramSet, optional
        Programs of the tasks that can be priced; times in it are not looked at. None, or no predictor, prices nothing.
    """

    predictor: Predictor | None = None
    library: ProgramSet | None = None
    name: ClassVar[str] = "ast"
    _tasks: dict[tuple[str, ...], Task | None] = field(default_factory=dict, repr=False)

    def covers(self, work: Work, device: Device) -> Mask:
        """Rows whose task is in the library, on a device whose sheet is known, bool [P]."""
        if self.predictor is None or self.library is None or self.sheet(device) is None:
            return np.zeros(len(work), dtype=np.bool_)
        known = [task is not None and task.name in self._rows for task in self._tasks_of(work)]
        return np.asarray(np.array(known, dtype=bool) & (work.dtype == "fp32"), dtype=np.bool_)

    def price(self, work: Work, device: Device) -> Prices:
        """Prices of rows that it covers."""
        assert self.library is not None
        assert self.predictor is not None
        sheet = self.sheet(device)
        assert sheet is not None
        tasks = [task for task in self._tasks_of(work) if task is not None]
        best = self.choose(dict.fromkeys(task.name for task in tasks), sheet)
        selected = replace(self.library.select([best[task.name][0] for task in tasks]), devices=(dict(sheet),))
        limits = bound_of(selected, _all_of(selected))
        seconds = _with_cold(tasks, [best[task.name][1] for task in tasks], work.num_tasks, sheet)
        prices = exact_prices(limits, limits.efficiency([1e9 * second for second in seconds]))
        known = self.predictor.header.get("intervals")
        if known is None:
            return prices
        return ConformalIntervals.from_dict(known).around(prices, [task.kind for task in tasks])

    def sheet(self, device: Device) -> Mapping[str, Any] | None:
        """Return the device sheet for the predictor: its own sheet of that name, or one derived from the catalog."""
        assert self.predictor is not None
        own = self.predictor.header.get("device_sheets", {}).get(device.name)
        if own is not None or device.kind != "cpu":
            return own  # type: ignore[no-any-return]
        peak = device.peak_flops_per_s.get("fp32")
        if not (device.num_threads and device.simd_bits and peak):
            return None
        return {
            "name": device.name,
            "peak_flops_per_s": peak,
            "bandwidth_bytes_per_s": device.bandwidth_bytes_per_s,
            "cache_bandwidth_bytes_per_s": device.cache_bandwidth_bytes_per_s,
            "last_cache_bytes": device.last_cache_bytes,
            "num_threads": device.num_threads,
            "simd_bits": device.simd_bits,
        }

    def choose(self, names: Collection[str], sheet: Mapping[str, Any]) -> dict[str, tuple[int, float]]:
        """By name of task: the program of the library that is predicted to be the fastest, and its seconds.

        The least of many predictions is low by luck too: it is drawn towards the mean of the task's programs as far as
        those that were chosen so on held-out tasks say (``shrinkage``), where the predictor knows.
        """
        assert self.library is not None
        assert self.predictor is not None
        rows = [self._rows[name] for name in names]
        programs = replace(self.library.select(np.concatenate(rows)), devices=(dict(sheet),))
        seconds = self.predictor.predict(programs, _all_of(programs))
        parts = np.split(seconds, np.cumsum([len(row) for row in rows])[:-1])
        kept = float(self.predictor.header.get("shrinkage", 1.0))
        return {
            name: (int(row[part.argmin()]), _estimate_min_s(part, kept))
            for name, row, part in zip(names, rows, parts, strict=True)
        }

    @cached_property
    def _rows(self) -> dict[str, NDArray[np.int64]]:
        """Programs of the library by the name of their task."""
        assert self.library is not None
        names = [Task.from_dict(task).name for task in self.library.tasks]
        order = np.argsort(self.library.task, kind="stable")
        tasks, first = np.unique(self.library.task[order], return_index=True)
        parts = np.split(order, first[1:])
        return {names[task]: part.astype(np.int64) for task, part in zip(tasks.tolist(), parts, strict=True)}

    def _tasks_of(self, work: Work) -> list[Task | None]:
        result = []
        for key in zip(work.operator, work.shapes, work.strides, work.arguments, strict=True):
            if key not in self._tasks:
                self._tasks[key] = task_of_call(*key)
            result.append(self._tasks[key])
        return result


def cold_s(task: Task, sheet: Mapping[str, Any], step_bytes: float, step_s: float = 0.0) -> float:
    """Seconds that a task's tensors take to come when all others ran between, beyond those when only it runs.

    What fits into a core's own caches comes page by page. The rest of long tensors comes as a stream, and comes as one
    when only this task runs, too. Both come from the shared cache as far as that keeps them while the others of a step
    move so many bytes through it, and whoever else is on the machine moves his in so many seconds.
    """
    own_bytes = (sheet.get("cache_bytes") or {}).get("l2") or CACHE_BYTES[-1]
    if step_bytes <= own_bytes:
        return 0.0
    between_bytes = step_bytes + step_s * (sheet.get("others_bandwidth_bytes_per_s") or 0.0)
    kept, kept_alone = _fraction_in_cache(sheet, between_bytes), _fraction_in_cache(sheet, task.size_bytes)
    short, rest = min(task.size_bytes, own_bytes), max(0.0, task.size_bytes - own_bytes)
    stream_s = _seconds_per_byte(sheet, "bandwidth_bytes_per_s", kept)
    page_s = _seconds_per_byte(sheet, "page_bandwidth_bytes_per_s", kept) or stream_s
    alone_s = _seconds_per_byte(sheet, "bandwidth_bytes_per_s", kept_alone)
    return float(short * page_s + rest * max(0.0, stream_s - alone_s))


def _with_cold(
    tasks: Sequence[Task], warm_s: Sequence[float], counts: NDArray[np.int64], sheet: Mapping[str, Any]
) -> list[float]:
    """What tasks take in a step that holds each so often: the longer it takes, the less stays in the shared cache."""
    step_bytes = float(sum(task.size_bytes * count for task, count in zip(tasks, counts, strict=True)))
    seconds = list(warm_s)
    for _ in range(NUM_PASSES):
        step_s = float(np.dot(seconds, counts))
        seconds = [item + cold_s(task, sheet, step_bytes, step_s) for task, item in zip(tasks, warm_s, strict=True)]
    return seconds


def _fraction_in_cache(sheet: Mapping[str, Any], num_bytes: float) -> float:
    """Return the fraction that is still in the shared cache after ``num_bytes`` were loaded; evictions are random."""
    reach = sheet.get("last_cache_bytes") if sheet.get("cache_bandwidth_bytes_per_s") else None
    return min(1.0, float(reach or 0) / max(num_bytes, 1.0))


def _seconds_per_byte(sheet: Mapping[str, Any], name: str, kept: float) -> float:
    """Return the seconds per byte at a cached fraction; 0 where that rate was not measured."""
    far, near = sheet.get(name), sheet.get(f"cache_{name}")
    return (1 - kept) / far + kept / (near or far) if far else 0.0


def _estimate_min_s(seconds: NDArray[np.float64], kept: float) -> float:
    """What the program of the least prediction takes, when so much of its gain over the others' mean is one."""
    logs = np.log(seconds)
    mean = float(logs.mean())
    return math.exp(mean + kept * (float(logs.min()) - mean))


def _all_of(programs: ProgramSet) -> NDArray[np.int64]:
    """Return every program on the set's only device, as samples."""
    return np.column_stack([np.arange(programs.num_programs), np.zeros(programs.num_programs, dtype=np.int64)])


@registry.cost_model("ast", source="Hu et al., CDMPP, EuroSys 2024")
def ast(checkpoint: str = "") -> AstPricer:
    """Operators as compiled tensor programs, by the shipped predictor or a file of ``models train programs``."""
    return AstPricer(predictor_of(checkpoint), load_shipped_programs())
