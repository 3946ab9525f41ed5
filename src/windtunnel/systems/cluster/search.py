"""Search over policies and timers of a cluster.

In: a cluster, jobs, speeds. Out: policies in the order of their mean JCT; the best pair of fixed timers. Not here: one
run (``model``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.search.speeds import Speeds
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.metrics import Summary, summarize
from windtunnel.systems.cluster.model import ClusterRun, simulate
from windtunnel.systems.cluster.policy import Policy

__all__ = ["Outcome", "Tuned", "compare", "tune"]

_LEASES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


@dataclass(frozen=True, eq=False)
class Outcome:
    """A policy and its result."""

    name: str
    run: ClusterRun
    summary: Summary


@dataclass(frozen=True, eq=False)
class Tuned:
    """The results of a grid of timers.

    Attributes
    ----------
    pairs : mapping of (rack timer in s, network timer in s) to Summary
    best : pair with the smallest mean JCT
    auto : Summary
        Of the published tuner, for comparison.
    """

    pairs: Mapping[tuple[float, float], Summary]
    best: tuple[float, float]
    auto: Summary


def compare(
    cluster: Cluster,
    jobs: Jobs,
    speeds: Speeds,
    policies: Mapping[str, Policy],
    *,
    quantum: int = 0,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Run all policies on the same jobs; the smallest mean JCT comes first.

    Raises
    ------
    InputError
        There is no policy; otherwise as :func:`windtunnel.systems.cluster.model.simulate`.
    """
    if not policies:
        raise InputError("there is no policy to compare", fix="name some with --policies 'dally tiresias'")
    result = []
    for index, (name, policy) in enumerate(policies.items()):
        if progress is not None:
            progress(name, index, len(policies))
        run = simulate(cluster, jobs, speeds, policy, quantum=quantum)
        result.append(Outcome(name, run, summarize(run)))
    return sorted(result, key=lambda outcome: outcome.summary.mean_jct_h)


def tune(
    cluster: Cluster,
    jobs: Jobs,
    speeds: Speeds,
    policy: Policy,
    *,
    leases: Sequence[float] = _LEASES,
    progress: Progress | None = None,
) -> Tuned:
    """Simulate every pair of fixed timers; a network timer is at least the rack timer.

    Parameters
    ----------
    cluster, jobs, speeds
    policy : Policy
        Whose timers are set; its order and fit are kept.
    leases : sequence of float
        Timers to try, in leases.
    progress : callable, optional
    """
    lease_s = policy.lease_ns(cluster) / 1e9
    tried = sorted({(rack, max(rack, network)) for rack in leases for network in leases})
    pairs: dict[tuple[float, float], Summary] = {}
    for index, (rack, network) in enumerate(tried):
        if progress is not None:
            progress("pairs of timers", index, len(tried))
        timers = (rack * lease_s, network * lease_s)
        pairs[timers] = summarize(simulate(cluster, jobs, speeds, policy.with_timers(*timers)))
    auto = Policy(order=policy.order, timers="auto", fit=policy.fit, aging=policy.aging)
    best = min(pairs, key=lambda pair: pairs[pair].mean_jct_h)
    return Tuned(pairs, best, summarize(simulate(cluster, jobs, speeds, auto)))
