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
        raise InputError(f"{text!r} is not a list of numbers", fix="write them as 3250/7200") from cause


@registry.policy("dally", source=_DALLY)
def dally(
    *, order: str = "nw_sens", history_leases: float = 48.0, fit: str = "best", timer_events: bool = True,
    aging: float = 0.0, reserve_after_h: float = 0.0,
) -> Policy:  # fmt: skip
    """Decline spread offers for as long as past jobs waited for tight ones; serve the most slowed job first."""
    return Policy(order=order, timers="auto", history_leases=history_leases, fit=fit, timer_events=timer_events,
                  aging=aging, reserve_after_s=_or_never(reserve_after_h))  # fmt: skip


@registry.policy("dally-manual", source=_DALLY)
def dally_manual(
    *, rack_timer_h: float = 6.0, network_timer_h: float = 12.0, order: str = "nw_sens",
    fit: str = "best", timer_events: bool = True, aging: float = 0.0, reserve_after_h: float = 0.0,
) -> Policy:  # fmt: skip
    """Dally with fixed timers."""
    return Policy(order=order, rack_timer_s=3600 * rack_timer_h, network_timer_s=3600 * network_timer_h, fit=fit,
                  timer_events=timer_events, aging=aging, reserve_after_s=_or_never(reserve_after_h))  # fmt: skip


@registry.policy("dally-nowait", source=_DALLY)
def dally_nowait(*, order: str = "nw_sens", fit: str = "best") -> Policy:
    """Dally whose jobs accept any offer at once."""
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
    """Serve jobs with little service or little remaining work first; accept a spread offer if it beats waiting."""
    return Policy(order=order, timers="marginal", weight=weight, tail=tail, patience=patience, aging=aging, fit=fit,
                  reserve_after_s=_or_never(reserve_after_h))  # fmt: skip


@registry.policy("fifo", source="First in, first out")
def fifo(*, fit: str = "best") -> Policy:
    """Serve in order of arrival, without preemption; jobs that fit into free GPUs may overtake."""
    return Policy(order="fifo", has_lease=False, fit=fit)


@registry.policy("srtf", source="Shortest remaining time first")
def srtf(*, fit: str = "best") -> Policy:
    """Serve the least remaining work first, as an oracle knows it, with leases."""
    return Policy(order="srtf", fit=fit)


@registry.policy("backfill", source="Lifka, The ANL/IBM SP scheduling system, JSSPP 1995 (EASY)")
def backfill(*, fit: str = "best") -> Policy:
    """Serve in order of arrival; the first job that cannot start gets a reservation, which later jobs may not delay."""
    return Policy(order="fifo", has_lease=False, backfills=True, fit=fit)


@registry.policy("tiresias", source="Gu et al., Tiresias, NSDI 2019, as Dally compares with it")
def tiresias(*, skewed_models: str = _SKEWED) -> Policy:
    """Serve the fewest GPU-seconds first; models with one dominant tensor wait for one machine."""
    return Policy(order="las2d", placement="spread", rack_timer_s=_INF, network_timer_s=_INF,
                  skewed_models=tuple(skewed_models.split("/")))  # fmt: skip


@registry.policy("tiresias-queues", source="Gu et al., Tiresias, NSDI 2019 (discretized 2D-LAS)")
def tiresias_queues(
    *, thresholds: str = "3250/7200/18000", promote: float = 0.0,
    skewed_models: str = _SKEWED,
) -> Policy:  # fmt: skip
    """Serve queues by attained GPU-seconds, first in first out within a queue; placement as tiresias."""
    return Policy(order="queues", placement="spread", rack_timer_s=_INF, network_timer_s=_INF,
                  thresholds_gpu_s=_numbers(thresholds), promote=promote,
                  skewed_models=tuple(skewed_models.split("/")))  # fmt: skip


@registry.policy("tiresias-gittins", source="Gu et al., Tiresias, NSDI 2019 (2D-Gittins)")
def tiresias_gittins(*, sizes: str = "", skewed_models: str = _SKEWED) -> Policy:
    """Serve the highest Gittins index of GPU-seconds first, from a file of past sizes, else of a heavy tail."""
    index = gittins_index(read_sizes(Path(sizes))) if sizes else heavy_tail_index()
    return Policy(order="gittins", placement="spread", rack_timer_s=_INF, network_timer_s=_INF,
                  gittins=index, skewed_models=tuple(skewed_models.split("/")))  # fmt: skip


@registry.policy("gandiva", source="Xiao et al., Gandiva, OSDI 2018")
def gandiva(*, seed: int = 0) -> Policy:
    """Start anywhere, with jobs of equal size if possible; move to one machine when one is free, at no cost."""
    return Policy(order="fifo", placement="affine", has_lease=False, is_free_to_move=True, migrates=True, seed=seed)


@registry.policy("themis", source="Mahajan et al., Themis, NSDI 2020, without the payments of its auction")
def themis(*, fit: str = "best") -> Policy:
    """Serve the job first that is furthest behind its finish time on a fair share of the cluster."""
    return Policy(order="ftf", fit=fit)


@registry.policy("gavel-las", source="Narayanan et al., Gavel, OSDI 2020, for one type of GPU")
def gavel_las(*, round_s: float = 360.0, fit: str = "best") -> Policy:
    """Serve, in rounds, the job that is furthest behind its max-min fair share of the time."""
    return Policy(order="max_min", lease_s=round_s, fit=fit)
