"""Small clusters and workloads by chance, and speeds that depend on the shape alone."""

import numpy as np

from windtunnel.hardware import Link
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.policies.published import gavel_las, tiresias, tiresias_queues
from windtunnel.systems.cluster.policy import Policy

WIRE = Link("wire", 1e9)
INF = float("inf")


class ShapeSpeeds:
    """Worse with every machine and rack; another constant per model."""

    def speed(self, model, batch, shape):
        machines = sum(map(len, shape))
        return 1.0 / (1.0 + (len(model) + 1) * 0.07 * (machines - 1) + 0.3 * (len(shape) - 1))


def cluster(gpus=4, machines=2, racks=1, lease_s=3600.0, checkpoint_s=0.0, restart_s=0.0):
    return Cluster(
        gpus, machines, racks, (WIRE, WIRE, WIRE), lease_ns=round(lease_s * 1e9),
        checkpoint_ns_per_gpu=round(checkpoint_s * 1e9), restart_ns_per_gpu=round(restart_s * 1e9),
    )  # fmt: skip


def world(seed, num_jobs=25):
    """A cluster and jobs that crowd it."""
    chance = np.random.default_rng(seed)
    gpus, machines, racks = (int(chance.integers(low, high)) for low, high in ((1, 5), (1, 4), (1, 4)))
    total = gpus * machines * racks
    made = cluster(gpus, machines, racks, 100.0, float(chance.choice([0.0, 1.0])), float(chance.choice([0.0, 2.0])))
    demand = np.minimum(chance.choice([1, 1, 1, 2, 3, 4, 8, 16], num_jobs), total)
    work = chance.exponential(300.0, num_jobs) + 1.0
    arrival = np.round(np.sort(chance.uniform(0, work @ demand / total, num_jobs)), 0)
    model = chance.choice(["a", "vgg", "bert-x"], num_jobs)
    return made, Jobs.of(arrival_s=arrival, gpus=demand, work_s=work, model=model, iteration_s=work / 200)


POLICIES = {
    "nowait": Policy(order="nw_sens"),
    "consolidated": Policy(order="nw_sens", rack_timer_s=INF, network_timer_s=INF, fit="frag"),
    "timers": Policy(order="nw_sens", rack_timer_s=150, network_timer_s=333, aging=0.01),
    "late timers": Policy(order="las2d", rack_timer_s=150, network_timer_s=333, timer_events=False, fit="first"),
    "auto": Policy(order="nw_sens", timers="auto", history_leases=9),
    "auto las": Policy(order="las2d", timers="auto", history_leases=20, timer_events=False),
    "fifo": Policy(order="fifo", has_lease=False),
    "srtf": Policy(order="srtf"),
    "backfill": Policy(order="fifo", has_lease=False, backfills=True),
    "tiresias": tiresias(),
    "queues": tiresias_queues(thresholds="100/400", promote=2.0),
    "gittins": Policy(order="gittins", gittins=((0.0, 100.0, 500.0), (0.5, 0.9, 0.1))),
    "gandiva": Policy(order="fifo", placement="affine", has_lease=False, is_free_to_move=True, migrates=True, seed=3),
    "themis": Policy(order="ftf"),
    "gavel-las": gavel_las(round_s=60.0),
    "marginal": Policy(order="mixed", weight=0.4, timers="marginal", patience=1.5, reserve_after_s=250.0),
    "ends": Policy(order="ends", weight=0.4, tail=0.3, timers="marginal", patience=1.5),
    "reservation": Policy(order="nw_sens", rack_timer_s=INF, network_timer_s=INF, reserve_after_s=200.0, aging=0.1),
}
