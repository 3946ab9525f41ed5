"""Partial flights of optimizers: the update alone, old form and new form side by side.

In: what a capture kept about its optimizers (class, options, shapes of the parameters). Out: how much longer an
update takes with other options, for fewer parameters, or on other threads. Parameters, gradients and state have their
real sizes; between two updates something else passes through the caches, as forward and backward do in the step.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.cost.rerun.program import Program, tensors_of
from windtunnel.errors import PriceError
from windtunnel.measure.database import Measurement, ProfileDatabase
from windtunnel.measure.devices import HostClock, StreamClock, require_captured_device, stream_clock
from windtunnel.measure.disturbance import watch_disturbance
from windtunnel.measure.fingerprint import libraries, machine
from windtunnel.measure.host_state import hold_heap
from windtunnel.measure.turns import elapsed_ns, quiet, rounds, spread_of_quiet, spread_ratio

if TYPE_CHECKING:
    import torch

__all__ = ["UpdateForm", "embedding_row_ratios", "measure_update", "sparse_parameters", "step_of"]

_EVICTION_BYTES = {"cpu": 16 * 2**20, "cuda": 256 * 2**20}  # above the last-level cache
_MAX_SERIES = 2  # where others disturb the first
_MIN_ROUNDS, _MAX_ROUNDS, _WARMUP = 5, 40, 2
_SIDES = ("update", "device update")  # names of measurements: of the host, and of the device that it launches to
_HOLD_MARGIN = 1.5  # of what the host takes: kernels begin once all are launched


@dataclass(frozen=True, slots=True)
class UpdateForm:
    """What changes about an update.

    Parameters
    ----------
    options : dict
        Constructor options, such as ``{"fused": True, "foreach": False}``.
    frozen : frozenset of str
        Names of parameters that are no longer updated.
    threads : int
        0: as captured.
    reshaped : mapping of str to tuple of int
        Shapes of parameters, by name, that have another one.
    sparse : frozenset of str
        Names of parameters that have sparse gradients, in addition to those that had them.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    threads: int = 0
    reshaped: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sparse: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        """What is different, as one line of text."""
        changed: list[Any] = [dict(self.options), sorted(self.frozen), self.threads]
        changed += [dict(self.reshaped)] if self.reshaped else []
        changed += [{"sparse": sorted(self.sparse)}] if self.sparse else []
        return json.dumps(changed, separators=(",", ":"))


class Factor(float):
    """New over old duration, with the measurement behind it and how much of its time others took.

    ``device_ratio`` is that of the kernels of an update on a GPU, whose launches are then what the factor is of; on
    the host it is the factor itself.
    """

    measurement: Measurement
    spread_ratio: float
    waited_ratio: float
    device_ratio: float

    @classmethod
    def of(cls, measured: Sequence[Measurement], waited_ratio: float = 0.0) -> Factor:
        """The factor of a measurement, or of two: of the host and of its device."""
        factor = cls(measured[0].ratio)
        factor.measurement, factor.waited_ratio = measured[0], waited_ratio
        factor.spread_ratio = max(item.spread_ratio for item in measured)
        factor.device_ratio = measured[-1].ratio
        return factor


def measure_update(
    optimizers: list[dict[str, Any]],
    new: UpdateForm,
    *,
    threads: int = 0,
    touched: Mapping[str, float] | None = None,
    database: ProfileDatabase | None = None,
    budget_s: float = 2.0,
    device: str = "cpu",
    device_clock: StreamClock | HostClock | None = None,
    captured_on: Sequence[str] = (),
) -> Factor:
    """Measure all optimizers' updates together.

    Parameters
    ----------
    optimizers : list of dict
        ``graph.meta.optimizers``.
    new : UpdateForm
    threads : int
        Threads of the old form; 0: as torch has them now.
    touched : mapping of parameter name to float
        Share of the rows that get a gradient other than zero; all where it is not given. Some operators take twice as
        long on zeros.
    database : ProfileDatabase, optional
    budget_s : float
    device : str
        Where the parameters lie: ``cpu`` or ``cuda``.
    device_clock : StreamClock or HostClock, optional
        Of that device; its own by default.
    captured_on : sequence of str
        Names of the GPUs that the capture saw.

    Returns
    -------
    Factor
        New over old duration.

    Raises
    ------
    AbsentDeviceError
        The parameters lie on a GPU, and there is none here, or another one.
    PriceError
        A class is not one of ``torch.optim``, or it does not know an option.
    """
    require("torch", extra="torch")
    hold_heap()  # as capture and flights do
    touched = touched or {}
    clock = device_clock or stream_clock(device)
    require_captured_device(captured_on, clock)
    signature = json.dumps([optimizers, sorted(touched.items())], sort_keys=True)
    keys = [
        (
            "+".join(str(optimizer["class"]) for optimizer in optimizers),
            hashlib.sha256(signature.encode()).hexdigest()[:16],
            side,
            new.label,
            threads,
            machine() if clock is None else f"{machine()} {clock.device_name}",
            libraries(),
        )
        for side in (_SIDES[:1] if clock is None else _SIDES)
    ]
    known = database.find_all(keys) if database is not None else {}
    if all(key in known and known[key].is_trusted for key in keys):
        return Factor.of([known[key] for key in keys])
    for _ in range(_MAX_SERIES):
        with watch_disturbance() as stretch:
            rounds_RFS = _fly(optimizers, new, threads, touched, budget_s, device, clock)
        if not stretch.is_disturbed:
            break
    measurements = []
    for row, key in enumerate(keys):
        old_ns, new_ns = rounds_RFS[:, 0, row], rounds_RFS[:, 1, row]
        spread = spread_ratio(new_ns / old_ns)
        if stretch.is_disturbed:
            spread = spread_of_quiet(old_ns[:, None], new_ns[:, None])
        measurements.append(Measurement(*key, quiet(old_ns), quiet(new_ns), spread, len(old_ns)))
    if database is not None and not stretch.is_disturbed:
        database.add(measurements)
    return Factor.of(measurements, stretch.lost_ratio if stretch.is_disturbed else 0.0)


def embedding_row_ratios(program: Program) -> dict[str, float]:
    """Share of the rows of every embedding that one iteration reads, by parameter name, for indices drawn evenly.

    Parameters
    ----------
    program : Program
    """
    result: dict[str, float] = {}
    for call in program.calls:
        if not call.operator.startswith(("aten::embedding", "aten::_embedding_bag")):
            continue
        specs = tensors_of(call.inputs, call.shapes, call.types)
        name = program.parameters.get(specs[0].identity)
        if name is not None and specs[0].shape:
            reads = specs[1].num_elements / specs[0].shape[0]
            result[name] = 1.0 - (1.0 - result.get(name, 0.0)) * math.exp(-reads)
    return result


def _fly(
    optimizers: list[dict[str, Any]],
    new: UpdateForm,
    threads: int,
    touched: Mapping[str, float],
    budget_s: float,
    device: str,
    clock: StreamClock | HostClock | None,
) -> NDArray[np.float64]:
    """Times of both forms, round by round, ns: float [R, F=2 forms, S sides], the host first."""
    import torch

    evicted = torch.zeros(_EVICTION_BYTES[device] // 4, device=device)
    before = [step_of(optimizer, UpdateForm(), touched, device) for optimizer in optimizers]
    after = [step_of(optimizer, new, touched, device) for optimizer in optimizers]
    captured = threads or torch.get_num_threads()
    kept = []
    for turn in rounds(_MIN_ROUNDS, _MAX_ROUNDS, budget_s, warmup=_WARMUP):
        times = []
        for steps, used in ((before, captured), (after, new.threads or captured)):
            evicted.add_(1.0)
            times.append(_time_steps(steps, used, clock))
        if turn >= 0:
            kept.append(times)
    return np.array(kept)


def _time_steps(steps: list[Callable[[], Any]], num_threads: int, clock: StreamClock | HostClock | None) -> list[float]:
    """What the host takes and, with a clock of the device, what the kernels take without gaps for their launches."""
    import torch

    current = torch.get_num_threads()
    if num_threads != current:
        torch.set_num_threads(num_threads)
    if clock is not None:
        clock.finish()
    times = [float(elapsed_ns(lambda: [step() for step in steps]))]
    if clock is not None:
        clock.finish()
        clock.hold(_HOLD_MARGIN * times[0])
        started = clock.stamp()
        for step in steps:
            step()
        ended = clock.stamp()
        clock.wait(ended)
        times.append(clock.between_ns(started, ended))
    if num_threads != current:
        torch.set_num_threads(current)
    return times


def step_of(
    description: Mapping[str, Any],
    form: UpdateForm,
    touched: Mapping[str, float] | None = None,
    device: str = "cpu",
) -> Callable[[], Any]:
    """An optimizer of the described class on fresh parameters, as its step function.

    Raises
    ------
    PriceError
        A class is not one of ``torch.optim``, or it does not know an option.
    """
    import torch

    touched = touched or {}

    constructor = _constructor(description)
    known = set(inspect.signature(constructor).parameters)
    unknown = [name for name, value in form.options.items() if value and name not in known]
    if unknown:
        raise PriceError(
            f"{constructor.__name__} has no option {unknown[0]!r}",
            fix="fused implementations exist for Adam, AdamW, SGD and Adagrad",
        )
    groups = []
    for group in description["groups"]:
        options = {name: _restore_tuple(value) for name, value in group["options"].items() if name in known}
        with torch.device(device):
            tensors = [
                _make_parameter(
                    torch,
                    form.reshaped.get(name, shape),
                    dtype,
                    touched.get(name, 1.0),
                    is_sparse=is_sparse or name in form.sparse,
                )
                for name, shape, dtype, is_sparse in zip(
                    group["parameters"], group["shapes"], group["dtypes"], _sparse(group), strict=True
                )
                if name not in form.frozen
            ]
        groups.append(
            {**options, **{name: value for name, value in form.options.items() if name in known}, "params": tensors}
        )
    groups = [group for group in groups if group["params"]]
    if not groups:
        return lambda: None
    optimizer = constructor(groups)
    step: Callable[[], Any] = optimizer.step
    return step


def _restore_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _sparse(group: Mapping[str, Any]) -> list[bool]:
    return list(group.get("sparse") or [False] * len(group["parameters"]))


def sparse_parameters(optimizers: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of the parameters that had sparse gradients when they were captured.

    Parameters
    ----------
    optimizers : list of dict
        ``graph.meta.optimizers``.
    """
    groups = [group for optimizer in optimizers for group in optimizer["groups"]]
    return [
        name
        for group in groups
        for name, is_sparse in zip(group["parameters"], _sparse(group), strict=True)
        if is_sparse
    ]


def _make_parameter(
    torch_module: Any, shape: Sequence[int], dtype: str, touched: float, *, is_sparse: bool
) -> torch.Tensor:
    created: torch.Tensor = torch_module.rand(shape, dtype=getattr(torch_module, dtype)).requires_grad_()
    if is_sparse:
        created.grad = _sparse_gradient(torch_module, created, touched)
        return created
    gradient = torch_module.rand_like(created) * 1e-3
    if touched < 1.0 and shape:
        gradient[torch_module.rand(shape[0]) >= touched] = 0.0
    created.grad = gradient
    return created


def _sparse_gradient(torch_module: Any, parameter: torch.Tensor, touched: float) -> torch.Tensor:
    """As many looked-up rows, with repetitions, as touch this share of them; each once if all are touched."""
    num_rows = parameter.shape[0]
    num_reads = num_rows if touched >= 1.0 else max(1, round(-math.log1p(-touched) * num_rows))
    rows = torch_module.randint(num_rows, (1, num_reads)) if touched < 1.0 else torch_module.arange(num_rows)[None]
    values = torch_module.rand(num_reads, *parameter.shape[1:], dtype=parameter.dtype) * 1e-3
    created: torch.Tensor = torch_module.sparse_coo_tensor(rows, values, parameter.shape, check_invariants=False)
    return created


def _constructor(description: Mapping[str, Any]) -> Any:
    import torch

    module, _, name = str(description["class"]).rpartition(".")
    constructor = getattr(torch.optim, name, None)
    if constructor is None or not module.startswith("torch.optim"):
        raise PriceError(
            f"the optimizer {description['class']} is not one of torch.optim, so its update cannot be measured "
            f"separately",
            fix="take published ratios (prices='paper'), or verify the what-if by a real run",
        )
    closure = inspect.signature(constructor.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise PriceError(
            f"the step of {name} calls back for the loss, so its update cannot be run separately",
            fix="compare both programs by a real run, with `windtunnel suite`",
        )
    return constructor
