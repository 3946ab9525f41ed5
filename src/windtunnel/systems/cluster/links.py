"""How a job uses links that others may want, too.

In: speeds, a model, a shape, links. Out: for which parts of an iteration a job alone sends over the cards of its
machines and the uplinks of its racks. Not here: what sharing makes of them (``sharing.py``).
"""

from __future__ import annotations

from windtunnel.cost.collective import IDEAL_BYTES_PER_S
from windtunnel.errors import InputError
from windtunnel.hardware import Link
from windtunnel.search.shapes import Shape, all_reduce_ns, tier_of
from windtunnel.search.speeds import LayerSpeeds, Links, Speeds

__all__ = ["link_use"]


def link_use(speeds: Speeds, model: str, batch: int, shape: Shape, links: Links) -> tuple[float, float, float, float]:
    """Parts of an iteration that are spent on links, as the simulator's ``SPEED`` has them.

    Speeds that know no tiers are taken to lose all their time on the outermost one that a shape spans. A ring over
    racks leaves machines by their cards, too, no faster than the uplink; it loads them as much as that is of a card.

    Returns
    -------
    tuple of float
        What it sends alone over machines' cards, and over racks' uplinks; what it adds to the load of a card; the part
        on uplinks that grows with that load.

    Raises
    ------
    InputError
        Sums run beside the backward pass: how much of them is seen depends on who else sends, too.
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
    """Shares of an iteration in racks and between them."""
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
    """The same links, as if all but one took no time."""
    return [
        link if index == tier else Link(link.name, IDEAL_BYTES_PER_S, latency_ns=0) for index, link in enumerate(links)
    ]
