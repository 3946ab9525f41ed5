"""What a plan says about itself: devices, moves, bandwidths; and a graph placed and replayed."""

import math

import numpy as np
import pytest

pytest.importorskip("rustworkx", reason="needs the extra plan")

from tests.planning.problems import problem
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.planning.explain import device_rows, moves
from windtunnel.planning.fleet import fleet_of
from windtunnel.planning.from_graph import layers_of, placed
from windtunnel.planning.minmax import DeviceType
from windtunnel.planning.placing import place
from windtunnel.planning.robust import robust_plan
from windtunnel.planning.stages import pipelined
from windtunnel.simulate import replay


def chain(num=6, **changes):
    given = {"accelerators": 3} | changes
    times = [(node + 1.0, 50.0) for node in range(num)]
    return problem(times, [(node, node + 1) for node in range(num - 1)], [0.5] * num, **given)


def test_devices_say_what_binds_them():
    plan = place(chain(size=[1.0] * 6, memory=3.0))
    rows = device_rows(plan)

    assert [3, 2, 1] == sorted((row.num_nodes for row in rows), reverse=True)
    assert "memory" == max(rows, key=lambda row: row.memory_bytes).bound_by
    assert math.isclose(plan.value_ns, max(row.load_ns for row in rows))
    assert all(math.isclose(row.load_ns, row.compute_ns + row.sent_ns + row.received_ns) for row in rows)


def test_moves_are_priced_by_really_moving_and_none_helps_an_optimum():
    one = chain()
    plan = place(one)
    found = moves(plan)

    assert found
    assert all(move.change_ns >= -1e-9 for move in found if move.is_allowed)
    device = plan.device.copy()
    first = found[0]
    device[one.names.index(first.nodes[0])] = first.target
    assert math.isclose(first.value_ns, one.loads(device, plan.kind).max_load_ns())


def test_a_slow_link_keeps_work_together_and_the_robust_plan_knows():
    one = chain(4, accelerators=2)
    found = robust_plan(one, 0.02, 10.0)

    assert len(found.plans) > 1
    assert (found.best_ns[:-1] >= found.best_ns[1:] - 1e-9).all()  # more bandwidth never hurts
    assert (found.value_PB >= found.best_ns - 1e-9).all()
    assert found.regrets[found.chosen] <= found.regrets[found.stated] + 1e-12
    low, high = found.range_of(found.stated)
    assert low <= 1 <= high
    with pytest.raises(InputError, match="does not hold"):
        robust_plan(one, 2.0, 4.0)


@pytest.mark.parametrize("is_training", [False, True])
def test_a_full_pipeline_takes_the_busiest_device_per_sample(is_training):
    backward = {}
    if is_training:
        backward = {"backward": range(6, 12), "color": [*range(6)] * 2}
    times = [(100.0 * (node % 6 + 1), 5000.0) for node in range(12 if is_training else 6)]
    edges = [(node, node + 1) for node in range(5)]
    if is_training:
        edges += [(11 - node, 10 - node) for node in range(5)] + [(node, node + 6) for node in range(6)]
    one = problem(times, edges, [50.0] * len(times), accelerators=3, **backward)
    plan = place(one)
    few, many = (replay(pipelined(plan, number)).makespan_ns for number in (20, 60))

    assert math.isclose(plan.value_ns, (many - few) / 40, rel_tol=1e-3)
    with pytest.raises(InputError, match="0 samples"):
        pipelined(plan, 0)


def test_devices_that_wait_for_each_other_are_no_pipeline():
    one = chain(4, accelerators=2)
    crossed = place(one).__class__(
        one, np.array([0, 1, 0, 1]), np.array([0, 0]), np.ones(2, int), 0.0, 0.0, "by hand", 0.0
    )
    with pytest.raises(NotApplicableError, match="wait for each other"):
        pipelined(crossed, 3)


# --- graphs ---------------------------------------------------------------------------------------------------


def step() -> Graph:
    """Two layers forward and backward on one thread, an update at the end; 1 MB flows."""
    builder = GraphBuilder()
    cpu = builder.resource("cpu", ResourceKind.HOST_THREAD)

    def task(layer, phase, duration_ns, **columns):
        return builder.task(layer or "update", kind=Kind.COMPUTE, layer=layer, phase=phase, resource=cpu, iteration=0,
                            duration_ns=duration_ns, param_bytes=columns.get("param_bytes", 0))  # fmt: skip

    a = task("a", Phase.FORWARD, 3_000_000, param_bytes=1000)
    b = task("b", Phase.FORWARD, 4_000_000, param_bytes=3000)
    back_b = task("b", Phase.BACKWARD, 8_000_000)
    back_a = task("a", Phase.BACKWARD, 6_000_000)
    update = task("", Phase.UPDATE, 4_000_000)
    for src, dst in ((a, b), (b, back_b), (back_b, back_a), (a, back_a)):
        builder.edge(src, dst, kind=EdgeKind.DATA, size_bytes=1_000_000)
    builder.edge(back_a, update, kind=EdgeKind.DATA, size_bytes=1000)
    return builder.build()


def test_a_graph_becomes_layers_and_is_placed_and_replayed():
    graph = step()
    types, _ = fleet_of("2xhere")
    layers = layers_of([graph], types, 1e9)
    one = layers.problem

    assert ("a", "b", "b (backward)", "a (backward)") == one.names
    assert [3e6, 4e6, 8e6 + 3e6, 6e6 + 1e6] == one.time_ns[:, 0].tolist()  # the update by parameters
    assert [1e6, 1e6, 1e6, 0.0] == one.cost_ns.tolist()
    assert [1e6 + 4000, 1e6 + 12_000, 0.0, 0.0] == one.size_bytes.tolist()
    plan = place(one)
    # a: 3 + 7 and out 1 and in 1; b: 4 + 11 and in 1 and out 1
    assert math.isclose(17e6, plan.value_ns)
    after = placed(layers, plan, [graph])
    assert {"here 0", "here 1"} <= set(after.resources["name"].to_numpy())
    sent = after.select(kind=Kind.COMM)
    assert 4 == int(sent.sum())
    # one sample: 3, out 1, in 1, 4, 8, out 1, in 1, 6; the update waits
    assert 25_000_000 + 4_000_000 == replay(after).makespan_ns


def test_graphs_and_types_must_fit_together():
    types = (DeviceType("x", 1), DeviceType("y", 1))
    with pytest.raises(InputError, match="1 graphs of"):
        layers_of([step()], types, 1e9)
    with pytest.raises(InputError, match="bandwidth of 0"):
        layers_of([step()], types[:1], 0.0)
    with pytest.raises(InputError, match="no iteration 3"):
        layers_of([step()], types[:1], 1e9, iteration=3)


@pytest.mark.parametrize(("text", "message"), [("", "no devices are named"), ("2xnothing", "nothing")])
def test_fleets_that_cannot_be_read(text, message):
    with pytest.raises(InputError, match=message):
        fleet_of(text)
