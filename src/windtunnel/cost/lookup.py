"""How long a net takes, from a table of its layers: prediction without running it.

In: ``Kernel``s. Out: their measured times, and their sum as a latency. Each distinct kernel is measured once, ever:
one after the other in turn, so that weights and code come from where they would come from in a net, with its input
just written. What no kernel takes, the framework does: one constant per call, fitted on a few nets that really ran.
Not here: finding kernels (``kernels``), what is done with a latency (``systems.utilization``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.cost.kernels import Kernel, TensorShape
from windtunnel.cost.rerun import TensorSpec
from windtunnel.errors import PriceError
from windtunnel.measure.database import Measurement, ProfileDatabase
from windtunnel.measure.fingerprint import libraries, machine
from windtunnel.measure.host_state import hold_heap
from windtunnel.measure.threads import threads
from windtunnel.measure.turns import quiet, rounds, spread_ratio

__all__ = ["Overhead", "Stand", "Table", "fit_overhead", "measure"]

Clock = Callable[[], int]
_Key = tuple[str, str, str, str, int, str, str]
_METHOD = 1  # raised whenever kernels are timed in another way
_WARMUP, _MIN_ROUNDS, _MAX_ROUNDS = 2, 5, 25
_WARM_RUNS = 3  # the allocator may change between blocks; after fewer, results go to one that is cold


# --- measuring kernels --------------------------------------------------------------------------------------

Table = Mapping[Kernel, float]
"""Nanoseconds of every kernel; NaN for one that cannot be run alone."""


def measure(
    kernels: Iterable[Kernel],
    num_threads: int,
    *,
    database: ProfileDatabase | None = None,
    budget_s: float = 5.0,
    progress: Progress | None = None,
) -> dict[Kernel, float]:
    """Time of every distinct kernel in nanoseconds, measured once per machine and number of threads.

    Parameters
    ----------
    kernels : iterable of Kernel
    num_threads : int
    database : ProfileDatabase, optional
        Looked up first and filled afterwards; None keeps nothing.
    budget_s : float
        Time for the rounds; at least five rounds are made.
    progress : callable, optional
        Called with (what, done, total).

    Returns
    -------
    dict of Kernel to float
        NaN for a kernel that cannot be run alone.
    """
    require("torch", extra="torch")
    distinct = list(dict.fromkeys(kernels))
    keys = {kernel: _key(kernel, num_threads) for kernel in distinct}
    known = database.find_all(keys.values()) if database is not None else {}
    result = {kernel: known[key].new_ns for kernel, key in keys.items() if key in known and known[key].is_trusted}
    requested = [kernel for kernel in distinct if kernel not in result]
    times_KR = _measure_in_turn(requested, num_threads, budget_s, progress)
    measured = {kernel: quiet(times) for kernel, times in times_KR.items()}
    if database is not None:
        database.add(
            Measurement(*keys[kernel], took, took, spread_ratio(times_KR[kernel]), len(times_KR[kernel]))
            for kernel, took in measured.items()
            if len(times_KR[kernel])
        )
    return result | measured


def _key(kernel: Kernel, num_threads: int) -> _Key:
    change = f"alone, in turn (method {_METHOD})"
    return kernel.operator, kernel.signature, "forward", change, num_threads, machine(), libraries()


class Stand:
    """Kernels made ready to run, each once per round.

    Parameters
    ----------
    kernels : iterable of Kernel
    clock : callable
        Nanoseconds. ``time.perf_counter_ns`` is what a user waits; ``time.thread_time_ns`` leaves out what others run
        on the same core, and is only fair with one thread.
    is_warm : bool
        Time the last of several runs in a row: its code and data are at hand, as within a step whose layers are alike.
    """

    def __init__(
        self, kernels: Iterable[Kernel], clock: Clock = time.perf_counter_ns, *, is_warm: bool = False
    ) -> None:
        hold_heap()  # as capture and flights do
        self._runs = {kernel: _ready(kernel, clock, is_warm=is_warm) for kernel in dict.fromkeys(kernels)}
        self.times: dict[Kernel, list[float]] = {kernel: [] for kernel in self._runs}

    def rehearse(self) -> None:
        """Run every kernel and drop those that cannot be run alone."""
        import torch

        with torch.inference_mode():
            self._runs = {kernel: _warm_up(run) for kernel, run in self._runs.items()}

    def round(self) -> None:
        """Time every kernel once."""
        import torch

        with torch.inference_mode():
            for kernel, run in self._runs.items():
                if run is not None:
                    self.times[kernel].append(run())

    def table(self) -> dict[Kernel, float]:
        """Lower quartile of each kernel, NaN where it cannot be run: what else runs only makes a kernel longer."""
        return {kernel: quiet(times) for kernel, times in self.times.items()}


def _warm_up(run: Callable[[], float] | None) -> Callable[[], float] | None:
    try:
        for _ in range(_WARMUP if run is not None else 0):
            run()  # type: ignore[misc]
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return None
    return run


def _measure_in_turn(
    kernels: Sequence[Kernel], num_threads: int, budget_s: float, progress: Progress | None
) -> dict[Kernel, list[float]]:
    """Round after round, each kernel once per round."""
    with threads(num_threads):
        stand = Stand(kernels)
        stand.rehearse()
        for _ in rounds(_MIN_ROUNDS, _MAX_ROUNDS, budget_s, progress=progress, what="measuring kernels"):
            stand.round()
    return stand.times


def _ready(kernel: Kernel, clock: Clock, *, is_warm: bool) -> Callable[[], float] | None:
    """A function that runs the kernel once and returns its nanoseconds; its first input has just been written."""
    import torch

    try:
        packet, _, overload = kernel.operator.partition("::")[2].partition(".")
        function = getattr(getattr(getattr(torch.ops, kernel.operator.partition("::")[0]), packet), overload)
        with torch.inference_mode():
            # What integers among the arguments stay below: rows of the table that they point into.
            is_table = "embedding" in kernel.operator or "index_select" in kernel.operator
            bound = kernel.tensors[0].shape[0] if is_table and kernel.tensors else 2
            arguments = [_fill_value(argument, bound) for argument in kernel.arguments]
            keywords = {name: _fill_value(item, bound) for name, item in kernel.keywords}
    except (PriceError, AttributeError, RuntimeError):
        return None
    first = next((argument for argument in arguments if isinstance(argument, torch.Tensor)), None)
    written = first if first is not None and first.is_floating_point() and not _overlaps(first) else None

    def run() -> float:
        if written is not None:
            written.mul_(1.0)
        for _ in range(_WARM_RUNS if is_warm else 0):
            function(*arguments, **keywords)
        begin = clock()
        result = function(*arguments, **keywords)
        del result
        return float(clock() - begin)

    return run


def _overlaps(tensor: Any) -> bool:
    return any(step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _fill_value(value: Any, bound: int) -> Any:
    from windtunnel.cost.rerun import DTYPES, fill

    if isinstance(value, TensorShape):
        names = {dtype: name for name, dtype in DTYPES.items()}
        spec = TensorSpec(0, value.shape, value.stride, names.get(value.dtype, ""))
        return fill(spec, value.shape, bound=bound)
    if isinstance(value, tuple):
        return [_fill_value(item, bound) for item in value]
    return value


# --- adding up ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Overhead:
    """Host overhead of a network in addition to its kernels.

    Parameters
    ----------
    per_call_ns : float
        Python and the framework around each call.
    scale : float
        A kernel in a net over the same kernel alone.
    num_nets : int
        Nets that it was fitted on.
    """

    per_call_ns: float = 0.0
    scale: float = 1.0
    num_nets: int = 0

    def latency_ns(self, kernels: Sequence[Kernel], table: Table) -> float:
        """Predicted time of one inference.

        Raises
        ------
        PriceError
            Kernels were never measured; names them.
        """
        counts = Counter(kernels)
        unknown = sorted({kernel.operator for kernel in counts if not table.get(kernel, float("nan")) > 0})
        if unknown:
            raise PriceError("kernels have no measured time", where=", ".join(unknown[:5]))
        alone = sum(number * table[kernel] for kernel, number in counts.items())
        return self.scale * alone + self.per_call_ns * len(kernels)


def fit_overhead(
    nets: Sequence[Sequence[Kernel]], table: Table, measured_ns: Sequence[float], *, with_scale: bool = False
) -> Overhead:
    """Least squares of relative errors over nets that really ran.

    Parameters
    ----------
    nets : sequence of sequences of Kernel
    table : mapping
    measured_ns : sequence of float
        Latency of each net.
    with_scale : bool
        Also fit how much longer a kernel takes in a net than alone.

    Raises
    ------
    PriceError
        Fewer nets than constants, or kernels were never measured.
    """
    if len(nets) < 1 + with_scale or len(nets) != len(measured_ns):
        raise PriceError(f"{len(nets)} nets with {len(measured_ns)} times do not fix {1 + with_scale} constants")
    bare = Overhead()
    alone_N = np.array([bare.latency_ns(net, table) for net in nets])
    calls_N = np.array([float(len(net)) for net in nets])
    measured_N = np.asarray(measured_ns, dtype=np.float64)
    if with_scale:
        design = np.stack([alone_N, calls_N], axis=1) / measured_N[:, None]
        scale, per_call = np.linalg.lstsq(design, np.ones(len(nets)), rcond=None)[0]
        return Overhead(float(per_call), float(scale), len(nets))
    weights = calls_N / measured_N
    per_call = float(weights @ (1 - alone_N / measured_N) / (weights @ weights))
    return Overhead(max(per_call, 0.0), 1.0, len(nets))  # no framework gives time back
