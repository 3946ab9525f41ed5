"""Nets flown beside their kernels."""

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch

from windtunnel.cost.lookup import Overhead
from windtunnel.cost.peak import Peak
from windtunnel.errors import InputError
from windtunnel.systems.utilization import inference
from windtunnel.systems.utilization.cells.networks import network
from windtunnel.systems.utilization.inference import fly_nets, survey
from windtunnel.workloads.vision import vision_model, vision_names

PEAK = Peak(1e11, 0.0, (512,) * 3, "avx512f", "float32", 1)


def test_nets_are_measured_and_the_table_grows_once():
    images, table = torch.rand(2, 3, 8, 8), {}
    nets = {str(index): (network(index, channels=4, cells_per_stage=1), [images]) for index in (777, 15_624)}
    flown = fly_nets(nets, table, rounds=2)
    first = dict(table)

    assert ["777", "15624"] == [net.name for net in flown]
    assert all(net.measured_ns > 0 and net.flops > 0 and 2 == net.batch_size for net in flown)
    assert {kernel for net in flown for kernel in net.kernels} == set(table)
    fly_nets(nets, table, rounds=2)
    assert first == table
    assert Overhead().latency_ns(flown[0].kernels, table) > 0


def test_utilization_is_flops_over_time_and_peak():
    net = inference.FlownNet("net", 1, 1e6, 2_000, 0, 0, ())

    assert 2_000 / 1e-3 / 1e11 == pytest.approx(net.utilization(PEAK))
    assert 2_000 / 1e-6 / 1e11 == pytest.approx(net.utilization(PEAK, 1e3))


def test_no_rounds_measure_nothing():
    with pytest.raises(InputError, match="measure nothing"):
        fly_nets({}, {}, rounds=0)


@pytest.mark.slow
def test_a_survey_predicts_what_it_measures(monkeypatch):
    pytest.importorskip("pytorchcv", reason="needs the extra suite")
    monkeypatch.setattr(inference, "measure_peak", lambda *_, **__: PEAK)
    found = survey(["mobilenet_wd2", "resnet10"], (1, 2), image_size=32, rounds=2)

    assert [("mobilenet_wd2", 1), ("mobilenet_wd2", 2), ("resnet10", 1), ("resnet10", 2)] == [
        (row.net.name, row.net.batch_size) for row in found.rows
    ]
    assert all(row.predicted_ns > 0 and row.utilization > 0 for row in found.rows)
    assert [True, True, False, False] == [row.is_fitted for row in found.rows]
    assert 2 * found.rows[0].net.flops == found.rows[1].net.flops
    assert not found.failures


def test_an_unknown_model_is_told_its_neighbors():
    with pytest.raises(InputError, match="resnet5"):
        vision_model("resnet5")
    assert len(vision_names()) >= 50
