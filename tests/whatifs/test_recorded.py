"""What-ifs on traces that others recorded."""

from __future__ import annotations

import pytest

from tests.shared_data import shared_path
from windtunnel.simulate import replay
from windtunnel.simulate.iterations import iteration_ns, takes_part
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.whatifs import whatif


def answers_of(name, requests):
    """Speed-ups by request on a recorded trace."""
    graph = load_kineto(shared_path(f"replay/kineto/{name}.json.gz"))
    return {str(answer.request): answer for answer in whatif(graph, requests)}


def test_resnet_on_a_v100_waits_for_its_device():
    """A faster device helps, a faster processor or fewer launches hardly: the launches run far ahead."""
    answers = answers_of("resnet_v100_train_ns", ["faster-device", "faster-cpu", "cuda-graphs"])

    assert answers["faster-device"].speedup > 1.15
    assert answers["faster-cpu"].speedup < 1.02
    assert answers["cuda-graphs"].speedup < 1.02


def test_a_training_that_is_launch_bound_gains_from_fewer_launches_not_from_its_device():
    """Daydream, claim (a), on a recorded job of two A100s."""
    answers = answers_of("nccl_collectives_rank0_of_2", ["faster-device", "faster-cpu", "cuda-graphs"])

    assert answers["faster-device"].speedup < 1.02
    assert answers["faster-cpu"].speedup > 1.5
    assert answers["cuda-graphs"].speedup > answers["faster-cpu"].speedup


def test_a_thread_that_only_polls_does_not_count_as_part_of_the_iteration():
    """The watchdog of the process group asks for events long after the last kernel."""
    graph = load_kineto(shared_path("replay/kineto/resnet_v100_train_ns.json.gz"))
    timeline = replay(graph)

    assert not takes_part(graph).all()
    assert iteration_ns(timeline, graph.num_iterations) * graph.num_iterations < timeline.makespan_ns


@pytest.mark.parametrize("name", ["train_rank3_of_8", "sampled_rank0_of_128", "amd_mi250_toy_train"])
def test_every_recorded_job_is_answered(name):
    answers = answers_of(name, ["faster-cpu", "faster-device", "faster-link", "cuda-graphs", "data-parallel", "gist"])

    assert answers["faster-cpu"].speedup > 1
    assert all(answer.is_applicable or answer.reason for answer in answers.values())
