"""Instances that really run, on the cores that are here."""

import pytest

from tests.systems.serving.profiles import MODEL
from windtunnel.errors import InputError
from windtunnel.systems.serving.instances import server_cores
from windtunnel.systems.serving.job import build_served_model
from windtunnel.systems.serving.model import Instance, Split
from windtunnel.systems.serving.run import fly_splits, measure_cells, measuring


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "my_model.py"
    path.write_text(MODEL)
    return path


def test_a_workload_is_served_in_evaluation_mode_with_any_batch():
    what = build_served_model("mlp", 8)

    assert not what.model.training
    assert [(3, 3)] == [(one.shape[0], what.model(one).shape[0]) for one in what.inputs(3)]


def test_a_file_is_served_by_what_its_function_returns(model):
    assert (5, 4) == build_served_model(f"{model}:make", 8).model(
        *build_served_model(f"{model}:make", 8).inputs(5)
    ).shape
    with pytest.raises(InputError, match="nothing returned a int"):
        build_served_model(f"{model}:nothing", 8)


def test_a_step_that_is_more_than_a_model_and_a_loss_is_refused():
    with pytest.raises(InputError, match="a step of gan is more"):
        build_served_model("gan", 8)


def test_cells_are_measured_in_turns_and_splits_are_flown(model):
    job = f"{model}:make"
    found = measure_cells(job, [(1, 1), (1, 64)], rounds=5, budget_s=1.0)
    split = Split((Instance(1, 64, found.cells[1, 64]),), 50)
    (flown,) = fly_splits(job, [split], rounds=6, budget_s=1.0)

    assert {(1, 1), (1, 64)} == set(found.cells)
    assert all(0 < one < 1e9 for one in found.cells.values())
    if found.own_bytes is not None:  # on Linux
        assert 10e6 < found.own_bytes[1, 1] <= found.own_bytes[1, 64] < 10e9
    assert 5 <= len(flown.latency_ns_R) <= 6
    assert flown.latency.low <= flown.latency.value <= flown.latency.high
    assert flown.latency.value == pytest.approx(flown.instances_ns[0])
    assert flown.error_ratio == pytest.approx(split.latency_ns / flown.latency.value - 1)


@pytest.mark.skipif(len(server_cores()) < 2, reason="two instances want two cores")
def test_a_batch_is_done_when_its_last_instance_is(model):
    split = Split((Instance(1, 8, 1e6), Instance(1, 8, 1e6)), 16)
    (flown,) = fly_splits(f"{model}:make", [split], rounds=5, budget_s=1.0)

    assert 2 == len(flown.instances_ns)
    assert flown.latency.value >= max(flown.instances_ns) - 1


def test_single_cells_are_measured_when_they_are_asked_for(model):
    with measuring(f"{model}:make", [1], 4, rounds=5, budget_s=0.1) as measure:
        assert 0 < measure((1, 4)) < 1e9


def test_more_threads_than_cores_are_refused_before_anything_starts(model):
    cores = len(server_cores())

    with pytest.raises(InputError, match=f"{cores + 1} threads do not fit on {cores} cores"):
        measure_cells(f"{model}:make", [(cores + 1, 1)])
    with pytest.raises(InputError, match="do not fit"):
        fly_splits(f"{model}:make", [Split((Instance(cores, 1, 1.0), Instance(1, 1, 1.0)), 2)])
