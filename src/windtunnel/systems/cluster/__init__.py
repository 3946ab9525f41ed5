"""Clusters of many jobs (row 5): where each is put, who waits, what that costs.

In: a cluster, jobs, how fast each model is on each placement, a policy. Out: what happens to every job. Policies of
scheduling register here, one function each. May not enter: how jobs are run.
"""

from windtunnel import registry
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.layout import Cluster, read_cluster
from windtunnel.systems.cluster.model import ClusterRun, simulate
from windtunnel.systems.cluster.policy import Policy, Start, Stop, Wake, policy_of, read_policy

__all__ = [
    "Cluster",
    "ClusterRun",
    "Jobs",
    "Policy",
    "Start",
    "Stop",
    "Wake",
    "policy_of",
    "read_cluster",
    "read_policy",
    "simulate",
]

registry.discover(__name__)
