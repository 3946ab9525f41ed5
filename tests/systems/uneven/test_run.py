"""Training by real processes, beside virtual time."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext

import numpy as np
import pytest

from tests.systems.uneven.small import fleet_of, without_server
from windtunnel import registry
from windtunnel.cli import main
from windtunnel.errors import FlightError
from windtunnel.measure.workers import WorkerError
from windtunnel.systems.uneven import run as run_module
from windtunnel.systems.uneven.flight import receipts_of_comparison
from windtunnel.systems.uneven.goal import Goal
from windtunnel.systems.uneven.jobs import train_job
from windtunnel.systems.uneven.model import train_virtually
from windtunnel.systems.uneven.node import NodeReport
from windtunnel.systems.uneven.run import check_room, train_really
from windtunnel.systems.uneven.search import Candidate, compare

JOB = """
from tests.systems.uneven.small import small_job


def make():
    return small_job()
"""

SLOW = 'step_time = "100 ms"'


def _job(tmp_path) -> str:
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    return f"{tmp_path / 'job.py'}:make"


def _slow(tmp_path, speeds, *, over_server=True):
    fleet = fleet_of(tmp_path, speeds)
    text = (tmp_path / "cluster.toml").read_text(encoding="utf-8").replace('step_time = "10 ms"', SLOW)
    (tmp_path / "cluster.toml").write_text(text, encoding="utf-8")
    from windtunnel.systems.uneven.fleet import read_fleet

    fleet = read_fleet(tmp_path / "cluster.toml")
    return fleet if over_server else without_server(fleet)


@pytest.mark.parametrize("over_server", [True, False])
def test_real_weights_are_those_of_virtual_time(tmp_path, over_server):
    """Two processes that average after each step learn what virtual time says, to rounding, step by step."""
    job, fleet = _job(tmp_path), _slow(tmp_path, [1.0, 0.5], over_server=over_server)
    goal = Goal(2 * 10**9, every_ns=5 * 10**8)
    real = train_really(job, fleet, "bsp", {}, goal)
    virtual = train_virtually(train_job(job), fleet, "bsp", registry.get("strategy", "bsp").function(), goal)

    assert min(len(real.steps), len(virtual.steps)) >= 1
    longer = train_virtually(
        train_job(job), fleet, "bsp", registry.get("strategy", "bsp").function(), Goal(4 * 10**9, every_ns=10**7)
    )
    off = [abs(point.loss - real.points[-1].loss) for point in longer.points]
    assert min(off) < 1e-5  # the machine may be late, so at some moment


def test_a_slow_worker_makes_the_others_wait_really(tmp_path):
    """Of two workers the quick one waits longer; in virtual time it is half of the time."""
    job, fleet = _job(tmp_path), _slow(tmp_path, [1.0, 0.5])
    real = train_really(job, fleet, "bsp", {}, Goal(3 * 10**9, every_ns=10**9))
    virtual = train_virtually(
        train_job(job), fleet, "bsp", registry.get("strategy", "bsp").function(), Goal(3 * 10**9, every_ns=10**9)
    )
    waits, expected = real.wait_shares(), virtual.wait_shares()

    assert expected[0] > expected[1] + 0.25
    assert waits[0] > waits[1]
    assert {(0, 2), (1, 2), (2, 0), (2, 1)} == set(real.bytes_by_pair())
    assert all(np.diff(real.messages[:, 3]) >= 0)


def test_a_host_that_is_too_small_says_what_it_can_do(tmp_path):
    """Before any process is started."""
    fleet = fleet_of(tmp_path, [1.0] * 400)
    with pytest.raises(FlightError, match="this host is too small") as error:
        check_room(train_job("mlp"), fleet)

    assert "ms or more" in error.value.fix


def test_a_worker_that_dies_ends_the_run(tmp_path):
    """Its error is told."""
    code = JOB.replace("return small_job()", "raise RuntimeError('no data here')")
    (tmp_path / "job.py").write_text(
        "import os\n" + code.replace("raise Run", f"if os.getpid() != {os.getpid()}: raise Run")
        + "    return small_job()\n", encoding="utf-8",
    )  # fmt: skip
    with pytest.raises(WorkerError, match="no data here"):
        train_really(f"{tmp_path / 'job.py'}:make", _slow(tmp_path, [1.0]), "bsp", {}, Goal(10**9, every_ns=10**9))


def test_nodes_that_begin_with_other_weights_are_refused(tmp_path):
    """A model whose weights hang on the process would train as several."""
    code = JOB.replace("return small_job()", "torch.manual_seed(os.getpid())\n    return small_job(model=model)")
    model = """
import os
import torch


def model():
    torch.manual_seed(os.getpid())
    return torch.nn.Linear(6, 4)
"""
    (tmp_path / "job.py").write_text(model + code, encoding="utf-8")
    with pytest.raises(FlightError, match=r"w1 begins with other weights than w0"):
        train_really(f"{tmp_path / 'job.py'}:make", _slow(tmp_path, [1.0, 1.0]), "bsp", {}, Goal(10**9, every_ns=10**9))


def test_tune_prints_what_it_tried_and_what_to_run_next(tmp_path, capsys):
    _slow(tmp_path, [1.0, 0.5])
    cluster, job = str(tmp_path / "cluster.toml"), _job(tmp_path)
    asked = [
        "train",
        "plan",
        "values",
        cluster,
        "--job",
        job,
        "--policy",
        "local-sgd",
        "--duration",
        "2s",
        "--period",
        "1s",
    ]

    assert main([*asked, "--values", "2,4,8"]) == 0
    said = capsys.readouterr()
    assert "loss by tau" in said.out
    assert "next: windtunnel train run" in said.err
    assert main([*asked, "--values", "2,4,8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [0, 10**9] == [one["begin_ns"] for one in found["periods"]]
    assert 2 == main([*asked, "--values", "2,four"])
    assert "no list of numbers" in capsys.readouterr().err


def test_compare_ranks_by_time_and_keeps_receipts(tmp_path):
    """The one that reaches the first one's loss soonest is in front; both are flown."""
    job, fleet = _job(tmp_path), _slow(tmp_path, [1.0, 0.25])
    goal = Goal(2 * 10**9, every_ns=2 * 10**8)
    candidates = [Candidate("bsp"), Candidate("asp"), Candidate("local-sgd", {"tau": 4})]
    found = compare(job, fleet, candidates, goal, num_flown=1, num_rounds=2)
    times = [one.predicted_ns for one in found.outcomes]

    assert times == sorted(times)
    assert len(found.of_baseline.flown) == len(found.outcomes[0].flown) == 2
    assert sum(bool(one.flown) for one in found.outcomes) <= 2
    receipts = receipts_of_comparison(found)
    best = next(one for one in receipts if one.parameters["strategy"] == str(found.outcomes[0].candidate))
    both_ns = found.outcomes[0].flown_ns
    assert (2, min(both_ns), max(both_ns)) == (best.num_rounds, best.changed.low, best.changed.high)
    assert not any("once" in note for note in best.notes)
    assert all(one.predicted >= 1 for one in receipts if one.parameters["strategy"] == str(found.outcomes[0].candidate))


def test_the_verbs_say_it_in_json_and_on_a_page(tmp_path, capsys):
    """Virtual time only, so quickly."""
    _slow(tmp_path, [1.0, 0.5])
    cluster, page = str(tmp_path / "cluster.toml"), tmp_path / "page.html"
    arguments = ["--policies", "bsp adsp:period_s=0.5,commits=2", "--job", _job(tmp_path), "--duration", "2s"]
    assert main(["train", "plan", cluster, *arguments, "--verify", "0", "--html", str(page), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    assert {one["strategy"] for one in document["outcomes"]} == {"bsp", "adsp:period_s=0.5,commits=2"}
    assert "Time to a loss" in page.read_text(encoding="utf-8")
    assert main(["train", "run", cluster, "--job", _job(tmp_path), "--virtual", "--duration", "1s"]) == 0
    assert "waits" in capsys.readouterr().out
    assert main(["train", "plan", cluster, "--policies", "magic"]) == 2
    assert "magic" in capsys.readouterr().err


@pytest.mark.parametrize(("num_late", "is_refused"), [(0, False), (1, False), (3, False), (4, True)])
def test_a_host_whose_steps_are_late_is_refused(punctual, tmp_path, num_late, is_refused):
    """Two of a hundred steps, and one more, may be late."""
    fleet = _slow(tmp_path, [1.0, 0.5])
    report = NodeReport(steps=[(0, 0, 1, 0)] * 100, num_late=num_late, computed_ns=[1] * 100)
    with pytest.raises(FlightError, match="4 of 100 steps of w0 were late") if is_refused else nullcontext():
        run_module._check_late(fleet, [report])
