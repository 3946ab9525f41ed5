"""The policies by name: Dally and its variants, its rivals, and ours.

In: settings. Out: a ``Policy`` each. Not here: what the settings do (``cluster.policy``).
"""

from __future__ import annotations

from pathlib import Path

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.systems.cluster.gittins import gittins_index, heavy_tail_index, read_sizes
from windtunnel.systems.cluster.policy import Policy

__all__: list[str] = []

_DALLY = "Sharma et al., Dally: GPU cluster scheduling, 2024; github.com/aakash-sharma/cluster-sim"
_INF = float("inf")
_SKEWED = "alexnet/vgg/mobilenet"


def _or_never(hours: float) -> float:
    return 3600 * hours if hours else _INF


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split("/"))
    except ValueError as cause:
        raise InputError(f"{text!r} are no numbers", fix="write them as 3250/7200") from cause


@registry.policy("dally", source=_DALLY)
def dally(
    *, order: str = "nw_sens", history_leases: float = 48.0, fit: str = "best", timer_events: bool = True,
    aging: float = 0.0, reserve_after_h: float = 0.0,
) -> Policy:  # fmt: skip
    """Jobs decline spread offers for as long as others had to wait for tight ones; the most hurt is served first."""
    return Policy(order=order, timers="auto", history_leases=history_leases, fit=fit, timer_events=timer_events,
                  aging=aging, reserve_after_s=_or_never(reserve_after_h))  # fmt: skip


@registry.policy("dally-manual", source=_DALLY)
def dally_manual(
    *, rack_timer_h: float = 6.0, network_timer_h: float = 12.0, order: str = "nw_sens",
    fit: str = "best", timer_events: bool = True, aging: float = 0.0, reserve_after_h: float = 0.0,
) -> Policy:  # fmt: skip
    """Dally with timers that somebody set."""
    return Policy(order=order, rack_timer_s=3600 * rack_timer_h, network_timer_s=3600 * network_timer_h, fit=fit,
                  timer_events=timer_events, aging=aging, reserve_after_s=_or_never(reserve_after_h))  # fmt: skip


@registry.policy("dally-nowait", source=_DALLY)
def dally_nowait(*, order: str = "nw_sens", fit: str = "best") -> Policy:
    """Dally whose jobs take any offer at once."""
    return Policy(order=order, fit=fit)


@registry.policy("dally-consolidated", source=_DALLY)
def dally_consolidated(*, order: str = "nw_sens", fit: str = "best") -> Policy:
    """Dally whose jobs wait for the tightest placement that can ever hold them."""
    return Policy(order=order, rack_timer_s=_INF, network_timer_s=_INF, fit=fit)


@registry.policy("windtunnel", source="windtunnel; marginal timers, ageing and reservation over Dally and Tiresias")
def windtunnel(
    *, order: str = "ends", weight: float = 0.5, tail: float = 0.8, patience: float = 0.5, aging: float = 0.0,
    reserve_after_h: float = 0.0, fit: str = "best",
) -> Policy:  # fmt: skip
    """Who was served little or has little left comes first; a spread offer is taken if it beats waiting."""
    return Policy(order=order, timers="marginal", weight=weight, tail=tail, patience=patience, aging=aging, fit=fit,
                  reserve_after_s=_or_never(reserve_after_h))  # fmt: skip


@registry.policy("fifo", source="First in, first out")
def fifo(*, fit: str = "best") -> Policy:
    """In order of arrival, without preemption; who fits into what is free may overtake."""
    return Policy(order="fifo", has_lease=False, fit=fit)


@registry.policy("srtf", source="Shortest remaining time first")
def srtf(*, fit: str = "best") -> Policy:
    """The least work left first, as an oracle knows it, with leases."""
    return Policy(order="srtf", fit=fit)


@registry.policy("backfill", source="Lifka, The ANL/IBM SP scheduling system, JSSPP 1995 (EASY)")
def backfill(*, fit: str = "best") -> Policy:
    """In order of arrival; the first that cannot start has a reservation, which later ones may not delay."""
    return Policy(order="fifo", has_lease=False, backfills=True, fit=fit)


@registry.policy("tiresias", source="Gu et al., Tiresias, NSDI 2019, as Dally compares with it")
def tiresias(*, skewed_models: str = _SKEWED) -> Policy:
    """Fewest GPU-seconds served first; models with one dominant tensor wait for one machine, others take anything."""
    return Policy(order="las2d", placement="spread", rack_timer_s=_INF, network_timer_s=_INF,
                  skewed_models=tuple(skewed_models.split("/")))  # fmt: skip


@registry.policy("tiresias-queues", source="Gu et al., Tiresias, NSDI 2019 (discretized 2D-LAS)")
def tiresias_queues(
    *, thresholds: str = "3250/7200/18000", promote: float = 0.0,
    skewed_models: str = _SKEWED,
) -> Policy:  # fmt: skip
    """Queues by GPU-seconds served, first in first out within one; placed as tiresias."""
    return Policy(order="queues", placement="spread", rack_timer_s=_INF, network_timer_s=_INF,
                  thresholds_gpu_s=_numbers(thresholds), promote=promote,
                  skewed_models=tuple(skewed_models.split("/")))  # fmt: skip


@registry.policy("tiresias-gittins", source="Gu et al., Tiresias, NSDI 2019 (2D-Gittins)")
def tiresias_gittins(*, sizes: str = "", skewed_models: str = _SKEWED) -> Policy:
    """The highest Gittins index of GPU-seconds first, from a column of past sizes; else that of a heavy tail."""
    index = gittins_index(read_sizes(Path(sizes))) if sizes else heavy_tail_index()
    return Policy(order="gittins", placement="spread", rack_timer_s=_INF, network_timer_s=_INF,
                  gittins=index, skewed_models=tuple(skewed_models.split("/")))  # fmt: skip


@registry.policy("gandiva", source="Xiao et al., Gandiva, OSDI 2018")
def gandiva(*, seed: int = 0) -> Policy:
    """Start anywhere, beside jobs of the same size if possible; move into one machine when one is free, at no cost."""
    return Policy(order="fifo", placement="affine", has_lease=False, is_free_to_move=True, migrates=True, seed=seed)


@registry.policy("themis", source="Mahajan et al., Themis, NSDI 2020, without the payments of its auction")
def themis(*, fit: str = "best") -> Policy:
    """Who is furthest behind the time it would take on its share of the cluster is served first."""
    return Policy(order="ftf", fit=fit)


@registry.policy("gavel-las", source="Narayanan et al., Gavel, OSDI 2020, for one type of GPU")
def gavel_las(*, round_s: float = 360.0, fit: str = "best") -> Policy:
    """Rounds; who is furthest behind its max-min fair share of the time is served first."""
    return Policy(order="max_min", lease_s=round_s, fit=fit)
