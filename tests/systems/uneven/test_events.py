"""A run as a graph: replayed, it is the run; with another duration, what hung on it moves."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.cli.command import windtunnel
from tests.systems.uneven.small import fleet_of, small_job, trained, without_server
from windtunnel import registry
from windtunnel.graph import load
from windtunnel.simulate import replay
from windtunnel.systems.uneven.events import run_graph


@pytest.mark.parametrize("strategy", sorted(registry.all("strategy")))
def test_the_replay_of_a_run_starts_everything_when_it_started(tmp_path, strategy):
    fleet = fleet_of(tmp_path, [1.0, 0.5, 0.3], rate="200 KB/s")
    run = trained(small_job(), fleet, strategy, duration_s=0.5)
    graph = run_graph(run, fleet).validate()
    timeline = replay(graph)

    steps = run.steps[np.lexsort((run.steps[:, 1], run.steps[:, 0]))]
    assert [*steps[:, 1].tolist(), *run.messages[:, 2].tolist()] == timeline.start_ns.tolist()
    assert [*steps[:, 2].tolist(), *run.messages[:, 3].tolist()] == timeline.finish_ns.tolist()


def test_a_longer_step_makes_all_wait_who_waited_for_it(tmp_path):
    """Under BSP the slowest worker's steps twice as long make everybody's next ones begin so much later."""
    fleet = without_server(fleet_of(tmp_path, [1.0, 0.5], rate="1 GB/s"))
    graph = run_graph(trained(small_job(), fleet, "bsp", duration_s=0.3), fleet)
    assert (graph.tasks["earliest_ns"][: graph.num_tasks] == 0).mean() > 0.9
    slow = (graph.tasks["rank"] == 1) & (graph.tasks["message_bytes"] == 0)
    duration_ns = np.where(slow, 2, 1) * graph.tasks["duration_ns"]
    changed = replay(graph.set_columns({"duration_ns": duration_ns}))

    added_ns = int((duration_ns - graph.tasks["duration_ns"]).sum())
    assert changed.makespan_ns == replay(graph).makespan_ns + added_ns


def test_the_command_keeps_the_graph(tmp_path):
    fleet_of(tmp_path, [1.0, 0.5])
    path = tmp_path / "run.wt"
    found = windtunnel("train", "run", str(tmp_path / "cluster.toml"), "--job", "mlp:hidden=8", "--virtual",
                       "--duration", "1s", "--graph", str(path), "--json")  # fmt: skip
    assert 0 == found.code, found.stderr
    assert load(path).num_tasks >= sum(json.loads(found.stdout)["num_steps"])
