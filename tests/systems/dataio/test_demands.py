"""What a configuration demands, and the rules of MLPerf Storage with their arithmetic."""

import json

import pytest

from tests.shared_data import shared_path
from windtunnel.systems.dataio import mlperf
from windtunnel.systems.dataio.config_file import load_config
from windtunnel.systems.dataio.demands import demands_of


@pytest.mark.parametrize(
    ("name", "bytes_per_s"),
    [("unet3d_h100", 3.18e9), ("unet3d_a100", 1.61e9), ("resnet50_h100", 205e6), ("cosmoflow_h100", 808e6)],
)
def test_read_rates_per_accelerator_are_the_published_ones(name, bytes_per_s):
    assert bytes_per_s == pytest.approx(demands_of(load_config(name)).bytes_per_s, rel=0.005)


def test_a_data_set_has_the_size_of_its_records():
    demands = demands_of(load_config("unet3d_h100"), 4)

    assert 168 * 146_600_628 == demands.dataset_bytes
    assert 168 // 28 == demands.steps_per_epoch


def test_a_checkpoint_of_llama_3_8b_has_the_published_size():
    demands = demands_of(load_config("llama_8b_zero3"), 8)

    assert 104.7 == pytest.approx(demands.checkpoint_bytes / 2**30, abs=0.05)
    assert demands.checkpoint_bytes == pytest.approx(8 * demands.checkpoint_bytes_per_rank, rel=1e-4)
    assert demands.bytes_per_s is None


def test_thresholds_equal_the_published_rules():
    rules = json.loads(shared_path("serve/dlio/mlperf_storage_rules.json").read_text())

    assert {name: entry["minimum_au"] for name, entry in rules["workloads"].items()} == mlperf.MIN_AU_RATIOS
    assert rules["minimum_steps_per_epoch"] == mlperf.MIN_STEPS_PER_EPOCH
    assert rules["host_memory_multiplier"] == mlperf.HOST_MEMORY_MULTIPLIER
    assert rules["excluded_start_steps"] == mlperf.EXCLUDED_START_STEPS
    assert rules["repeated_runs"] == mlperf.NUM_RUNS


def checks(config, **machine):
    machine = {"num_accelerators": 8, "host_memory_bytes": 256 << 30, **machine}
    return {check.rule: check for check in mlperf.check_mlperf_rules(config, **machine)}


def test_a_data_set_that_is_too_small_says_how_many_files_it_needs():
    config = load_config("unet3d_h100")
    check = checks(config)["size of the data set"]

    assert check.is_met is False
    assert "500 steps x batch 7 x 8 accelerators = 28,000 samples" in check.arithmetic
    assert "5 x 1 host x 256 GiB / 140 MiB = 9,376 samples" in check.arithmetic
    assert "--set dataset.num_files_train=28000" == check.fix
    fixed = load_config("unet3d_h100", [check.fix.removeprefix("--set ")])
    assert checks(fixed)["size of the data set"].is_met


def test_memory_of_hosts_decides_where_it_is_large():
    check = checks(load_config("unet3d_h100"), host_memory_bytes=1 << 40, num_hosts=2)["size of the data set"]

    assert "--set dataset.num_files_train=75001" == check.fix


def test_a_lower_threshold_and_other_steps_left_out_are_found():
    config = load_config("unet3d_h100", ["metric.au=0.8", "output.metric.exclude_start_steps=5"])
    found = checks(config)

    assert (False, "--set metric.au=0.9") == (found["threshold of AU"].is_met, found["threshold of AU"].fix)
    assert found["steps left out"].is_met is False


def test_a_workload_without_rules_is_named():
    found = checks(load_config("bert_v100"))

    assert found["workload"].is_met is False
    assert found["threshold of AU"].is_met is None
