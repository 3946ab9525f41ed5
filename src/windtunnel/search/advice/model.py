"""What a training takes and costs on rented machines.

In: a training, an offer, the time of a step on it. Out: ``Quote``: hours, dollars, what holds it up. Source: Stash,
ICDCS 2023, section on recommendations; data stalls as in DS-Analyzer, VLDB 2021. Not here: where the time of a step
comes from (``steps``), which offer is taken (``search``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel.errors import InputError
from windtunnel.hardware import Instance

__all__ = ["BILLING_S", "Offer", "Quote", "Rented", "StepTime", "quote_training"]

BILLING_S = {"second": 1.0, "hour": 3600.0}
"""Billed units; machines billed by the second are paid for a minute at least."""

_MIN_BILLED_S = 60.0
_USED_FOR_FILES = 0.8  # of a host's memory
_MUCH_AT_BOUND = 0.05  # of the device's time: an interval that leaves it out would be too narrow


@dataclass(frozen=True)
class Rented:
    """A training that is to be run somewhere.

    Parameters
    ----------
    num_samples : int
        Of one epoch.
    num_epochs : int
    batch_size : int
        Of each device.
    dataset_bytes : float
        On a disk; 0 where it counts for nothing.
    prep_per_core_per_s : float
        Samples that one hardware thread prepares; 0 where that counts for nothing.
    disk_bytes_per_s : float
        At which each machine reads what is not in memory; 0 where that counts for nothing.
    device_bytes : float
        That it needs on each device.
    """

    num_samples: int
    num_epochs: int
    batch_size: int
    dataset_bytes: float = 0.0
    prep_per_core_per_s: float = 0.0
    disk_bytes_per_s: float = 0.0
    device_bytes: float = 0.0

    def __post_init__(self) -> None:
        counts = self.num_samples, self.num_epochs, self.batch_size
        rates = self.dataset_bytes, self.prep_per_core_per_s, self.disk_bytes_per_s, self.device_bytes
        if min(counts) < 1 or not all(0 <= rate < math.inf for rate in rates):
            raise InputError(
                f"no training has {self.num_samples} samples, {self.num_epochs} epochs and batches of "
                f"{self.batch_size}, or a rate or size is below 0",
                where="the training",
                fix="give 1 or more of each",
            )


@dataclass(frozen=True)
class Offer:
    """So many machines of a kind."""

    instance: Instance
    count: int

    @property
    def num_devices(self) -> int:
        """Of all machines."""
        return self.count * self.instance.num_devices

    @property
    def usd_per_h(self) -> float:
        """Of all machines."""
        return self.count * self.instance.price_usd_per_h

    def __str__(self) -> str:
        return f"{self.count} x {self.instance.name}"


@dataclass(frozen=True)
class StepTime:
    """A step of every device, ns.

    Attributes
    ----------
    compute_ns : float
        Of one device alone.
    interconnect_ns, network_ns : float
        What averaging within a machine, and between machines, adds.
    spread_ratio : float
        Half of the 90 % interval over the step; 0 where nothing is known of it.
    bound_ratio : float
        Share of the device's time that is a bare lower bound, so that the step takes longer than ``step_ns``.
    source : str
        ``measured``, or by what it is predicted.
    reason : str
        Why there is none, or empty.
    """

    compute_ns: float
    interconnect_ns: float = 0.0
    network_ns: float = 0.0
    spread_ratio: float = 0.0
    bound_ratio: float = 0.0
    source: str = "predicted"
    reason: str = ""

    @property
    def step_ns(self) -> float:
        """All of it."""
        return self.compute_ns + self.interconnect_ns + self.network_ns

    def __str__(self) -> str:
        time = f"{self.step_ns / 1e6:.2f} ms"
        if self.bound_ratio >= _MUCH_AT_BOUND:
            return f"at least {time} (lower bound: no measured or learned price for {self.bound_ratio:.0%} of it)"
        return f"{time} +- {self.spread_ratio:.0%} ({self.source})" if self.spread_ratio else f"{time} ({self.source})"


@dataclass(frozen=True)
class Quote:
    """What a training takes on an offer.

    Attributes
    ----------
    offer : Offer
    step : StepTime
    time_s : float
        First epoch and all others; infinite where it does not run.
    cost_usd : float
    bound_by : str
        What holds the epochs after the first up most: ``compute``, ``interconnect``, ``network``, ``prep``, ``fetch``,
        or ``memory`` where it does not run.
    reason : str
        Why it does not run; empty where it does.
    """

    offer: Offer
    step: StepTime
    time_s: float
    cost_usd: float
    bound_by: str
    reason: str = ""


def quote_training(job: Rented, offer: Offer, step: StepTime, *, billing: str = "second") -> Quote:
    """Time and cost of a training.

    ``N`` devices do ``ceil(samples / (N * batch))`` steps an epoch; preparing and reading overlap with them, so that
    the slowest of the three counts. The first epoch reads everything from the disk, the others what does not fit into
    the memory of each machine.

    Raises
    ------
    InputError
        The billing unit is unknown, or the step takes no time.
    """
    if billing not in BILLING_S:
        raise InputError(
            f"no machine is billed by the {billing!r}", where="billing", fix=f"one of {', '.join(BILLING_S)}"
        )
    if step.reason:
        return Quote(offer, step, math.inf, math.inf, "type", step.reason)
    if not 0 < step.step_ns < math.inf:
        raise InputError(f"a step of {step.step_ns} ns is none", where=str(offer))
    machine = offer.instance
    if job.device_bytes > machine.device.memory_bytes:
        reason = f"needs {job.device_bytes / 2**30:.1f} GiB, {machine.device.name} has {_gib(machine):g}"
        return Quote(offer, step, math.inf, math.inf, "memory", reason)
    num_steps = math.ceil(job.num_samples / (offer.num_devices * job.batch_size))
    trained_s = num_steps * step.step_ns / 1e9
    cores = offer.count * machine.num_vcpus
    prep_s = job.num_samples / (cores * job.prep_per_core_per_s) if job.prep_per_core_per_s else 0.0
    fetch_s = job.dataset_bytes / (offer.count * job.disk_bytes_per_s) if job.disk_bytes_per_s else 0.0
    fits = job.dataset_bytes <= _USED_FOR_FILES * machine.memory_bytes
    later = {"trained": trained_s, "prep": prep_s, "fetch": 0.0 if fits else fetch_s}
    time_s = max(trained_s, prep_s, fetch_s) + (job.num_epochs - 1) * max(later.values())
    bound_by = max(later, key=lambda name: later[name])
    if bound_by == "trained":
        parts = {"compute": step.compute_ns, "interconnect": step.interconnect_ns, "network": step.network_ns}
        bound_by = max(parts, key=lambda name: parts[name])
    return Quote(offer, step, time_s, _billable_time_s(time_s, billing) / 3600 * offer.usd_per_h, bound_by)


def _billable_time_s(time_s: float, billing: str) -> float:
    unit_s = BILLING_S[billing]
    units = math.ceil(round(time_s / unit_s, 6))  # a rounding error is no second more
    return max(units * unit_s, _MIN_BILLED_S)


def _gib(machine: Instance) -> float:
    return machine.device.memory_bytes / 2**30
