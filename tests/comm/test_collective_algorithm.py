"""The what-if that chooses algorithms, on what data-parallel makes and on many ranks."""

from __future__ import annotations

import pytest

from tests.whatifs.steps import Layer, gpu_step
from windtunnel.comm.collective_algorithm import collective_algorithm
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Kind
from windtunnel.simulate import replay
from windtunnel.whatifs.data_parallel import data_parallel

TWO = [Layer("a", param_bytes=4_000_000), Layer("b", param_bytes=4_000_000)]


def parallel(num_ranks=4, **wire):
    options = {"bandwidth_bytes_per_s": 1e9, "latency_ns": 1000, "first_bucket_bytes": 1, "bucket_bytes": 1, **wire}
    return data_parallel(gpu_step(TWO, launch_ns=1), num_ranks=num_ranks, **options)


def test_the_ring_of_data_parallel_takes_as_long_message_by_message():
    """The formula and its messages are one model."""
    base = replay(parallel()).makespan_ns

    assert base == pytest.approx(replay(collective_algorithm(parallel(), "ring")).makespan_ns, rel=0.001)
    assert base == replay(collective_algorithm(parallel(), "ring", expanded=False)).makespan_ns


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling", "hierarchical"])
def test_one_task_and_its_messages_end_together(algorithm):
    alone, apart = (replay(collective_algorithm(parallel(8), algorithm, expanded=one)) for one in (False, True))

    assert alone.makespan_ns == pytest.approx(apart.makespan_ns, rel=0.01)


def test_a_tree_beats_a_ring_where_latency_counts():
    slow = {"latency_ns": 1_000_000}

    assert replay(collective_algorithm(parallel(64, **slow))).makespan_ns < replay(parallel(64, **slow)).makespan_ns


def test_messages_have_ranks_peers_and_tags():
    graph = collective_algorithm(parallel(3), "ring")
    comm = graph.select(kind=Kind.COMM)

    assert 2 * 2 * 2 * 2 * 3 == comm.sum()
    assert {0, 1, 2} == set(graph.tasks["rank"][comm].tolist()) == set(graph.tasks["peer"][comm].tolist())
    assert 2 == len(graph.tasks["tag"][comm]) / len(set(graph.tasks["tag"][comm].tolist()))


def test_a_network_of_islands_takes_each_message_over_its_own_link():
    graph = collective_algorithm(parallel(4), "ring", sizes="2x2", links="nvlink4/ethernet-10g")
    used = set(graph.resources.strings("name").take(graph.tasks["resource"][graph.select(op="send")]).to_numpy())

    assert {"rank 0 nvlink4 out", "rank 1 ethernet-10g out"} <= used
    assert "rank 0 ethernet-10g out" not in used


def test_what_cannot_be_is_refused_in_words():
    with pytest.raises(InputError, match="known: ring, tree"):
        collective_algorithm(parallel(), "star")
    with pytest.raises(InputError, match="8x2 are 16 workers, not 4"):
        collective_algorithm(parallel(), sizes="8x2")
    with pytest.raises(NotApplicableError, match="no task is one of all_to_all"):
        collective_algorithm(parallel(), "pairwise")
    with pytest.raises(NotApplicableError, match="no task is one of all_reduce"):
        collective_algorithm(gpu_step(TWO))
    with pytest.raises(InputError, match="has no closed form"):
        collective_algorithm(parallel(), "parameter-server", expanded=False)
