"""Links that differ by the types of devices, and replicas of stages: against trying everything."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rustworkx", reason="needs the extra plan")

from tests.search.problems import brute_force, chain, order_exists, problem, random_problem
from windtunnel.errors import InputError
from windtunnel.search.placement.explain import device_rows
from windtunnel.search.placement.fleet import fleet_of, links_of, with_replicas
from windtunnel.search.placement.search import place
from windtunnel.search.placement.throughput import exact, sync_ns, value_ns
from windtunnel.search.placement.throughput_ilp import integer_plan
from windtunnel.search.work import DeviceType
from windtunnel.simulate import replay
from windtunnel.systems.pipelines.model import build_pipeline_graph


def with_links(one, rng, counts=(2, 2)):
    """Two types of accelerators whose links differ by type, also by direction."""
    types = tuple(
        DeviceType(name, count, comm_scale=scale)
        for name, count, scale in zip("ab", counts, rng.choice([0.5, 1.0], 2).tolist(), strict=True)
    )
    link_scale = np.round(rng.uniform(0.1, 3, (2, 2)), 1)
    return replace(one, types=types, is_barred=np.zeros_like(one.is_barred), link_scale=link_scale)


def obvious_loads(one, device, kind):
    """Load of every device by the definition, edge by edge."""
    scale = one.link_scale if one.link_scale is not None else np.ones((len(one.types),) * 2)
    load = [0.0] * len(kind)
    for node in range(one.num_nodes):
        own = int(device[node])
        load[own] += one.time_ns[node, kind[own]]
        away = {int(device[b]) for a, b in zip(one.src, one.dst, strict=True) if a == node} - {own}
        for other in away:
            load[other] += one.types[kind[other]].comm_scale * scale[kind[own], kind[other]] * one.cost_ns[node]
        slowest = max((scale[kind[own], kind[other]] for other in away), default=0.0)
        load[own] += one.types[kind[own]].comm_scale * slowest * one.cost_ns[node]
    return load


@pytest.mark.parametrize("seed", range(20))
def test_loads_over_links_are_those_of_the_definition(seed):
    rng = np.random.default_rng(seed)
    one = random_problem(rng, int(rng.integers(2, 6)), is_training=seed % 2 == 0)
    if seed % 4:
        one = with_links(one, rng)
    kind = np.array([0, 1, 0, 1])
    device = rng.integers(0, 4, one.num_nodes)

    assert np.allclose(obvious_loads(one, device, kind), one.loads(device, kind).total_ns())


@pytest.mark.parametrize("seed", range(40))
def test_links_between_types_are_certified_and_solved(seed):
    pytest.importorskip("highspy", reason="needs the extra plan")
    rng = np.random.default_rng(seed)
    drawn = random_problem(rng, int(rng.integers(2, 5 if seed % 2 else 6)), is_training=seed % 2 == 1)
    one = with_links(drawn, rng, counts=(int(rng.integers(1, 3)), int(rng.integers(0, 3))))
    best = brute_force(one)
    plan = exact(one)
    solved = integer_plan(one, plan, gap=0.0)

    assert plan.bound_ns <= best * (1 + 1e-9)
    assert best <= plan.value_ns * (1 + 1e-9)
    assert plan.loads.is_allowed
    assert math.isclose(plan.value_ns, plan.loads.max_load_ns(), rel_tol=1e-12)
    assert math.isclose(best, solved.value_ns, rel_tol=1e-6, abs_tol=1e-9)
    assert solved.bound_ns <= best * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_a_chain_over_links_is_solved_by_the_programme(seed):
    rng = np.random.default_rng(seed)
    num = int(rng.integers(2, 5))
    drawn = chain(num)
    if seed % 2:
        edges = [(node, node + 1) for node in range(num - 1)] + [
            (num + node + 1, num + node) for node in range(num - 1)
        ]
        edges += [(node, num + node) for node in range(num)]
        cost = np.concatenate([rng.uniform(0, 4, num), rng.uniform(0, 4, num)])
        drawn = problem(rng.uniform(0, 10, (2 * num, 2)), edges, cost, backward=range(num, 2 * num),
                        color=list(range(num)) * 2)  # fmt: skip
    one = with_links(drawn, rng)
    plan = exact(one)

    assert plan.is_optimal
    assert math.isclose(brute_force(one), plan.value_ns, rel_tol=1e-9, abs_tol=1e-9)


def best_of_stages(one, combine):
    """Every contiguous cut into stages with every number of replicas of every type."""
    num_colors = len(np.unique(one.color))
    assert (np.unique(one.color) == np.arange(num_colors)).all()
    forward = np.flatnonzero(~one.is_backward)
    edges = [(a, b) for a, b in zip(one.src.tolist(), one.dst.tolist(), strict=True) if not one.is_backward[b]]
    best = math.inf
    for num_stages in range(1, num_colors + 1):
        options = [
            (kind, count)
            for kind, of_type in enumerate(one.types)
            for count in range(1, min(of_type.count, of_type.max_replicas) + 1)
        ]
        for choice in itertools.product(range(num_stages), repeat=num_colors):
            device = np.array(choice)[one.color]
            sets = [set(forward[device[forward] == at].tolist()) for at in range(num_stages)]
            if len(set(choice)) < num_stages or not order_exists(sets, edges):
                continue
            for chosen in itertools.product(options, repeat=num_stages):
                used = [sum(count for kind, count in chosen if kind == at) for at in range(len(one.types))]
                if any(count > of_type.count for count, of_type in zip(used, one.types, strict=True)):
                    continue
                kinds, counts = (np.array(values) for values in zip(*chosen, strict=True))
                if one.loads(device, kinds).is_allowed:
                    best = min(best, value_ns(one, device, kinds, counts, combine))
    return best


@pytest.mark.parametrize("seed", range(24))
def test_replicas_of_stages_are_solved_by_the_programme(seed):
    rng = np.random.default_rng(seed)
    one = random_problem(rng, int(rng.integers(2, 4)), is_training=seed % 2 == 0)
    if seed % 3 == 0:
        one = replace(one, weight_bytes=rng.uniform(0, 5, one.num_nodes))
    one = with_replicas(one, 3, 1e9 / rng.uniform(0, 2))
    combine = ("sum", "overlap", "duplex")[seed % 3]
    plan = exact(one, combine=combine)

    assert math.isclose(best_of_stages(one, combine), plan.value_ns, rel_tol=1e-9, abs_tol=1e-9)
    assert plan.is_optimal
    if combine == "sum":
        assert math.isclose(plan.value_ns, max(row.load_ns for row in device_rows(plan)))


def test_weights_are_agreed_on_as_pipedream_and_as_a_ring():
    """Of 4 replicas each moves 4 * 3/4 of 100 bytes at 2 bytes a ns, once in four samples; a ring moves half of it."""
    one = chain(2, accelerators=4, size=[60.0, 40.0])
    trained = replace(one, is_backward=np.array([False, True]), color=np.zeros(2, np.int64))
    together = (np.zeros(2, np.int64), np.zeros(1, np.int64), np.array([4]))

    assert [37.5] == sync_ns(with_replicas(trained, 4, 2e9), *together).tolist()
    assert [18.75] == sync_ns(with_replicas(trained, 4, 2e9, "ring"), *together).tolist()
    assert [0.0] == sync_ns(with_replicas(one, 4, 2e9), *together).tolist()  # inference has nothing to agree on
    light = replace(trained, weight_bytes=np.array([20.0, 0.0]))
    assert [7.5] == sync_ns(with_replicas(light, 4, 2e9), *together).tolist()


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_replicas_take_samples_in_turn(schedule):
    """A full pipeline needs per sample what the plan says; weights are agreed on after each one's backward."""
    one = chain(4, accelerators=4, size=[10.0] * 4)
    edges = [(0, 1), (1, 2), (2, 3)]
    one = problem([(4e3, 9e9), (4e3, 9e9), (8e3, 9e9), (8e3, 9e9)], edges, [100.0] * 4, size=[10.0] * 4,
                  backward=[2, 3], color=[0, 1, 1, 0], accelerators=3)  # fmt: skip
    plan = exact(with_replicas(one, 2, 1e8))
    assert sorted(plan.replicas.tolist()) == [1, 2]

    few, many = (replay(build_pipeline_graph(plan, number, schedule=schedule)).makespan_ns for number in (40, 240))
    assert math.isclose((many - few) / 200, plan.value_ns, rel_tol=0.02)
    graph = build_pipeline_graph(plan, 40, schedule=schedule)
    assert 40 == sum(name.startswith("weights of stage") for name in graph.tasks["name"].to_numpy())


@pytest.mark.parametrize(
    ("text", "message"),
    [("a100:h100=1GB/s", "is no link between h100"), ("h100=1GB/s", "no link"), ("h100:h100=0 B/s", "a link of 0")],
)
def test_links_without_sense_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        links_of(text, fleet_of("2xh100")[0], 1e9)


def test_what_a_solver_would_not_see_is_refused():
    one = chain(3)
    with pytest.raises(InputError, match="do not support replicas"):
        place(with_replicas(one, 2, 1e9), solver="ilp")
    with pytest.raises(InputError, match="one link"):
        place(replace(one, link_scale=np.ones((2, 2))), objective="latency")
    with pytest.raises(InputError, match="links of shape"):
        replace(one, link_scale=np.ones((3, 3)))
    with pytest.raises(InputError, match="a link of nan"):
        replace(one, link_scale=np.full((2, 2), math.nan))
    with pytest.raises(InputError, match="synchronized by 'tree'"):
        with_replicas(one, 2, 1e9, "tree")
    with pytest.raises(InputError, match="0 replicas"):
        with_replicas(one, 0, 1e9)
    with pytest.raises(InputError, match="a bandwidth of 0"):
        with_replicas(one, 2, 0.0)
