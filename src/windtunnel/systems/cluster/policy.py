"""Scheduling policies: an order, a placement and a lease, or a Python function.

In: settings. Out: a frozen ``Policy`` whose rules the compiled loop follows. Not here: the policies by name
(``policies``), the loop.

A registered policy is one function. Either it takes settings and returns a ``Policy``; or its first parameter is called
``state``: then it is called whenever something may start, with a ``View`` of the same state that compiled policies see,
and yields what it decides: ``Start``, ``Stop`` and ``Wake``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.offers import RULES, Rules
from windtunnel.systems.cluster.state import NEVER

__all__ = ["FITS", "ORDERS", "Decision", "Policy", "Start", "Stop", "Wake", "policy_of", "read_policy"]

ORDERS = ("nw_sens", "las2d", "srtf", "fifo", "queues", "gittins", "mixed", "ends", "ftf", "max_min")
FITS = ("first", "best", "frag")
_PLACEMENTS = ("delayed", "spread", "affine")
_TIMERS = ("fixed", "auto", "marginal")
_FOREVER_S = float("inf")


@dataclass(frozen=True)
class Start:
    """Start a waiting job on GPUs of machines: as many as it asks for."""

    job: int
    gpus: Mapping[int, int]


@dataclass(frozen=True)
class Stop:
    """Preempt a running job now; it waits again, and its GPUs are free after its checkpoint."""

    job: int


@dataclass(frozen=True)
class Wake:
    """Call the policy function again at a time."""

    at_ns: int


Decision = Start | Stop | Wake


@dataclass(frozen=True)
class Policy:
    """The order of jobs, the placements that they accept, and the length of leases.

    Parameters
    ----------
    order : str
        ``nw_sens`` (most hurt by communication first), ``las2d`` (fewest GPU-seconds served), ``srtf``, ``fifo``,
        ``queues`` (discretized las2d), ``gittins``, ``mixed`` (las2d, reduced for jobs slowed by communication),
        ``ftf`` (furthest behind a fair share), ``max_min`` (furthest behind a max-min fair share).
    placement : str
        ``delayed`` (a job takes what spans a rack or the network after its timers), ``spread`` (anything, but skewed
        models wait for one machine), ``affine`` (with jobs of equal size, else at random).
    timers : str
        ``fixed``, ``auto`` (from the waits of the past) or ``marginal`` (by what waiting costs each job).
    rack_timer_s, network_timer_s : float
        Fixed timers: how long a job waits for a machine, for a rack; infinite: until it gets one.
    history_leases : float
        Length of the history of auto timers, in leases.
    fit : str
        Among domains that suffice: ``first``, ``best`` (fewest free) or ``frag`` (least loss of future placements).
    has_lease : bool
        Whether a job returns its GPUs when its lease is over.
    lease_s : float, optional
        Replaces the lease of the cluster.
    is_free_to_move : bool
        Whether checkpoints and restarts cost nothing.
    timer_events : bool
        Whether the expiry of a timer is an event; False: it takes effect with the next event, as published.
    aging : float
        Reduction of the key per lease of waiting, which bounds the wait.
    weight : float
        Of ``mixed``: reduction of the key of a job that communication slowed.
    tail : float
        Of ``ends``: exponent of the job size that divides the key; large values favor long jobs.
    patience : float
        Of marginal timers: factor on predicted waits, as other jobs wait for the same GPUs.
    reserve_after_s : float
        Wait after which machines are drained for a job larger than a machine, one job at a time.
    thresholds_gpu_s : tuple of float
        Of ``queues``.
    promote : float
        Of ``queues``: a job that waited ``promote`` times as long as it ran returns to the first queue; 0: never.
    gittins : two tuples of float
        GPU-seconds, and the index from there on.
    skewed_models : tuple of str
        Begins of names of models that ``spread`` keeps in one machine.
    backfills : bool
        The first job that cannot start gets a reservation, which later ones may not delay (EASY).
    migrates : bool
        A spread job moves when a machine has become free.
    seed : int
    decide : callable, optional
        A Python function that decides instead.
    """

    order: str = "fifo"
    placement: str = "delayed"
    timers: str = "fixed"
    rack_timer_s: float = 0.0
    network_timer_s: float = 0.0
    history_leases: float = 48.0
    fit: str = "best"
    has_lease: bool = True
    lease_s: float | None = None
    is_free_to_move: bool = False
    timer_events: bool = True
    aging: float = 0.0
    weight: float = 0.0
    tail: float = 0.0
    patience: float = 1.0
    reserve_after_s: float = _FOREVER_S
    thresholds_gpu_s: tuple[float, ...] = ()
    promote: float = 0.0
    gittins: tuple[tuple[float, ...], tuple[float, ...]] = ((0.0,), (1.0,))
    skewed_models: tuple[str, ...] = ()
    backfills: bool = False
    migrates: bool = False
    seed: int = 0
    decide: Callable[..., Iterable[Decision]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, known in (("order", ORDERS), ("placement", _PLACEMENTS), ("timers", _TIMERS), ("fit", FITS)):
            if getattr(self, name) not in known:
                raise InputError(f"{name} cannot be {getattr(self, name)!r}", fix=f"known: {', '.join(known)}")
        for name in ("rack_timer_s", "network_timer_s", "aging", "tail", "patience", "reserve_after_s", "promote"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not 0 <= self.weight <= 1 or not 1 <= self.history_leases < _FOREVER_S:
            raise InputError("weight lies between 0 and 1, and history_leases is 1 or more")
        if self.lease_s is not None and not 0 < self.lease_s < _FOREVER_S:
            raise InputError(f"a lease of {self.lease_s} s cannot be", fix="give seconds above 0")

    def with_timers(self, rack_timer_s: float, network_timer_s: float) -> Policy:
        """Return the policy with fixed timers."""
        return replace(self, timers="fixed", rack_timer_s=rack_timer_s, network_timer_s=network_timer_s)

    def lease_ns(self, cluster: Cluster) -> int:
        """Return how long a job keeps its GPUs, which is also the unit of waits."""
        return cluster.lease_ns if self.lease_s is None else round(self.lease_s * 1e9)

    def rules(self, cluster: Cluster) -> np.record:
        """Return the policy as numbers for a cluster."""
        unit = self.lease_ns(cluster)
        rules = Rules(
            order=ORDERS.index(self.order),
            placement=_PLACEMENTS.index(self.placement),
            fit=FITS.index(self.fit),
            tuner=_TIMERS.index(self.timers),
            rack_timer=_whole_ns(self.rack_timer_s),
            network_timer=_whole_ns(self.network_timer_s),
            lease=unit if self.has_lease else int(NEVER),
            unit=unit,
            checkpoint=0 if self.is_free_to_move else cluster.checkpoint_ns_per_gpu,
            restart=0 if self.is_free_to_move else cluster.restart_ns_per_gpu,
            history_leases=float(self.history_leases),
            weight=float(self.weight),
            aging=float(self.aging),
            tail=float(self.tail),
            patience=float(self.patience),
            reserve_after=_whole_ns(self.reserve_after_s),
            promote=float(self.promote),
            has_timers=self.timer_events,
            backfills=self.backfills,
            migrates=self.migrates,
            asks=self.decide is not None,
            seed=self.seed,
        )
        return cast(np.record, np.rec.array([rules], RULES)[0])


def _whole_ns(seconds: float) -> int:
    return int(NEVER) if seconds * 1e9 >= float(NEVER) else round(seconds * 1e9)


def read_policy(text: str) -> Policy:
    """Return a policy by its name and, after a colon, its settings: ``dally-manual:rack_timer_h=2``.

    Raises
    ------
    InputError
        The name or a setting is not known, or a value does not fit.
    """
    from windtunnel.whatifs.request import parse_step

    step = parse_step(text, kind="policy")
    return policy_of(step.name, **step.parameters)


def policy_of(name: str, **parameters: Any) -> Policy:
    """Return a registered policy with its settings.

    Raises
    ------
    InputError
        No policy has the name, or it has no such setting.
    """
    plugin = registry.get("policy", name)
    known = list(plugin.parameters)
    asks = known[:1] == ["state"]
    unknown = [key for key in parameters if key not in known[asks:]]
    if unknown:
        raise InputError(
            f"policy {name} has no setting {unknown[0]!r}", fix=f"known: {', '.join(known[asks:]) or 'none'}"
        )
    if asks:
        return Policy(has_lease=False, decide=lambda state: plugin.function(state, **parameters))
    created = plugin.function(**parameters)
    if not isinstance(created, Policy):
        raise InputError(
            f"policy {name} returned {type(created).__name__}, not a Policy",
            where=plugin.module,
            fix="return windtunnel.systems.cluster.policy.Policy(...), "
            "or name the first parameter `state` and yield decisions",
        )
    return created
