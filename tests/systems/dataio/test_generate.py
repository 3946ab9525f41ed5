"""The generator: equal bytes for any number of ranks, the sizes that were requested, whole files or none."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.systems.dataio.test_formats import configure
from windtunnel.errors import InputError
from windtunnel.systems.dataio.config import DatasetConfig
from windtunnel.systems.dataio.dataset import file_set
from windtunnel.systems.dataio.generate import GeneratedFiles, data_files, generate


def digests(root):
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("name", ["npz", "npy", "hdf5", "csv", "tfrecord", "indexed_binary", "parquet", "webdataset"])
def test_one_two_and_four_ranks_write_identical_bytes(tmp_path, name):
    expected = None
    for num_ranks in (1, 2, 4):
        root = tmp_path / str(num_ranks)
        config = configure(root, name, num_files_train=5, num_files_eval=2, record_length_bytes_stdev=90)
        for rank in range(num_ranks):
            generate(config, rank=rank, num_ranks=num_ranks)
        expected = expected or digests(root)

        assert expected == digests(root)


def test_another_seed_gives_other_bytes(tmp_path):
    for seed in (1, 2):
        generate(configure(tmp_path / str(seed), "npy"), seed=seed)

    assert digests(tmp_path / "1") != digests(tmp_path / "2")


@pytest.mark.parametrize(
    ("mean", "std"), [(146_600_628, 68_341_808), (2_828_486, 71_311), (65_536, 20_000), (400, 150), (1000, 900)]
)
def test_sizes_have_the_mean_and_the_deviation_that_were_requested(mean, std):
    dataset = DatasetConfig(num_files_train=500, record_length_bytes=mean, record_length_bytes_stdev=std)

    sizes = file_set(dataset, ".npz").sample_bytes

    assert mean == pytest.approx(sizes.mean(), rel=0.01)
    assert std == pytest.approx(sizes.std(), rel=0.1)
    assert sizes.min() >= 1


def test_files_on_disk_have_the_mean_size_that_was_requested(tmp_path):
    config = configure(
        tmp_path, "indexed_binary", num_files_train=500, record_length_bytes=4000, record_length_bytes_stdev=1500
    )
    generate(config)

    sizes = np.array([(tmp_path / key).stat().st_size for key in data_files(config).keys])

    assert 4000 == pytest.approx(sizes.mean(), rel=0.01)
    assert 1500 == pytest.approx(sizes.std(), rel=0.1)


@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(1, 10**6), st.integers(0, 10**6))
def test_no_sample_is_empty(count, mean, std):
    dataset = DatasetConfig(num_files_train=count, record_length_bytes=mean, record_length_bytes_stdev=std)

    assert (file_set(dataset, ".npy").dims >= 1).all()


def test_records_without_a_deviation_are_the_squares_of_dlio():
    dataset = DatasetConfig(num_files_train=3, record_length_bytes=114660.07)

    assert [[338, 338]] * 3 == file_set(dataset, ".npy").dims.tolist()


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    config = configure(tmp_path / "cut", "tfrecord", num_files_train=6)
    generate(configure(tmp_path / "whole", "tfrecord", num_files_train=6))

    def stop(what, done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(config, progress=stop)
    (tmp_path / "cut/data/train/.img_3_of_6.tfrecord.abcdefgh.tfrecord").write_bytes(b"half")

    assert GeneratedFiles(3, 3, 3 * 400) == generate(config)
    assert digests(tmp_path / "whole") == digests(tmp_path / "cut")


@pytest.mark.parametrize("name", ["npy", "npz", "hdf5", "tfrecord"])
def test_no_room_keeps_what_is_whole_and_goes_on_later(tmp_path, name):
    resource = pytest.importorskip("resource")
    sizes = {"record_length_bytes": 400_000, "record_length_bytes_stdev": 80_000}
    config = configure(tmp_path, name, num_files_train=20, **sizes)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, before[1]))
    try:
        with pytest.raises(InputError, match=r"(?s)disk is full.*complete files are kept"):
            generate(config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    names = sorted(path.name for path in (tmp_path / "data/train").iterdir())
    assert 0 < len(names) < 20
    assert [key.rpartition("/")[2] for key in data_files(config).keys[: len(names)]] == names
    assert len(names) == generate(config).num_kept


def test_a_data_set_that_does_not_fit_is_refused_before_writing(tmp_path):
    config = configure(tmp_path, "npz", num_files_train=1000, record_length_bytes=10**15)

    with pytest.raises(InputError, match=r"(?s)does not fit: 1,000 files of .* are free.*num_files_train"):
        generate(config)
    assert [] == list(tmp_path.iterdir())


def test_another_data_set_in_the_folder_is_named_and_kept(tmp_path):
    generate(configure(tmp_path, "npz"))
    before = digests(tmp_path)

    with pytest.raises(InputError, match=r"its record_length_bytes is 400\.0, not 900"):
        generate(configure(tmp_path, "npz", record_length_bytes=900))
    assert before == digests(tmp_path)
    assert 2 == generate(configure(tmp_path, "npz", record_length_bytes=900), is_forced=True).num_written


def test_files_of_unknown_origin_are_kept(tmp_path):
    (tmp_path / "data/train").mkdir(parents=True)
    (tmp_path / "data/train/precious.npz").write_bytes(b"x")

    with pytest.raises(InputError, match="unknown data set"):
        generate(configure(tmp_path, "npz"))


def test_progress_counts_files(tmp_path):
    calls = []
    generate(configure(tmp_path, "npz", num_files_train=3), progress=lambda *call: calls.append(call))

    assert [("generating", done, 3) for done in range(3)] == calls
