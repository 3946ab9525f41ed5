"""The contract that a scheduling policy keeps, as tests to inherit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from windtunnel.hardware import Link
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.model import simulate
from windtunnel.systems.cluster.policy import policy_of
from windtunnel.testing import PluginContract

__all__ = ["PolicyContract"]


class PolicyContract(PluginContract):
    """Tests of a scheduling policy of ``cluster`` with 60 jobs that overload two racks of two machines of 4 GPUs."""

    kind = "policy"
    parameters: ClassVar[dict[str, Any]] = {}

    def simulate_jobs(self) -> Any:
        """Simulate jobs whose speed falls with every further machine and rack; return a ``ClusterRun``."""
        wire = Link("wire", 1e9)
        chance = np.random.default_rng(1)
        cluster = Cluster(4, 2, 2, (wire, wire, wire), lease_ns=100 * 10**9)
        jobs = Jobs.of(
            arrival_s=chance.uniform(0, 4000, 60), gpus=chance.choice([1, 1, 2, 4, 7, 12], 60),
            work_s=chance.exponential(300, 60) + 1, model=["vgg", "bert"] * 30,
        )  # fmt: skip
        return simulate(cluster, jobs, _SlowerApart(), policy_of(self.name, **self.parameters))

    def test_every_job_ends_and_no_gpu_is_given_twice(self) -> None:
        """Check that all work is done and held GPUs never exceed those of a machine."""
        run = self.simulate_jobs()
        assert (run.end_ns > 0).all()
        done = np.bincount(run.segments["job"], run.segments["done"], minlength=len(run.jobs))
        assert np.allclose(run.jobs.work_ns, done)
        rows, indices = run.segment_placements
        held = np.zeros(run.cluster.num_machines, np.int64)
        starts, backs, count = run.segments["start"][rows], run.segments["back"][rows], run.placements["gpus"][indices]
        time, sign = np.concatenate([backs, starts]), np.concatenate([-count, count])
        machine = np.concatenate([run.placements["machine"][indices]] * 2)
        for index in np.argsort(time, kind="stable"):  # what comes back at a time comes before what starts then
            held[machine[index]] += sign[index]
            assert 0 <= held[machine[index]] <= run.cluster.gpus_per_machine

    def test_it_decides_the_same_twice(self) -> None:
        """Check that equal states give equal decisions."""
        first, second = self.simulate_jobs(), self.simulate_jobs()
        assert first.segments.tobytes() == second.segments.tobytes()
        assert first.placements.tobytes() == second.placements.tobytes()


class _SlowerApart:
    """Speeds for the contract of policies."""

    def speed(self, model: str, batch: int, shape: Sequence[Sequence[int]]) -> float:  # noqa: ARG002
        return 1.0 / (1.0 + 0.1 * len(model) * (sum(map(len, shape)) - 1) + 0.3 * (len(shape) - 1))
