"""What ``predict`` says of a device, of several, and of a machine: which one answers, how fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel.errors import InputError, NotApplicableError, PriceError
from windtunnel.units import format_duration

if TYPE_CHECKING:
    from windtunnel.graph import Graph
    from windtunnel.hardware import Fabric, Target
    from windtunnel.whatifs.forecast import Forecast
    from windtunnel.whatifs.speed import Speed

__all__ = ["HOST_NAMES", "Predicted", "lines_of_whole", "predict_speed", "targets_of", "with_types"]

HOST_NAMES = ("this-host", "this host", "localhost")


@dataclass(frozen=True, slots=True)
class Predicted:
    """A forecast of one device, and what all devices of its target do together.

    Parameters
    ----------
    target : Target
    found : Forecast
        Of one device, or of all ranks of a job that has several.
    speed : Speed
    whole : Speed, optional
        Of all devices of the target, which share the batches and average gradients; None where the forecast is of one
        device alone, or ``why_not`` says why there is none.
    why_not : str
    has_messages : bool
        Whether the forecast has messages to other devices already.
    """

    target: Target
    found: Forecast
    speed: Speed
    whole: Speed | None = None
    why_not: str = ""
    has_messages: bool = False

    @property
    def name(self) -> str:
        """Of the target, one device by its full name."""
        return self.target.name if self.target.count > 1 else self.found.device

    @property
    def is_one_of_several(self) -> bool:
        """Whether the forecast is of one device of several; a job of several ranks is of all of them."""
        from windtunnel.whatifs.speed import num_ranks_of_job

        return self.target.count > 1 and num_ranks_of_job(self.found.graph) <= 1

    def json(self) -> dict[str, Any]:
        """Raw units."""
        whole = None if self.whole is None else {"step_ns": self.whole.step_ns, **self.whole.json()}
        reported = {"name": self.target.name, "num_devices": self.target.count, "whole": whole}
        return {"speed": self.speed.json(), "target": {**reported, "why_not": self.why_not or None}}


def targets_of(on: str) -> list[Target]:
    """Devices of a text such as ``h100,8xa100,dgx-h100,this-host``; raises as ``hardware.target`` does."""
    return [_target(name.strip()) for name in on.split(",")]


def _target(name: str) -> Target:
    from windtunnel.cost.host import host_device
    from windtunnel.hardware import Target, target
    from windtunnel.measure import ProfileDatabase

    if name in HOST_NAMES:
        return Target(name, host_device(database=ProfileDatabase()))
    return target(name)


def with_types(graph: Graph, targets: Sequence[Target], dtype: str) -> tuple[list[Target], list[str]]:
    """Those of several targets that have a peak for every type of the graph, and of each other one why it is left out.

    Raises
    ------
    InputError
        None of them has.
    """
    from windtunnel.cost.pricing import missing_types

    if len(targets) == 1:
        return list(targets), []  # a single one is refused with what it has
    missing = [missing_types(graph, target.device, dtype) for target in targets]
    notes = [
        f"{target.name} is skipped: {target.device.name} has no peak rate for {', '.join(types)}"
        for target, types in zip(targets, missing, strict=True)
        if types
    ]
    kept = [target for target, types in zip(targets, missing, strict=True) if not types]
    if not kept:
        raise InputError("none of the devices has a peak rate for the types of this graph", where="; ".join(notes),
                         fix="choose a type that they support with --dtype")  # fmt: skip
    return kept, notes


def predict_speed(target: Target, found: Forecast, fabric: Fabric | None, batch_dim: int | None) -> Predicted:
    """The speed of a forecast, and of all devices of its target.

    Raises
    ------
    ImplausibleError
        By a defect of ours, the answer cannot be true.
    """
    from windtunnel.base.plausible import require_plausible
    from windtunnel.graph import Kind
    from windtunnel.hardware import fabric_of
    from windtunnel.search.advice.steps import data_parallel_step_ns
    from windtunnel.whatifs.speed import num_ranks_of_job, speed_of

    dtype = "" if found.dtype == "as captured" else found.dtype
    speed = speed_of(found.graph, found.makespan_ns, device=target.device, dtype=dtype, batch_size=found.batch_size,
                     batch_dim=batch_dim)  # fmt: skip
    captured_ns = found.graph.meta.iteration_ns.get("median")
    what = f"the step predicted for {target.name}"
    require_plausible(what, step_ns=found.makespan_ns, captured_ns=captured_ns, mfu_ratio=speed.mfu_ratio)
    has_messages = bool(found.graph.select(kind=Kind.COMM).any())
    if target.count == 1 or num_ranks_of_job(found.graph) > 1 or has_messages:
        return Predicted(target, found, speed, has_messages=has_messages)
    try:
        links = fabric or fabric_of(target.owner, devices_per_host=target.count)
        num_cores = target.machine.num_cores if target.machine else 0
        whole_ns = data_parallel_step_ns(found, target.count, links.between(range(target.count)), num_cores)
    except (NotApplicableError, PriceError) as error:
        return Predicted(target, found, speed, why_not=error.message)
    return Predicted(target, found, speed, speed.times(target.count, whole_ns))


def lines_of_whole(one: Predicted) -> Iterator[str]:
    """Which part of a machine the answer is of, and what all of it does."""
    count, device = one.target.count, one.target.device.name
    if count == 1:
        return
    if not one.is_one_of_several:
        yield f"  all ranks of the job, on hosts of {count} {device}"
    elif one.has_messages:
        yield f"  with messages among all {count} {device}"
    elif one.whole is None:
        yield f"  for one of the {count} {device} of {one.target.name}; no prediction for all of them: {one.why_not}"
    else:
        text = f"  all {count}   {format_duration(one.whole.step_ns)} with gradients averaged"
        yield f"{text}: {one.whole}" if str(one.whole) else text
