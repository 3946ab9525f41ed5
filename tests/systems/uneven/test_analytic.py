"""A strategy as a graph has the steps of virtual time."""

from __future__ import annotations

import numpy as np
import pytest

from tests.systems.uneven.small import fleet_of, small_job, trained, without_server
from windtunnel import registry
from windtunnel.cli import main
from windtunnel.errors import NotApplicableError
from windtunnel.graph import load
from windtunnel.simulate import replay
from windtunnel.systems.uneven.analytic import strategy_graph

CASES = [
    ("bsp", {}, True),
    ("bsp", {}, False),
    ("local-sgd", {"tau": 3}, True),
    ("local-sgd", {"tau": 3}, False),
    ("ssp", {"staleness": 2}, True),
    ("asp", {}, True),
    ("adsp", {"period_s": 0.2, "commits": 2}, True),
]


@pytest.mark.parametrize("rate", ["1 MB/s", "50 kB/s"])
@pytest.mark.parametrize(("strategy", "numbers", "over_server"), CASES)
def test_steps_begin_when_those_of_virtual_time_do(tmp_path, strategy, numbers, over_server, rate):
    """To the nanosecond, for each worker, on wires that are shared and slow or quick."""
    if strategy == "adsp" and rate != "1 MB/s":
        pytest.skip("a timer follows travel times as they were measured, the graph those of free wires")
    fleet = fleet_of(tmp_path, [1.0, 0.5, 0.25, 0.3], rate=rate)
    fleet = fleet if over_server else without_server(fleet)
    run = trained(small_job(), fleet, strategy, duration_s=2, **numbers)
    num = int(np.bincount(run.steps[:, 0]).min())
    policy = registry.get("strategy", strategy).function(**numbers)
    graph = strategy_graph(fleet, strategy, policy, num, 4 * len(run.weights))
    starts = replay(graph).start_ns[: 4 * num].reshape(4, num)

    assert num > 5
    for worker in range(4):
        mine = run.steps[run.steps[:, 0] == worker][:num, 1]
        assert mine.tolist() == starts[worker].tolist()


def test_what_hangs_on_gradients_or_changes_is_refused(tmp_path):
    """With what to do instead."""
    fleet = fleet_of(tmp_path, [1.0, 0.5])
    with pytest.raises(NotApplicableError, match="depends on gradients or on a search"):
        strategy_graph(fleet, "adsp", registry.get("strategy", "adsp").function(), 10, 100)
    (tmp_path / "speed.csv").write_text("t_s,speed\n0,1\n5,0.5\n", encoding="utf-8")
    text = (tmp_path / "cluster.toml").read_text(encoding="utf-8").replace("speed = 0.5", 'speed = "speed.csv"')
    (tmp_path / "cluster.toml").write_text(text, encoding="utf-8")
    from windtunnel.systems.uneven.fleet import read_fleet

    with pytest.raises(NotApplicableError, match="changes while the job runs"):
        strategy_graph(read_fleet(tmp_path / "cluster.toml"), "bsp", registry.get("strategy", "bsp").function(), 9, 9)


def test_the_verb_prices_and_keeps_the_graph(tmp_path, capsys):
    """The graph opens like any other."""
    fleet_of(tmp_path, [1.0, 0.5])
    kept = tmp_path / "bsp.wt"
    assert main(["train", "predict", str(tmp_path / "cluster.toml"), "--weights", "1MB", "-o", str(kept)]) == 0
    assert "2 workers" in capsys.readouterr().out
    graph = load(kept)

    assert graph.num_tasks == 2 * 100 + 2 * 2 * 100 + 100
