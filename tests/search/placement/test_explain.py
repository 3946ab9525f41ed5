"""What a plan says about itself: devices, moves, bandwidths; and a graph placed and replayed."""

import itertools
import math

import numpy as np
import pytest

pytest.importorskip("rustworkx", reason="needs the extra plan")

from tests.search.problems import chain, problem
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.search.placement.baselines import random_cut
from windtunnel.search.placement.explain import device_rows, moves
from windtunnel.search.placement.fleet import fleet_of, links_of
from windtunnel.search.placement.from_graph import apply_plan, layers_of
from windtunnel.search.placement.search import place, search_locally
from windtunnel.search.work import DeviceType
from windtunnel.simulate import replay
from windtunnel.systems.pipelines.model import build_pipeline_graph, build_rank_graph, plan_schedule


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


def test_a_plan_settles_where_no_single_move_helps():
    one = chain(8, accelerators=2)
    best = place(one)
    assert search_locally(best, lambda plan: plan.loads.max_load_ns()) is best

    def price_ns(plan):
        return float((plan.device == plan.device[-1]).sum())  # of no interest to the objective

    found = search_locally(random_cut(one, 0), price_ns)
    assert 1.0 == price_ns(found)
    assert found.solver.endswith(", improved")
    assert len(found.kind) == 2  # no stage is emptied
    assert math.isclose(found.value_ns, found.loads.max_load_ns())


@pytest.mark.parametrize("seed", range(5))
def test_moves_to_settle_never_make_it_worse_and_keep_every_limit(seed):
    one = chain(9, accelerators=3, memory=5.0, size=[1.0] * 9)
    start = random_cut(one, seed)
    found = search_locally(start, lambda plan: plan.loads.max_load_ns())
    assert found.value_ns <= start.value_ns
    assert found.loads.is_allowed or found is start
    assert all(move.change_ns >= 0 for move in moves(found) if move.is_allowed)


def test_plans_also_settle_from_other_starts():
    """A price with two valleys: the plan's own, and a deeper one that single moves do not reach."""
    one = chain(9, accelerators=2)
    price_of = dict(enumerate((9.0, 1.0, 2.0, 5.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0)))

    def price_ns(plan):
        return price_of[int((plan.device == plan.device[0]).sum())]

    cuts = {int((cut.device == cut.device[0]).sum()): cut for cut in (random_cut(one, seed) for seed in range(60))}
    found = search_locally(cuts[5], price_ns)
    deeper = search_locally(cuts[5], price_ns, [cuts[7], cuts[3], cuts[2]])

    assert 3.0 == price_ns(found)
    assert 1.0 == price_ns(deeper)
    assert f"{cuts[5].solver}, improved" == deeper.solver


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
    few, many = (replay(build_pipeline_graph(plan, number)).makespan_ns for number in (20, 60))

    assert math.isclose(plan.value_ns, (many - few) / 40, rel_tol=1e-3)
    with pytest.raises(InputError, match="0 samples"):
        build_pipeline_graph(plan, 0)


def test_devices_that_wait_for_each_other_are_no_pipeline():
    one = chain(4, accelerators=2)
    crossed = place(one).__class__(
        one, np.array([0, 1, 0, 1]), np.array([0, 0]), np.ones(2, int), 0.0, 0.0, "by hand", 0.0
    )
    with pytest.raises(NotApplicableError, match="wait for each other"):
        build_pipeline_graph(crossed, 3)


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
    assert [1e6, 0.0, 1e6, 0.0] == one.cost_ns.tolist()  # b's goes to its own backward only
    assert [1e6 + 4000, 1e6 + 12_000, 0.0, 0.0] == one.size_bytes.tolist()
    plan = place(one)
    # a: 3 + 7 and out 1 and in 1; b: 4 + 11 and in 1 and out 1
    assert math.isclose(17e6, plan.value_ns)
    after = apply_plan(layers, plan, [graph])
    assert {"here 0", "here 1"} <= set(after.resources["name"].to_numpy())
    sent = after.select(kind=Kind.COMM)
    assert 4 == int(sent.sum())
    # one sample: 3, out 1, in 1, 4, 8, out 1, in 1, 6; the update waits
    assert 25_000_000 + 4_000_000 == replay(after).makespan_ns


def test_what_a_layer_keeps_for_its_own_backward_is_no_message():
    """b writes 7 MB that its backward reads, and 1 MB for c; a's 2 MB are read by b's backward as well, once sent."""
    builder = GraphBuilder()
    cpu = builder.resource("cpu", ResourceKind.HOST_THREAD)
    rows = [("a", Phase.FORWARD), ("b", Phase.FORWARD), ("b", Phase.FORWARD), ("c", Phase.FORWARD),
            ("c", Phase.BACKWARD), ("b", Phase.BACKWARD), ("a", Phase.BACKWARD)]  # fmt: skip
    tasks = [
        builder.task(name, kind=Kind.COMPUTE, layer=name, phase=phase, resource=cpu, iteration=0, duration_ns=10)
        for name, phase in rows
    ]
    arrows = ((0, 1, 2), (0, 5, 2), (1, 2, 7), (1, 5, 7), (2, 3, 1), (3, 4, 5), (4, 5, 1), (5, 6, 2))
    for src, dst, megabytes in arrows:
        builder.edge(tasks[src], tasks[dst], kind=EdgeKind.DATA, size_bytes=megabytes * 10**6)
    problem = layers_of([builder.build()], fleet_of("3xhere")[0], 1e9).problem

    sent = dict(zip(problem.names, (problem.cost_ns / 1e6).tolist(), strict=True))
    assert {"a": 2, "b": 1, "c": 0, "c (backward)": 1, "b (backward)": 2, "a (backward)": 0} == sent


def test_layers_that_wait_for_each_other_stay_with_all_their_backward_nodes():
    """a, b and a again: one node forward, two backward, all of one color; b's share of the update goes with b."""
    builder = GraphBuilder()
    cpu = builder.resource("cpu", ResourceKind.HOST_THREAD)
    forward, backward = Phase.FORWARD, Phase.BACKWARD
    rows = [("a", forward), ("b", forward), ("a", forward), ("c", forward), ("c", backward), ("b", backward),
            ("a", backward)]  # fmt: skip
    tasks = [
        builder.task(name, kind=Kind.COMPUTE, layer=name, phase=phase, resource=cpu, iteration=0, duration_ns=10)
        for name, phase in rows
    ]
    for one, other in itertools.pairwise(tasks):
        builder.edge(one, other, kind=EdgeKind.DATA, size_bytes=1)
    layers = layers_of([builder.build()], fleet_of("2xhere")[0], 1e9)

    assert ("a", "c", "c (backward)", "b (backward)", "a (backward)") == layers.problem.names
    color = layers.problem.color
    assert color[0] == color[3] == color[4] != color[1] == color[2]
    assert {"a": 0, "b": 0, "c": 1} == layers.node_of
    device = place(layers.problem).device
    assert device[0] == device[3] == device[4]


def test_a_backward_layer_without_a_forward_one_goes_with_its_neighbor():
    """The seed of the gradients, and a layer that exchanges no data with any other."""
    builder = GraphBuilder()
    cpu = builder.resource("cpu", ResourceKind.HOST_THREAD)
    rows = [("a", Phase.FORWARD), ("b", Phase.FORWARD), ("idle", Phase.FORWARD), ("c", Phase.FORWARD),
            ("", Phase.BACKWARD), ("c", Phase.BACKWARD), ("b", Phase.BACKWARD), ("a", Phase.BACKWARD)]  # fmt: skip
    tasks = [
        builder.task(name, kind=Kind.COMPUTE, layer=name, phase=phase, resource=cpu, iteration=0, duration_ns=10)
        for name, phase in rows
    ]
    for one, other in ((0, 1), (1, 3), (3, 4), (4, 5), (5, 6), (6, 7)):
        builder.edge(tasks[one], tasks[other], kind=EdgeKind.DATA, size_bytes=1)
    for one, other in itertools.pairwise(tasks):  # as one thread ran them
        builder.edge(one, other, kind=EdgeKind.ORDER)
    layers = layers_of([builder.build()], fleet_of("2xhere")[0], 1e9)
    problem = layers.problem

    assert ("a", "b", "c", "model (backward)", "c (backward)", "b (backward)", "a (backward)") == problem.names
    assert problem.color[3] == problem.color[4] == problem.color[2]
    assert layers.node_of["idle"] == layers.node_of["b"]
    assert 80 == problem.time_ns.sum()


def test_an_update_comes_once_for_all_microbatches():
    types, _ = fleet_of("2xhere")
    whole, parts = (layers_of([step()], types, 1e9, num_microbatches=number) for number in (1, 4))

    assert [0.0, 0.0, 3e6, 1e6] == whole.update_ns[:, 0].tolist()
    assert (whole.problem.time_ns - parts.problem.time_ns == 0.75 * whole.update_ns).all()


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("num_stages", "num_samples"), [(1, 3), (3, 4), (4, 12)])
def test_an_even_pipeline_that_is_emptied_takes_as_long_as_the_papers_say(schedule, num_stages, num_samples):
    """(M + k - 1) (f + b), by both schedules (GPipe, section 2.3), and then the longest update."""
    forward = [(node, node + 1) for node in range(num_stages - 1)]
    backward = [(num_stages + b, num_stages + a) for a, b in forward]
    turns = [(node, num_stages + node) for node in range(num_stages)]
    one = problem(
        [(100.0, 1e6)] * num_stages + [(200.0, 1e6)] * num_stages, forward + backward + turns, [0.0] * 2 * num_stages,
        backward=range(num_stages, 2 * num_stages), color=[*range(num_stages)] * 2, accelerators=num_stages,
    )  # fmt: skip
    plan = place(one)
    graph = build_pipeline_graph(plan, num_samples, schedule=schedule, update_ns=np.full(num_stages, 50.0))

    assert (num_samples + num_stages - 1) * 300 + 50 == replay(graph).makespan_ns
    waiting = build_rank_graph(plan, plan_schedule(plan, num_samples, schedule), update_ns=np.full(num_stages, 50.0))
    assert replay(waiting).makespan_ns == replay(graph).makespan_ns  # messages that take no time change nothing
    late = build_pipeline_graph(plan, num_samples, schedule=schedule, latency_ns=10)
    assert replay(late).makespan_ns >= (num_samples + num_stages - 1) * 300 + 20 * (num_stages - 1)


def test_1f1b_keeps_as_many_samples_as_stages_under_way():
    one = chain(2, accelerators=2)
    with pytest.raises(InputError, match="no schedule is called 'zb'"):
        build_pipeline_graph(place(one), 3, schedule="zb")
    back = problem([(1.0, 9.0)] * 4, [(0, 1), (1, 3), (3, 2), (0, 2)], [0.0] * 4, backward=(2, 3), color=[0, 1, 0, 1])
    graph = build_pipeline_graph(place(back), 3)
    first = graph.select(resource=0) if place(back).device[0] == 0 else graph.select(resource=1)
    names = graph.tasks["name"].to_numpy()[first]
    assert ["sample 0", "sample 1", "sample 0", "sample 2", "sample 1", "sample 2"] == [
        name.split(",")[0] for name in names
    ]


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


def test_links_and_weights_of_a_graph():
    """Four times the bandwidth between devices of one type: a quarter of each transfer, placed and replayed."""
    graph = step()
    types, _ = fleet_of("2xhere")
    layers = layers_of([graph], types, 1e9, link_scale=links_of("here:here=4GB/s", types, 1e9))

    assert [1000.0, 3000.0, 0.0, 0.0] == layers.problem.weight_bytes.tolist()
    plan = place(layers.problem)
    assert math.isclose(15.5e6, plan.value_ns)
    assert 29_000_000 - 3_000_000 == replay(apply_plan(layers, plan, [graph])).makespan_ns
