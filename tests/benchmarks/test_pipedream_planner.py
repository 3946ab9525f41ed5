"""PipeDream's planner: published plans, and a profile that can be planned by hand."""

import math

import pytest
from benchmarks.peers.pipedream_planner import Level, plan_stages
from benchmarks.peers.pipedream_profile import read_profile
from benchmarks.placement_data import PLANS, stages_time_s

from tests.shared_data import shared_path
from windtunnel.errors import InfeasibleError, InputError

LINES = """node1 -- Input0 -- forward_compute_time=9.0, backward_compute_time=0.0, activation_size=8.0, \
parameter_size=0.0
node3 -- Linear(2, 2) -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=[4.0; 4.0], \
parameter_size=100.0
node2 -- Conv2d(1, 2, kernel_size=(3, 3)) -- forward_compute_time=2.0, backward_compute_time=4.0, \
activation_size=16.0, parameter_size=10.0, stage_id=1
node4 -- __getitem__(1) -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=4.0, parameter_size=0.0
\tnode1 -- node2
\tnode2 -- node3
\tnode3 -- node4
"""


def write(tmp_path, text=LINES):
    path = tmp_path / "profile.txt"
    path.write_text(text)
    return path


def test_a_profile_is_read_in_any_order_without_inputs(tmp_path):
    profile = read_profile(write(tmp_path))

    assert ("node3", "node2") == profile.names
    assert [0.001, 0.002] == profile.forward_s.tolist()
    assert [8.0, 16.0] == profile.activation_bytes.tolist()
    assert [-1, 1] == profile.stage.tolist()
    assert [(1, 0)] == list(zip(profile.src.tolist(), profile.dst.tolist(), strict=True))
    assert 4 == read_profile(write(tmp_path), keep_inputs=True).num_layers


def test_two_machines_by_hand(tmp_path):
    """Data parallel: (9 ms + 4 x 110 B / 2 / B) / 2; in two stages: the longer one, 6 ms."""
    profile = read_profile(write(tmp_path))
    slow, quick = (plan_stages(profile, [Level(2, bandwidth)]) for bandwidth in (1e3, 1e9))

    assert [("node2",), ("node3",)] == [stage.layers for stage in slow.stages]
    assert math.isclose(0.006, slow.time_s)
    assert math.isclose((0.009 + 4 * 110 / 2 / 1e9) / 2, quick.time_s)
    assert [2] == [stage.replicas for stage in quick.stages]
    assert math.isclose(1.5, slow.speedup)


def test_memory_that_does_not_suffice_is_an_error(tmp_path):
    with pytest.raises(InfeasibleError, match="memory"):
        plan_stages(read_profile(write(tmp_path)), [Level(2, 1e3)], memory_bytes=5.0, is_straight=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node1 -- x\n", "a name, a description and its numbers"),
        ("node1 -- x -- forward_compute_time=1\n", "numbers of node1"),
        (LINES + "\tnode2 node3\n", "an edge names two nodes"),
        (LINES + "\tnode2 -- node9\n", "'node9'"),
        (LINES.replace("=9.0", "=-9.0"), "negative"),
        ("", "no layers"),
    ],
)
def test_a_profile_that_cannot_be_read_says_where(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_profile(write(tmp_path, text))


@pytest.mark.parametrize("levels", [[], [Level(0, 1e9)], [Level(2, 0.0)]])
def test_levels_without_sense_are_refused(tmp_path, levels):
    with pytest.raises(InputError, match="every level"):
        plan_stages(read_profile(write(tmp_path)), levels)


@pytest.mark.parametrize("row", PLANS, ids=lambda row: f"{row[0]}-{len(row[1])}-{row[1][0][0]}")
def test_published_plans(row):
    name, levels, options, stages, time_s, over_one, over_parallel = row
    profile = read_profile(shared_path(f"placement/pipedream_profiles/{name}.txt"))
    topology = [Level(*one) for one in levels]
    plan = plan_stages(profile, topology, **options)

    assert math.isclose(time_s, plan.time_s, abs_tol=5e-10)
    assert math.isclose(time_s, stages_time_s(profile, topology, stages, **options), abs_tol=5e-10)
    assert math.isclose(over_one, plan.speedup, abs_tol=5e-6)
    assert math.isclose(over_parallel, plan.speedup_over_data_parallel, abs_tol=5e-6)
