"""The cheapest machines that train fast enough: PipeDream-2BW's planner over rented instances.

In: a graph of one training step, a batch, samples per second, instances with their prices. Out: ``Rental``: how many of
which, their plan, and of everything that costs less why it does not do. A price's order decides what is tried next;
what is too slow even with all devices busy all the time is not planned for. Not here: one kind of device (``two_bw``),
prices of instances (``hardware``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from windtunnel.base.progress import Progress
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.graph import Graph
from windtunnel.hardware import Device, Fabric, Instance
from windtunnel.search.blocks import Blocks, cut_evenly
from windtunnel.systems.pipelines.profiles import profiles_of
from windtunnel.systems.pipelines.replayed import Played, batch_ns, stage_times
from windtunnel.systems.pipelines.two_bw import Job, PlanRow, plan_2bw

__all__ = ["Offer", "Rental", "cheapest_machines", "links_between"]


@dataclass(frozen=True)
class Offer:
    """A number of instances of one kind.

    Parameters
    ----------
    instance : Instance
    count : int
    played : Played or None
        The plan that is fast enough; None where there is none.
    reason : str
        Why there is none.
    is_sure : bool
        Whether no plan of this kind is fast enough, and not only none of those that were replayed.
    """

    instance: Instance
    count: int
    played: Played | None = None
    reason: str = ""
    is_sure: bool = True

    @property
    def usd_per_h(self) -> float:
        """Price of all machines in USD per hour."""
        return self.count * self.instance.price_usd_per_h

    @property
    def num_devices(self) -> int:
        """Number of devices of all machines."""
        return self.count * self.instance.num_devices


@dataclass(frozen=True)
class Rental:
    """The cheapest that does, and all that costs less.

    Parameters
    ----------
    best : Offer
    cheaper : tuple of Offer
        The cheapest first.
    """

    best: Offer
    cheaper: tuple[Offer, ...]

    @property
    def is_proven(self) -> bool:
        """Whether nothing cheaper can do, with any plan of equal stages."""
        return all(item.is_sure for item in self.cheaper)


def cheapest_machines(
    graph: Graph,
    num_samples: int,
    batch: int,
    sizes: Sequence[int],
    samples_per_s: float,
    instances: Iterable[Instance],
    *,
    max_machines: int = 8,
    num_replayed: int = 16,
    profiles: Callable[[Device], Mapping[int, Blocks]] | None = None,
    progress: Progress | None = None,
) -> Rental:
    """Return the cheapest machines that reach a throughput.

    Parameters
    ----------
    graph : Graph
        One training step of one process.
    num_samples : int
        Samples of that step.
    batch : int
        Samples of one update.
    sizes : sequence of int
        Samples of a microbatch, to choose from.
    samples_per_s : float
    instances : iterable of Instance
    max_machines : int
        Maximum number of machines of one kind.
    num_replayed : int
        Maximum number of replayed plans per offer, the best by the planner's cost functions.
    profiles : callable, optional
        Blocks by samples of a microbatch on a device; by default the graph priced for it.

    Raises
    ------
    InfeasibleError
        No offer reaches the throughput.
    InputError
        The rate is none above zero, or the graph is no step of one process.
    """
    if not 0 < samples_per_s < float("inf"):
        raise InputError(f"{samples_per_s} samples per s", where="--min-throughput", fix="above 0")
    offers = [Offer(instance, count) for instance in instances for count in range(1, max_machines + 1)]
    offers.sort(key=lambda offer: (offer.usd_per_h, offer.num_devices, offer.instance.name))
    known: dict[str, Mapping[int, Blocks]] = {}  # by device, since capture and pricing dominate
    cheaper: list[Offer] = []
    for done, offer in enumerate(offers):
        if progress is not None:
            progress("trying machines", done, len(offers))
        device = offer.instance.device
        if device.name not in known:
            known[device.name] = profiles(device) if profiles else profiles_of(graph, num_samples, sizes, device)
        tried = _plan_offer(offer, known[device.name], batch, batch / samples_per_s * 1e9, num_replayed)
        if tried.played is not None:
            return Rental(tried, tuple(cheaper))
        cheaper.append(tried)
    raise InfeasibleError(
        f"no {max_machines} machines of a kind yield {samples_per_s:,.6g} samples per s",
        where="; ".join(f"{item.count} x {item.instance.name}: {item.reason}" for item in cheaper[-3:]),
        fix="more machines (--max-machines), other ones, or a larger batch",
    )  # fmt: skip


def _plan_offer(offer: Offer, profiles: Mapping[int, Blocks], batch: int, max_ns: float, num_replayed: int) -> Offer:
    """The offer with a plan whose batch takes no longer, or with the reason why there is none."""
    busy_ns = min(_pass_ns(profile) * batch / size for size, profile in profiles.items()) / offer.num_devices
    if busy_ns > max_ns:
        return _without(offer, f"{batch / busy_ns * 1e9:,.1f} samples per s if all devices were always busy")
    links = links_between(offer.instance, offer.count)
    job = Job(offer.num_devices, float(offer.instance.device.memory_bytes), batch, links)
    table = plan_2bw(profiles, job)
    if not table.feasible:
        short = [row.missing_bytes for row in table.rows if row.missing_bytes]
        return _without(offer, "no plan fits into memory" if short else "no plan is possible")
    rows = [row for row in table.feasible if _min_step_ns(row, profiles[row.microbatch]) <= max_ns]
    result = [
        Played(row, batch_ns(row, stage_times(row, profiles[row.microbatch], links))) for row in rows[:num_replayed]
    ]
    best = min(result, key=lambda plan: plan.step_ns, default=None)
    if best is not None and best.step_ns <= max_ns:
        return Offer(offer.instance, offer.count, best)
    if best is None:
        return _without(offer, "the busiest stage of every plan that fits takes too long")
    reason = f"{batch / best.step_ns * 1e9:,.1f} samples per s at best"
    return Offer(offer.instance, offer.count, None, reason, is_sure=len(rows) <= num_replayed)


def _without(offer: Offer, reason: str) -> Offer:
    return Offer(offer.instance, offer.count, None, reason)


def _pass_ns(blocks: Blocks) -> float:
    return float(blocks.forward_ns.sum() + blocks.backward_ns.sum())


def _min_step_ns(row: PlanRow, blocks: Blocks) -> float:
    """Return a lower bound on all schedules: all microbatches through the busiest stage."""
    taken_U = blocks.forward_ns + blocks.backward_ns + (blocks.again_ns if row.recomputes else 0.0)
    stages = cut_evenly(blocks.num_blocks, row.depth)
    return row.num_microbatches * max(float(taken_U[first:last].sum()) for first, last in stages)


def links_between(instance: Instance, count: int) -> Fabric:
    """Return the links between ``count`` instances; an instance's network is shared by its devices."""
    network = instance.network_bytes_per_s / instance.num_devices
    inside = network if instance.device_link is None else instance.device_link.bandwidth_bytes_per_s
    return Fabric.of_rates(inside, network, instance.num_devices if count > 1 else instance.num_devices + 1)
