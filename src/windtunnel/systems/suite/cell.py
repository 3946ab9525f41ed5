"""One workload of the suite, trained and measured in a process of its own.

In: an ``Order``. Out: one result file, written whole, whatever happens; rank 0 writes it,
the other ranks train along until rank 0 is done. Not here: which cells there are, waiting for this process.
"""

from __future__ import annotations

import math
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from windtunnel import registry
from windtunnel.base.reading import free_memory_bytes
from windtunnel.errors import InfeasibleError, InputError, MissingExtraError, WindtunnelError
from windtunnel.hardware.host import peak_resident_bytes
from windtunnel.measure import ProfileDatabase, fingerprint
from windtunnel.measure.fingerprint import now, package_versions
from windtunnel.measure.workers import Place
from windtunnel.sources.targets import build_workload, discover
from windtunnel.sources.torch.live import LiveProgram
from windtunnel.systems.suite.metrics import (
    EnergyMeter,
    arithmetic_utilization,
    compute_utilization,
    core_wait_seconds,
    cpu_seconds,
    cpu_utilization,
    throughput,
)
from windtunnel.systems.suite.model import fitting_parameters, predict_step_memory
from windtunnel.systems.suite.results import Result, write_result
from windtunnel.systems.suite.run import Order
from windtunnel.systems.suite.stable import StablePhase, run_until_stable
from windtunnel.units import format_size

if TYPE_CHECKING:
    from windtunnel.workloads import Workload

__all__ = ["main", "measure_cell"]

_PEAK_DTYPES = ("float32", "bfloat16", "float16", "float64")
_SHARE_OF_MEMORY = 0.9


def main(process: Place) -> int:
    """Execute the order of one process."""
    order = msgspec.structs.replace(process.config, rank=process.rank, rendezvous=process.rendezvous)
    if order.rank:
        _train_along(order)
        return 0
    try:
        result = measure_cell(order)
    except MissingExtraError as error:
        result = _without_numbers(order, "missing", error)
    except InfeasibleError as error:
        result = _without_numbers(order, "refused", error)
    except WindtunnelError as error:
        result = _without_numbers(order, "failed", error)
    except Exception as error:  # whatever a workload raises belongs into its result
        traceback.print_exc()
        result = _without_numbers(order, "failed", error)
    write_result(Path(order.folder), result)
    return 0


def _without_numbers(order: Order, status: str, error: Exception) -> Result:
    message = error.message if isinstance(error, WindtunnelError) else f"{type(error).__name__}: {error}"
    plugin = registry.get("workload", order.cell.workload)
    return Result(
        cell=order.cell,
        status=status,
        message=message.partition("\n")[0],
        fix=getattr(error, "fix", ""),
        domain=plugin.domain,
        source=plugin.source,
        versions=package_versions(),
        measured_at=now(),
    )


def _train_along(order: Order) -> None:
    """Run a rank other than 0, which rank 0 paces by its all-reduces and ends."""
    with ExitStack() as stack:
        built = _build(order, stack)
        while True:
            built.step()


def measure_cell(order: Order) -> Result:
    """Build the workload, train it and measure it.

    Raises
    ------
    InfeasibleError
        It would not fit into memory.
    MissingExtraError
        A library of the workload is not installed.
    WindtunnelError
        It cannot be built or run.
    """
    begun_s = time.monotonic()
    needed, notes = _check_fits(order)
    with ExitStack() as stack:
        built = _build(order, stack)
        sampled = _Sampled(built, ranks=order.cell.num_ranks)
        durations_ns, phase = run_until_stable(
            sampled.step,
            budget_s=order.budget_s,
            precision=order.precision,
            min_steps=order.min_steps,
            fewest=order.fewest,
            after_step=sampled.note,
        )
        peak_bytes = peak_resident_bytes()
        extra = _characterize(order, built, phase, notes)
    plugin = registry.get("workload", order.cell.workload)
    return Result(
        cell=order.cell,
        domain=plugin.domain,
        source=plugin.source,
        data=built.data,
        unit=built.unit,
        batch_size=built.batch_size * order.cell.num_ranks,
        num_parameters=sum(parameter.numel() for model in built.models for parameter in model.parameters()),
        durations_ns=durations_ns.tolist(),
        **_phase_fields(phase),
        **sampled.fields(durations_ns, phase),
        **extra,
        predicted_memory_bytes=sum(needed.values()) or None,
        predicted_memory_by_category=needed,
        peak_resident_bytes=peak_bytes,
        versions=package_versions(),
        machine_id=fingerprint.machine(),
        measured_at=now(),
        seconds=time.monotonic() - begun_s,
    )


def _check_fits(order: Order) -> tuple[dict[str, int], list[str]]:
    """Reject a cell that would swap; return the predicted bytes by category, or a note why there are none."""
    cell = order.cell
    available_bytes = order.memory_bytes or free_memory_bytes()
    predicted = predict_step_memory(cell.workload, fitting_parameters(cell))
    if not predicted.by_category:
        return {}, [f"memory not predicted: {predicted.reason}"]
    needed = {category: size_bytes * cell.num_ranks for category, size_bytes in predicted.by_category.items()}
    needed_bytes = sum(needed.values())
    if available_bytes is not None and needed_bytes > _SHARE_OF_MEMORY * available_bytes:
        raise InfeasibleError(
            f"{cell.workload} needs {format_size(needed_bytes)}, of which {format_size(needed[predicted.largest])} are "
            f"{predicted.largest}; {format_size(available_bytes)} are free",
            fix=f"cut the {predicted.largest}: {predicted.advice}",
        )
    return needed, []


def _build(order: Order, stack: ExitStack) -> Workload:
    import torch

    from windtunnel.measure.host_state import hold_heap

    torch.set_num_threads(order.cell.num_threads)
    torch.manual_seed(order.seed)
    hold_heap()
    program = LiveProgram(rank=order.rank, num_ranks=order.cell.num_ranks)
    program.kept["rendezvous"] = order.rendezvous
    if order.cell.num_ranks > 1:
        flight = registry.get("flight", "data-parallel").function
        link = order.cell.link_bytes_per_s or None
        stack.enter_context(flight(program, num_ranks=order.cell.num_ranks, bandwidth_bytes_per_s=link))
    built = build_workload(order.cell.workload, fitting_parameters(order.cell), program)
    stack.callback(built.close)
    if order.cell.num_ranks > 1:
        discover(built.step, program)
    return built


class _Sampled:
    """Counters that are recorded in addition to the duration of every step."""

    def __init__(self, built: Workload, *, ranks: int) -> None:
        self._built, self._ranks = built, ranks
        self._loss: Any = None
        self._meter = EnergyMeter()
        self._units_before = built.units() if built.units is not None else 0.0
        self.units: list[float] = []
        self.objective: list[float | None] = []
        self._counters: list[tuple[float, ...]] = [self._read_counters()]

    def _read_counters(self) -> tuple[float, ...]:
        """Return wall clock, CPU time, time without a core, and energy."""
        return time.monotonic(), cpu_seconds(), core_wait_seconds(), self._meter.joules() or 0.0

    def step(self) -> None:
        """Run one iteration without reading its loss."""
        self._loss = self._built.step()

    def note(self, _duration_ns: int) -> None:
        """Read all counters while nothing is timed."""
        units = self._built.units() if self._built.units is not None else 0.0
        self.units.append((units - self._units_before or self._built.batch_size) * self._ranks)
        self._units_before = units
        value = float(self._built.objective() if self._built.objective is not None else self._loss)
        self.objective.append(value if math.isfinite(value) else None)
        if self.objective[-1] is None and self._built.objective is None:
            raise InputError(f"the loss of step {len(self.objective)} is {value}", fix="a workload must train")
        self._counters.append(self._read_counters())

    def fields(self, durations_ns: np.ndarray[Any, Any], phase: StablePhase) -> dict[str, Any]:
        """Return units, losses and rates of the stable phase."""
        first, last = self._counters[phase.cut], self._counters[-1]
        wall_s, cpu_s, waited_s, energy_j = (after - before for after, before in zip(last, first, strict=True))
        rate = throughput(durations_ns, self.units, phase)
        num_steps = phase.num_samples - phase.cut
        return {
            "units": self.units,
            "objective": self.objective,
            "throughput_per_s": (rate.value, rate.low, rate.high),
            "cpu_utilization": cpu_utilization(cpu_s, wall_s, _num_cores()),
            "waited_ratio": waited_s / wall_s,
            "energy_j": energy_j / num_steps if self._meter.source else None,
            "energy_source": self._meter.source or self._meter.reason,
        }


def _num_cores() -> int:
    from windtunnel import hardware

    return hardware.machine().num_cores


def _phase_fields(phase: StablePhase) -> dict[str, Any]:
    median = phase.median_ns
    return {
        "cut": phase.cut,
        "num_spikes": phase.num_spikes,
        "is_unstable": phase.is_unstable,
        "change_ratio": phase.trend.change_ratio,
        "median_ns": (median.value, median.low, median.high),
        **{name: getattr(phase, name) for name in ("mean_ns", "iqr_ns", "min_ns", "max_ns", "p99_ns")},
    }


def _characterize(order: Order, built: Workload, phase: StablePhase, notes: list[str]) -> dict[str, Any]:
    """Return FLOP, peaks and the graph. A failure adds a note instead of an error, as the times are valid."""
    from windtunnel.cost.peak import measure_peak
    from windtunnel.sources.torch.flop_count import count

    result: dict[str, Any] = {"notes": notes}
    try:
        counted = count(built.step)
        flops_by_dtype = counted.by_dtype
        result["family"] = _family(built, counted.by_op)
        database = ProfileDatabase()
        peaks = {
            dtype: measure_peak(dtype, order.cell.num_threads, database=database).flops_per_s
            for dtype in _PEAK_DTYPES
            if dtype in flops_by_dtype
        }
        used = arithmetic_utilization(flops_by_dtype, peaks, phase.median_ns.value)
        result |= {"flops_by_dtype": flops_by_dtype, "peak_flops_per_s": peaks, "arithmetic_utilization": used}
    except Exception as error:
        result["notes"].append(f"FLOP not counted: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
    if order.cell.num_ranks > 1 or not order.graph_iterations:
        return result
    try:
        result |= _capture_graph(order, built)
    except Exception as error:
        result["notes"].append(f"not captured: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
    return result


def _family(built: Workload, flops_by_op: dict[str, int]) -> str:
    """Return the dominant operators: ``recurrent``, ``convolutional`` or ``dense``."""
    from torch.nn import RNNBase, RNNCellBase

    if any(isinstance(part, RNNBase | RNNCellBase) for model in built.models for part in model.modules()):
        return "recurrent"
    convolutions = sum(flops for name, flops in flops_by_op.items() if "conv" in name)
    return "convolutional" if convolutions > sum(flops_by_op.values()) / 2 else "dense"


def _capture_graph(order: Order, built: Workload) -> dict[str, Any]:
    from windtunnel.graph import save
    from windtunnel.sources.torch.step import capture

    models, optimizers = list(built.models), list(built.optimizers)
    graph = capture(built.step, iterations=order.graph_iterations, model=models, optimizer=optimizers)
    origin = {"workload": order.cell.workload, "parameters": fitting_parameters(order.cell)}
    result: dict[str, Any] = {"compute_utilization": compute_utilization(graph)}
    if order.is_graph_kept:
        path = Path(order.folder) / "graphs" / f"{order.cell.key}.wt"
        path.parent.mkdir(parents=True, exist_ok=True)
        save(graph.with_meta(origin=origin), path, overwrite=True)
        result["graph"] = str(path.relative_to(order.folder))
    return result
