"""Compact trees of tensor programs as a pricer of graphs (room cost, cost model "ast").

In: work of a graph and a CPU, priced as a tensor compiler would run it: each operator is the task that it is, and each
task takes as long as the fastest of its programs in a library is predicted to, after its tensors came into the caches:
programs are measured one after another, where they stay there, and in a graph others run between. Out: prices with
intervals. The libraries of torch run other kernels: how long those take, ``measured`` knows. Not here: training,
schedules.

Source: CDMPP (EuroSys 2024), section 5.3.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.intervals import ConformalIntervals
from windtunnel.cost.learned.context import bound_of
from windtunnel.cost.learned.program_set import ProgramSet
from windtunnel.cost.learned.shipped import predictor_of, shipped_programs
from windtunnel.cost.learned.traffic import CACHE_BYTES
from windtunnel.cost.pricer import Prices, exact_prices
from windtunnel.cost.programs.captured import task_of_call
from windtunnel.cost.programs.tasks import Task
from windtunnel.cost.work import Work
from windtunnel.hardware import Device

if TYPE_CHECKING:
    from windtunnel.cost.learned.predictor import Predictor

__all__ = ["AstPricer", "ast", "cold_s"]

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
        chosen = replace(self.library.select([best[task.name][0] for task in tasks]), devices=(dict(sheet),))
        limits = bound_of(chosen, _all_of(chosen))
        step_bytes = float(sum(task.size_bytes * count for task, count in zip(tasks, work.num_tasks, strict=True)))
        seconds = [best[task.name][1] + cold_s(task, sheet, step_bytes) for task in tasks]
        prices = exact_prices(limits, limits.efficiency([1e9 * one for one in seconds]))
        known = self.predictor.header.get("intervals")
        if known is None:
            return prices
        return ConformalIntervals.from_dict(known).around(prices, [task.kind for task in tasks])

    def sheet(self, device: Device) -> Mapping[str, Any] | None:
        """What the predictor is told of a device: its own sheet of that name, or one made of the catalogue's."""
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
        those that were chosen so on held-out tasks say (``least_kept``), where the predictor knows.
        """
        assert self.library is not None
        assert self.predictor is not None
        rows = [self._rows[name] for name in names]
        programs = replace(self.library.select(np.concatenate(rows)), devices=(dict(sheet),))
        seconds = self.predictor.predict(programs, _all_of(programs))
        parts = np.split(seconds, np.cumsum([len(one) for one in rows])[:-1])
        kept = float(self.predictor.header.get("least_kept", 1.0))
        return {
            name: (int(one[part.argmin()]), _expected_least(part, kept))
            for name, one, part in zip(names, rows, parts, strict=True)
        }

    @cached_property
    def _rows(self) -> dict[str, NDArray[np.int64]]:
        """Programs of the library by the name of their task."""
        assert self.library is not None
        names = [Task.from_dict(one).name for one in self.library.tasks]
        order = np.argsort(self.library.task, kind="stable")
        tasks, first = np.unique(self.library.task[order], return_index=True)
        parts = np.split(order, first[1:])
        return {names[task]: part.astype(np.int64) for task, part in zip(tasks.tolist(), parts, strict=True)}

    def _tasks_of(self, work: Work) -> list[Task | None]:
        found = []
        for key in zip(work.operator, work.shapes, work.strides, work.arguments, strict=True):
            if key not in self._tasks:
                self._tasks[key] = task_of_call(*key)
            found.append(self._tasks[key])
        return found


def cold_s(task: Task, sheet: Mapping[str, Any], step_bytes: float) -> float:
    """Seconds that a task's tensors take to come when all others ran between, beyond those when only it runs.

    What fits into a core's own caches comes page by page. The rest of long tensors comes as a stream, and comes as one
    when only this task runs, too.
    """
    own_bytes = (sheet.get("cache_bytes") or {}).get("l2") or CACHE_BYTES[-1]
    if step_bytes <= own_bytes:
        return 0.0
    short, rest = min(task.size_bytes, own_bytes), max(0.0, task.size_bytes - own_bytes)
    seconds_per_byte = 1 / _stream_rate(sheet, step_bytes) - 1 / _stream_rate(sheet, task.size_bytes)
    return float(short / _page_rate(sheet, step_bytes) + rest * seconds_per_byte)


def _page_rate(sheet: Mapping[str, Any], num_bytes: float) -> float:
    """Bytes per second of short tensors when a step moves so many bytes, of long ones where pages were not measured."""
    name = "cache_page_bandwidth_bytes_per_s" if _is_cached(sheet, num_bytes) else "page_bandwidth_bytes_per_s"
    return float(sheet.get(name) or _stream_rate(sheet, num_bytes))


def _stream_rate(sheet: Mapping[str, Any], num_bytes: float) -> float:
    name = "cache_bandwidth_bytes_per_s" if _is_cached(sheet, num_bytes) else "bandwidth_bytes_per_s"
    return float(sheet[name])


def _is_cached(sheet: Mapping[str, Any], num_bytes: float) -> bool:
    """Whether so many bytes stay in the shared cache."""
    reach = sheet.get("last_cache_bytes") or 0
    return bool(sheet.get("cache_bandwidth_bytes_per_s")) and num_bytes <= reach


def _expected_least(seconds: NDArray[np.float64], kept: float) -> float:
    """What the program of the least prediction takes, when so much of its gain over the others' mean is one."""
    logs = np.log(seconds)
    mean = float(logs.mean())
    return math.exp(mean + kept * (float(logs.min()) - mean))


def _all_of(programs: ProgramSet) -> NDArray[np.int64]:
    """Every program on the set's one device, as samples."""
    return np.column_stack([np.arange(programs.num_programs), np.zeros(programs.num_programs, dtype=np.int64)])


@registry.cost_model("ast", source="Hu et al., CDMPP, EuroSys 2024")
def ast(checkpoint: str = "") -> AstPricer:
    """Operators as compiled tensor programs, by the predictor that is shipped or a file of ``cost train programs``."""
    return AstPricer(predictor_of(checkpoint), shipped_programs())
