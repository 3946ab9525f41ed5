"""Configurations: what is read is what was written, and what is wrong is named."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared_data import shared_path
from windtunnel.errors import InputError
from windtunnel.systems.dataio.config import DlioConfig, TimeDraw
from windtunnel.systems.dataio.config_file import (
    dump_config,
    load_config,
    parse_config,
    to_mapping,
    workload_names,
)


@pytest.mark.parametrize("name", workload_names())
def test_a_shipped_workload_has_no_unknown_and_no_ignored_key(name):
    config = load_config(name)

    assert config.name == name
    assert () == config.warnings
    assert to_mapping(config) == to_mapping(parse_config(to_mapping(config)))


def test_workload_names_equal_those_of_dlio():
    document = json.loads(shared_path("serve/dlio/workloads.json").read_text())

    for name, sections in document["workloads"].items():
        assert to_mapping(parse_config(sections)) == to_mapping(load_config(name)), name


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"reader": {"read_thread": 4}}, "section reader has no key 'read_thread'|did you mean reader.read_threads?"),
        ({"readers": {}}, "has no key 'readers'|did you mean reader?"),
        ({"model": {"parallelism": {"tensr": 2}}}, "section model.parallelism|did you mean model.parallelism.tensor?"),
        ({"reader": {"batch_size": 0}}, "reader.batch_size is 0; it is at least 1"),
        ({"reader": {"batch_size": "x"}}, "reader.batch_size is a whole number, not 'x'"),
        ({"reader": {"batch_size": 1.5}}, "reader.batch_size is a whole number, not 1.5"),
        ({"reader": {"pin_memory": 1}}, "reader.pin_memory is true or false, not 1"),
        ({"reader": 4}, "reader is a section, not 4"),
        ({"dataset": {"format": "npzz"}}, "dataset.format cannot be 'npzz'|did you mean npz?"),
        ({"dataset": {"record_length_bytes": float("nan")}}, "record_length_bytes is a number, not nan"),
        ({"dataset": {"record_element_type": "uint9"}}, "'uint9' is no type|dataset.record_element_type"),
        (
            {"dataset": {"record_dims": [4, 4], "record_length_bytes_stdev": 3}},
            "record_dims fixes the size|leave out one of the two",
        ),
        ({"dataset": {"format": "npz", "compression": "lzf"}}, "format npz have no compression lzf|one of none, zip"),
        ({"dataset": {"num_files_train": 0}}, "training has no files|dataset.num_files_train"),
        ({"train": {"computation_time": {"type": "gama"}}}, "no distribution 'gama'|did you mean gamma?"),
        ({"train": {"computation_time": {"type": "gamma", "shape": 1}}}, "of type gamma lacks scale"),
        ({"train": {"computation_time": {"mean": 1, "std": 1}}}, "has no key 'std'|did you mean"),
        ({"train": {"computation_time": -1}}, "train.computation_time is -1; it is at least 0"),
        ({"train": {"computation_time": {"type": "uniform", "min": 2, "max": 1}}}, "min of 2 above its max of 1"),
        ({"metric": {"au": 90}}, "au is a ratio, not 90"),
        ({"checkpoint": {"ksm": {}}}, "ksm merges equal pages|randomize_tensor: False"),
        ({"model": {"parallelism": {"data": 0}}}, "0 data-parallel ranks"),
        ({"reader": {"odirect": True}, "dataset": {"format": "csv"}}, "odirect reads formats npy and npz, not csv"),
    ],
)
def test_what_is_wrong_is_named_with_section_and_key(sections, words):
    with pytest.raises(InputError) as caught:
        parse_config(sections, where="job.yaml")

    assert "job.yaml" in caught.value.where
    assert [] == [word for word in words.split("|") if word not in str(caught.value)]


def test_keys_of_earlier_versions_are_read_and_reported():
    config = parse_config(
        {
            "model": "unet3d",
            "dataset": {"record_length": 100, "record_length_stdev": 7},
            "train": {"computation_time": 1.5, "computation_time_stdev": 0.5},
            "checkpoint": {"model_size": 12, "tensor_parallelism": 2},
        }
    )

    assert ("unet3d", 12, 2) == (config.model.name, config.model.model_size_bytes, config.model.parallelism.tensor)
    assert (100, 7) == (config.dataset.record_length_bytes, config.dataset.record_length_bytes_stdev)
    assert TimeDraw("normal", 1.5, 0.5) == config.train.computation_time
    assert 5 == len(config.warnings)


def test_the_ignored_model_size_is_a_warning():
    config = parse_config({"model": {"model_size": 499153191}})

    assert 10240 == config.model.model_size_bytes
    assert "no effect" in config.warnings[0]


def test_overrides_win_over_the_file(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("reader: {read_threads: 2, file_shuffle: off}\ntrain: {computation_time: 1e-3}\n")

    config = load_config(path, ["++workload.reader.read_threads=4", "dataset.hdf5.num_dset_per_record=2"])

    assert (4, "off", 2) == (
        config.reader.read_threads,
        config.reader.file_shuffle,
        config.dataset.hdf5.num_dset_per_record,
    )
    assert 0.001 == config.train.computation_time.mean_s
    with pytest.raises(InputError, match="overrides nothing"):
        load_config(path, ["reader"])


def test_a_misspelt_name_offers_the_nearest():
    with pytest.raises(InputError, match="unet3d_h100"):
        load_config("unet3d_h10")


def test_a_file_that_is_no_yaml_names_its_line(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("reader:\n  a: [1\n")

    with pytest.raises(InputError, match=r"job.yaml: line 3"):
        load_config(path)


NUMBERS = st.floats(0.001, 1e6, allow_nan=False)
TIMES = st.one_of(
    st.builds(TimeDraw, st.just("constant"), NUMBERS),
    st.builds(TimeDraw, st.sampled_from(["normal", "gamma"]), NUMBERS, NUMBERS),
    st.builds(TimeDraw, st.sampled_from(["exponential", "poisson"]), NUMBERS),
    st.builds(lambda first, width: TimeDraw("uniform", first, first + width), NUMBERS, NUMBERS),
)


@given(TIMES, st.integers(1, 99), st.sampled_from(["off", "seed", "random"]), st.lists(st.integers(1, 9), max_size=3))
def test_a_written_configuration_is_read_as_it_was(tmp_path_factory, time, batch_size, shuffle, dims):
    sections = {
        "train": {"computation_time": to_mapping(DlioConfig(evaluation=_evaluation(time)))["evaluation"]["eval_time"]},
        "reader": {"batch_size": batch_size, "file_shuffle": shuffle},
        "dataset": {"record_dims": dims, "num_files_train": 3},
    }
    config = parse_config(sections, name="job")
    path = tmp_path_factory.getbasetemp() / "job.yaml"
    dump_config(config, path)

    assert config == load_config(path)
    assert time == config.train.computation_time


def _evaluation(time):
    from windtunnel.systems.dataio.config import EvaluationConfig

    return EvaluationConfig(eval_time=time)


@given(TIMES, st.integers(0, 2**32))
def test_no_drawn_time_is_negative(time, seed):
    assert time.sample(np.random.default_rng(seed)) >= 0
    assert (time.draw_ns(np.random.default_rng(seed), 5) >= 0).all()


def test_keys_without_effect_are_said_once():
    config = parse_config(
        {
            "workflow": {"profiling": True},
            "profiling": {"profiler": "iostat"},
            "checkpoint": {"randomize_tensor": False, "ksm": {}, "checkpoint_mechanism_classname": "my.Saver"},
            "reader": {"data_loader": "dali", "computation_threads": 8, "transfer_size": 4096},
        }
    )

    assert [
        "reader.data_loader",
        "reader.computation_threads",
        "reader.transfer_size",
        "checkpoint.checkpoint_mechanism_classname",
        "checkpoint.ksm",
        "workflow.profiling",
    ] == [note.split()[0] for note in config.warnings]
    assert all("has no effect: " in note for note in config.warnings)
    assert () == parse_config({"checkpoint": {"checkpoint_mechanism_classname": "AsyncSaver"}}).warnings
