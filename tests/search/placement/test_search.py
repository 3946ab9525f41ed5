"""Placement for throughput: against trying everything, and against published values."""

import json
import math

import numpy as np
import pytest
from benchmarks.placement_data import assignment_of

pytest.importorskip("rustworkx", reason="needs the extra plan")

from tests.search.problems import brute_force, problem, random_problem
from tests.shared_data import shared_path
from windtunnel.errors import GraphError, InfeasibleError, InputError
from windtunnel.search.downsets import downsets
from windtunnel.search.minmax import Table, solve
from windtunnel.search.placement.contraction import contract
from windtunnel.search.placement.search import place
from windtunnel.search.placement.throughput import exact, solve_linearization
from windtunnel.systems.placement.formats import read_problem, split_document

FOLDER = "placement/dnn_partitioning"


@pytest.mark.parametrize("seed", range(60))
def test_the_programme_finds_what_trying_everything_finds(seed):
    rng = np.random.default_rng(seed)
    is_training = seed % 3 == 0
    one = random_problem(rng, int(rng.integers(2, 5 if is_training else 7)), is_training=is_training,
                         num_colors=4 if seed % 4 == 1 else None)  # fmt: skip
    combine = ("sum", "overlap", "duplex", "overlap-duplex")[seed % 4]
    expected = brute_force(one, combine=combine)
    if math.isinf(expected):
        with pytest.raises(InfeasibleError):
            exact(one, combine=combine)
        return
    plan = exact(one, combine=combine)

    assert math.isclose(expected, plan.value_ns, rel_tol=1e-9, abs_tol=1e-9)
    assert math.isclose(plan.value_ns, plan.loads.max_load_ns(combine), rel_tol=1e-12)
    assert plan.loads.is_allowed
    assert plan.is_optimal


def test_too_many_downsets_leave_an_interval():
    wide = problem([(1, 9)] * 16, [], [0.0] * 16, accelerators=4)
    plan = exact(wide, cap=100)

    assert 4.0 == plan.value_ns
    assert 4.0 == plan.bound_ns
    assert "more than 100 downsets" in plan.note
    assert plan.solver.startswith("dpl")


def test_an_interrupt_leaves_the_best_found_and_its_bound():
    def interrupted(what, done, total):
        if what == "placing" and done == total // 2:
            raise KeyboardInterrupt

    chain = problem([(node + 1.0, 9.0) for node in range(8)], [(node, node + 1) for node in range(7)], [0.1] * 8)
    plan = exact(chain, progress=interrupted)

    assert plan.note.startswith("interrupted")
    assert 0 < plan.bound_ns <= plan.value_ns < math.inf
    assert plan.loads.is_allowed


def test_integer_solvers_need_no_chain_that_fits():
    """In the order of the chain 3 and 3 lie on one of two devices of 4; apart from it they fit."""
    pytest.importorskip("highspy", reason="needs the extra plan")
    one = problem([(1, 1)] * 4, [(0, 1), (1, 2), (2, 3)], [0.1] * 4, size=[3, 1, 1, 3], accelerators=2, memory=4.0)
    crossed = problem([(1, 1)] * 4, [(0, 1), (2, 3)], [0.1] * 4, size=[3, 3, 1, 1], accelerators=2, memory=4.0)

    assert place(one, solver="ilp").loads.is_allowed
    assert place(crossed, solver="ilp-any").loads.is_allowed
    flush = place(one, objective="flush")
    assert math.isclose(flush.value_ns, flush.loads.flush_load_ns())


def test_what_cannot_fit_names_the_largest_part():
    with pytest.raises(InfeasibleError, match="the largest set that cannot be parted 7 of 5") as caught:
        exact(problem([(1, 1)] * 3, [(0, 1), (1, 2)], [0.0] * 3, size=[3, 4, 1], color=[0, 0, 1], memory=5.0))
    assert "0, 1" in caught.value.where


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"edges": [(0, 1), (1, 0)]}, GraphError, "cycle"),
        ({"edges": [(0, 0)]}, GraphError, "its own output"),
        ({"edges": [(0, 5)]}, GraphError, "no target"),
        ({"times": [(1, 1), (math.nan, 1)]}, InputError, "time of nan"),
        ({"cost": [-1.0, 0.0]}, InputError, "cost of -1"),
        ({"accelerators": 0, "cpus": 0}, InputError, "no devices"),
        ({"barred": [1]}, InfeasibleError, "run on none"),
        ({"backward": [0], "edges": [(0, 1)]}, GraphError, "from a backward to a forward"),
    ],
)
def test_a_problem_without_sense_is_refused(changes, error, message):
    with pytest.raises(error, match=message):
        problem(**{"times": [(1, 1), (2, 2)], "edges": [(0, 1)], "cost": [0.0, 0.0], **changes})


# --- files -------------------------------------------------------------------------------------------------

DOCUMENT = {
    "maxSizePerFPGA": 10,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        {"id": 3, "supportedOnFpga": 1, "cpuLatency": 5.0, "fpgaLatency": 1.0, "size": 4, "isBackwardNode": 0},
        {"id": 7, "supportedOnFpga": True, "cpuLatency": 6.0, "fpgaLatency": 2.0, "isBackwardNode": False},
    ],
    "edges": [{"sourceId": 3, "destId": 7, "cost": 0.5}],
}


def write(tmp_path, document):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(document))
    return path


def test_a_file_is_read_and_an_answer_written(tmp_path):
    one = read_problem(write(tmp_path, DOCUMENT))
    plan = exact(one)
    document = split_document(one, plan.device, plan.kind, plan.value_ns)

    assert 2.5 == document["maxLoad"]
    assert [{"load": 1.5, "nodes": [3]}, {"load": 2.5, "nodes": [7]}] == document["fpgas"]
    path = tmp_path / "split.json"
    path.write_text(json.dumps(document))
    device, kind = assignment_of(path, one)
    assert 2.5e6 == one.loads(device, kind).max_load_ns()


@pytest.mark.parametrize(
    ("change", "message", "where"),
    [
        (lambda one: one["nodes"][1].update(id=3), "two nodes have one id", "id 3"),
        (lambda one: one["nodes"][0].update(supportedOnFpga="True"), "supportedOnFpga is 'True'", "node 3"),
        (lambda one: one["nodes"][0].pop("fpgaLatency"), "fpgaLatency is None", "node 3"),
        (lambda one: one["edges"][0].update(destId=8), "which is no node", "edge 0"),
        (lambda one: one["edges"].append({"sourceId": 3, "destId": 7, "cost": 0.7}), "cost 0.5 and 0.7", "node 3"),
        (lambda one: one.update(maxFPGAs=-1), "maxFPGAs is -1", "problem.json"),
        (lambda one: one.pop("edges"), "no list of edges", "problem.json"),
    ],
)
def test_a_wrong_file_names_its_place(tmp_path, change, message, where):
    document = json.loads(json.dumps(DOCUMENT))
    change(document)

    with pytest.raises(InputError, match=message) as caught:
        read_problem(write(tmp_path, document))
    assert where in caught.value.where


# --- published values ----------------------------------------------------------------------------------------

PUBLISHED = {
    "layer_bert24_inference": (28, 30, 464, 17.78990625, 17.78990625),
    "layer_bert24_training": (28, 30, 464, 41.7458125, 41.7458125),
    "layer_resnet50_inference": (177, 242, 28_971, 33.774666016, 33.774666),
    "layer_resnet50_training": (177, 242, 28_971, 78.6318125, 78.6498125),
    "operator_bert_l-3_inference": (128, 1_428, 675_546, 27.918567680, 27.918568),
    "operator_resnet50_inference": (176, 241, 28_729, 124.348849774, 124.348850),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_graphs(name):
    num_nodes, num_downsets, num_pairs, value_ms, chain_ms = PUBLISHED[name]
    one = read_problem(shared_path(f"{FOLDER}/throughput/{name}.json"))
    contraction = contract(one)
    lattice = downsets(contraction.num_nodes, contraction.src, contraction.dst)

    assert (num_nodes, num_downsets, num_pairs) == (contraction.num_nodes, lattice.num_downsets, lattice.num_pairs)
    table: Table = solve(lattice, contraction.work)
    assert math.isclose(value_ms, table.value / 1e6, rel_tol=1e-9)
    assert math.isclose(chain_ms, solve_linearization(one, orders=["depth-first"]).value_ns / 1e6, rel_tol=1e-7)
    assert math.isclose(value_ms, exact(one).value_ns / 1e6, rel_tol=1e-9)


@pytest.mark.parametrize(
    ("graph", "expert", "value_ms"),
    [
        ("layer_bert24_inference", "bert24_inference", 20.083953),
        ("layer_bert24_training", "bert24_training", 49.404906),
        ("layer_gnmt_inference", "gnmt_inference", 46.208451),
        ("layer_inceptionv3_training", "inceptionv3_inference", 213.654152),
        ("layer_resnet50_inference", "resnet50_inference", 43.918258),
        ("layer_resnet50_training", "resnet50_inference", 112.107516),
    ],
)
def test_published_splits_of_experts(graph, expert, value_ms):
    one = read_problem(shared_path(f"{FOLDER}/throughput/{graph}.json"))
    device, kind = assignment_of(shared_path(f"{FOLDER}/experts/{expert}_expert.json"), one)

    assert math.isclose(value_ms, one.loads(device, kind).max_load_ns() / 1e6, abs_tol=5e-7)
