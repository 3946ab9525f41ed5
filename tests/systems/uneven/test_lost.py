"""Workers that are lost, in virtual time and really killed."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.systems.uneven.small import fleet_of, small_job, trained, without_server
from tests.systems.uneven.test_run import _job
from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.measure.spaces import can_shape
from windtunnel.measure.workers import WorkerError
from windtunnel.systems.uneven.fleet import read_fleet
from windtunnel.systems.uneven.goal import Goal
from windtunnel.systems.uneven.job import Samples
from windtunnel.systems.uneven.jobs import train_job
from windtunnel.systems.uneven.model import train_virtually
from windtunnel.systems.uneven.partitions import split
from windtunnel.systems.uneven.run import train_really

needs_namespaces = pytest.mark.skipif(not can_shape(), reason="this process may make no network namespaces")


def _losing(fleet, lost):
    workers = tuple(dataclasses.replace(one, lost_ns=lost.get(rank)) for rank, one in enumerate(fleet.workers))
    return dataclasses.replace(fleet, workers=workers)


def test_sums_over_a_server_are_means_of_those_that_are_left(tmp_path):
    """From its first step on BSP is SGD on the mean gradient of two workers, where the third never ends one."""
    job = small_job()
    run = trained(job, _losing(fleet_of(tmp_path, [1.0, 0.5, 0.25]), {2: 1}), "bsp")

    samples = [
        Samples(part, 0, rank) for rank, part in enumerate(split(job.sample_labels(), 3, run_partition(tmp_path)))
    ]
    torch.manual_seed(0)
    module = job.model()
    optimizer = job.optimizer(list(module.parameters()))
    off = []
    for _ in range(int((run.steps[:, 0] == 1).sum())):
        optimizer.zero_grad()
        for one in samples[:2]:
            chosen = one.draw(job.batch_size)
            (job.loss(module(job.inputs[chosen]), job.targets[chosen]) / 2).backward()
        optimizer.step()
        expected = torch.cat([one.detach().reshape(-1) for one in module.parameters()]).numpy()
        off.append(float(np.abs(expected - run.weights).max()))

    assert len(off) > 10
    assert min(off[-2:]) < 1e-6


def run_partition(folder):
    return read_fleet(folder / "cluster.toml").partition


@pytest.mark.parametrize("lost_ns", [1, 10_000_000, 10_700_000])
@pytest.mark.parametrize("strategy", sorted(registry.all("strategy")))
def test_whenever_a_worker_is_lost_the_others_train_on(tmp_path, strategy, lost_ns):
    """In the middle of a step, a message, a sum or a timer: the last steps come at the end of the run."""
    numbers = {"local": 4} if strategy == "fedavg" else {}
    policy = registry.get("strategy", strategy).function(**numbers)
    if policy.goes_on == "never":
        pytest.skip(f"{strategy} ends where a worker is lost")
    fleet = _losing(fleet_of(tmp_path, [1.0, 0.9, 0.5, 0.3]), {1: lost_ns, 3: 2 * lost_ns})
    run = trained(small_job(), fleet, strategy, **numbers)

    assert [int((run.steps[run.steps[:, 0] == rank, 2]).max()) > 900_000_000 for rank in (0, 2)] == [True, True]
    assert all(end <= {1: lost_ns, 3: 2 * lost_ns}[rank] for rank, _, end, _ in run.steps.tolist() if rank in (1, 3))
    assert np.isfinite(run.weights).all()


def test_the_last_worker_trains_alone(tmp_path):
    """Peers that are all gone keep nobody waiting."""
    for strategy in ("all-to-all", "gaia", "hop", "dlion"):
        fleet = without_server(fleet_of(tmp_path, [1.0, 0.9, 0.5]))
        run = trained(small_job(), _losing(fleet, {1: 200_000_000, 2: 300_000_000}), strategy)
        last = run.steps[run.steps[:, 1] > 300_000_000]
        assert len(last) >= 65, strategy
        assert set(last[:, 0].tolist()) == {0}


def test_a_ring_is_refused_with_the_way_out(tmp_path):
    """Who sums around a ring is told of the server."""
    fleet = without_server(_losing(fleet_of(tmp_path, [1.0, 1.0]), {1: 10**9}))
    with pytest.raises(
        InputError, match=r"bsp cannot go on without w1, which is lost at 1.00 s: its sums go around a ring"
    ):
        trained(small_job(), fleet, "bsp")


def test_cluster_files_name_when_a_worker_is_lost(tmp_path):
    """One must stay."""
    fleet_of(tmp_path, [1.0, 0.5])
    text = (tmp_path / "cluster.toml").read_text(encoding="utf-8")
    (tmp_path / "one.toml").write_text(text.replace("speed = 0.5", 'speed = 0.5\nlost_at = "3 s"'), encoding="utf-8")
    assert [one.lost_ns for one in read_fleet(tmp_path / "one.toml").workers] == [None, 3 * 10**9]
    (tmp_path / "all.toml").write_text(text.replace("speed", 'lost_at = "3 s"\nspeed'), encoding="utf-8")
    with pytest.raises(InputError, match="all workers are lost"):
        read_fleet(tmp_path / "all.toml")


@pytest.mark.parametrize(
    ("strategy", "is_in_kernel"),
    [
        ("asp", False),
        pytest.param("hop", False, marks=pytest.mark.slow),
        pytest.param("asp", True, marks=[needs_namespaces, pytest.mark.slow]),
    ],
)
def test_a_killed_process_is_lost_as_in_virtual_time(tmp_path, strategy, is_in_kernel):
    """One of three processes is killed at its time; the others train on as in virtual time, how late they may be."""
    fleet_of(tmp_path, [1.0, 0.5, 0.5])
    text = (tmp_path / "cluster.toml").read_text(encoding="utf-8").replace('"10 ms"', '"100 ms"')
    (tmp_path / "cluster.toml").write_text(text, encoding="utf-8")
    fleet = _losing(read_fleet(tmp_path / "cluster.toml"), {1: 1_550_000_000})
    goal = Goal(3 * 10**9, every_ns=10**9)
    job = _job(tmp_path)
    real = train_really(job, fleet, strategy, {}, goal, is_in_kernel=is_in_kernel)
    virtual = train_virtually(train_job(job), fleet, strategy, registry.get("strategy", strategy).function(), goal)

    (lost,) = real.lost_workers
    ends = [real.steps[real.steps[:, 0] == rank, 2] for rank in range(3)]
    assert [rank for rank, _ in real.lost_workers] == [rank for rank, _ in virtual.lost_workers] == [1]
    assert lost[1] >= 1_550_000_000
    assert len(real.points) == len(virtual.points)
    assert (ends[1] <= lost[1]).all()
    assert min(ends[0].max(), ends[2].max()) > ends[1].max(initial=0)


def _kill_soon(rank: int, after_s: float) -> None:
    """One of this process's own workers, from outside."""
    own = f"PPid:\t{os.getpid()}\n"
    pids = sorted(
        int(one.name)
        for one in Path("/proc").iterdir()
        if one.name.isdecimal()
        and own in _read(one / "status")
        and "windtunnel.measure.worker" in _read(one / "cmdline")
    )
    threading.Timer(after_s, os.kill, [pids[rank], signal.SIGKILL]).start()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended meanwhile
        return ""


@pytest.mark.parametrize("strategy", ["asp", "bsp"])
def test_a_process_that_somebody_kills_is_lost_or_ends_the_run_with_its_name(tmp_path, strategy):
    """It was not announced; the kill comes while they train, or before the first step on a busy host."""
    fleet_of(tmp_path, [1.0, 0.5, 0.5])
    text = (tmp_path / "cluster.toml").read_text(encoding="utf-8").replace('"10 ms"', '"100 ms"')
    (tmp_path / "cluster.toml").write_text(text, encoding="utf-8")
    fleet = read_fleet(tmp_path / "cluster.toml")
    fleet = fleet if strategy == "asp" else without_server(fleet)
    goal = Goal(3 * 10**9, every_ns=10**9)

    def train():
        return train_really(_job(tmp_path), fleet, strategy, {}, goal, heard=lambda _: _kill_soon(1, 2.0))

    if strategy == "bsp":
        with pytest.raises(WorkerError, match="rank 1 was killed by SIGKILL"):
            train()
        return
    run = train()
    (lost,) = run.lost_workers
    assert 1 == lost[0]
    assert (run.steps[run.steps[:, 0] == 1, 2] <= lost[1]).all()
    ends = [run.steps[run.steps[:, 0] == rank, 2].max(initial=0) for rank in range(3)]
    assert min(ends[0], ends[2]) > ends[1]
