"""Costs are measured on a sample of a data set that does not exist."""

from dataclasses import replace
from pathlib import Path

import pytest

from windtunnel.systems.dataio.config_file import load_config
from windtunnel.systems.dataio.generate import generate
from windtunnel.systems.dataio.source import has_files, sample_of


@pytest.mark.parametrize("name", ["unet3d_h100", "cosmoflow_h100", "bert_v100", "dlrm"])
def test_a_sample_has_some_batches_and_is_small(name, tmp_path):
    config = load_config(name, [])

    sample = sample_of(config, str(tmp_path)).dataset

    num_samples = sample.num_files_train * sample.num_samples_per_file
    size_bytes = num_samples * config.dataset.record_length_bytes
    assert num_samples >= 4 * config.reader.batch_size
    assert size_bytes <= 2**29 + 5 * config.reader.batch_size * config.dataset.record_length_bytes
    assert str(tmp_path) == sample.data_folder


def test_the_files_of_a_sample_are_not_those_of_the_data_set(tmp_path: Path):
    overrides = ["++workload.dataset.num_files_train=12", "++workload.dataset.record_length_bytes=4096",
                 "++workload.dataset.record_length_bytes_stdev=0", "++workload.reader.batch_size=2"]  # fmt: skip
    config = load_config("unet3d_h100", overrides)
    config = replace(config, dataset=replace(config.dataset, data_folder=str(tmp_path / "data")))

    generate(sample_of(config, str(tmp_path / "sample")))

    assert not has_files(config)
    assert has_files(sample_of(config, str(tmp_path / "sample")))
