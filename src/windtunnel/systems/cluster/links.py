"""The link usage of an isolated job.

In: speeds, a model, a shape, links. Out: the fractions of an iteration in which the job sends over the cards of its
machines and the uplinks of its racks. Not here: the effect of contention (``sharing.py``).
"""

from __future__ import annotations

from windtunnel.cost.collective import IDEAL_BYTES_PER_S
from windtunnel.errors import InputError
from windtunnel.hardware import Link
from windtunnel.search.shapes import Shape, all_reduce_ns, tier_of
from windtunnel.search.speeds import LayerSpeeds, Links, Speeds

__all__ = ["link_use"]


def link_use(speeds: Speeds, model: str, batch: int, shape: Shape, links: Links) -> tuple[float, float, float, float]:
    """Return the fractions of an iteration that are spent on links, as fields of the simulator's ``SPEED``.

    Speeds without tiers are assumed to lose all their time on the outermost tier that a shape spans. A ring over racks
    also leaves machines by their cards, at the rate of the uplink, and loads the cards by that part of their rate.

    Returns
    -------
    tuple of float
        What it sends alone over machines' cards, and over racks' uplinks; what it adds to the load of a card; the part
        on uplinks that grows with that load.

    Raises
    ------
    InputError
        All-reduces overlap with the backward pass: their exposed part would depend on the other jobs.
    """
    if isinstance(speeds, LayerSpeeds):
        card, uplink = _tiers(speeds, model, batch, shape)
    else:
        missing = max(1.0 - speeds.speed(model, batch, shape), 0.0)
        card, uplink = ((0.0, 0.0), (missing, 0.0), (0.0, missing))[tier_of(shape)]
    ratio = min(links[2].bandwidth_bytes_per_s / links[1].bandwidth_bytes_per_s, 1.0)
    used = min(ratio, 0.5)
    return card, uplink, card + uplink * used / (1.0 - used), uplink * max(2.0 * ratio - 1.0, 0.0)


def _tiers(speeds: LayerSpeeds, model: str, batch: int, shape: Shape) -> tuple[float, float]:
    """Return the fractions of an iteration within racks and between them."""
    if speeds.overlap:
        raise InputError(
            "shared links require that no communication overlaps with computation", where="overlap and shared links",
            fix="leave one of them out",
        )  # fmt: skip
    profile = speeds.profile(model)
    scale = batch / profile.batch if batch else 1.0
    iteration_ns = scale * profile.compute_ns / speeds.speed(model, batch, shape)
    sizes = [int(size) for size in profile.gradient_bytes if size]
    within, between = (
        sum(all_reduce_ns(size, shape, _alone(speeds.links, tier), speeds.rule) for size in sizes) for tier in (1, 2)
    )
    return within / iteration_ns, between / iteration_ns


def _alone(links: Links, tier: int) -> list[Link]:
    """Return the links with infinite rates in all tiers but one."""
    return [
        link if index == tier else Link(link.name, IDEAL_BYTES_PER_S, latency_ns=0) for index, link in enumerate(links)
    ]
