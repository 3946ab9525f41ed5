"""Formats: what is written is read, in DLIO's layout; what is damaged says where."""

import io
import json
import struct
import tarfile
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windtunnel.errors import InputError
from windtunnel.systems.dataio.config_file import parse_config
from windtunnel.systems.dataio.config_rules import FORMAT_COMPRESSIONS
from windtunnel.systems.dataio.formats.crc32c import crc32c
from windtunnel.systems.dataio.formats.known import FILE_FORMATS
from windtunnel.systems.dataio.generate import data_files, generate, random_samples
from windtunnel.systems.dataio.reading import SampleReader

IMAGES = ("jpeg", "png")


def configure(root, name, **dataset):
    sections = {"format": name, "num_files_train": 2, "record_length_bytes": 400, "data_folder": "data", **dataset}
    return parse_config({"storage": {"storage_root": str(root)}, "dataset": sections})


def read_sample(dataset, file, sample, *, storage):
    with SampleReader(dataset, storage) as reader:
        return reader.read(reader.files().keys[file], sample)


def expected_samples(config, file):
    return list(random_samples(data_files(config).layout(file), 10, is_eval=False, file=file))


@pytest.mark.parametrize("name", sorted(FILE_FORMATS))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_sample_is_read_as_it_was_written(tmp_path_factory, name, data):
    count = 1 if name in IMAGES else data.draw(st.integers(1, 5))
    compression = data.draw(st.sampled_from(("none", *FORMAT_COMPRESSIONS.get(name, ()))))
    config = configure(
        tmp_path_factory.mktemp("set"),
        name,
        num_samples_per_file=count,
        record_length_bytes=data.draw(st.integers(4, 3000)),
        compression=compression,
    )
    generate(config)

    with SampleReader(config.dataset, config.storage, is_kept_open=data.draw(st.booleans())) as reader:
        for file, key in enumerate(data_files(config).keys):
            for index, expected in enumerate(expected_samples(config, file)):
                sample = reader.read(key, index)
                if name == "jpeg":
                    assert expected.shape == sample.shape
                else:
                    assert expected.tobytes() == sample.tobytes()


@pytest.mark.parametrize("name", [name for name in sorted(FILE_FORMATS) if name not in IMAGES])
def test_records_of_other_dimensions_and_types_keep_their_bytes(tmp_path, name):
    config = configure(tmp_path, name, record_dims=[3, 5, 2], record_element_type="int16", num_samples_per_file=3)
    generate(config)

    assert [sample.tobytes() for sample in expected_samples(config, 1)] == [
        read_sample(config.dataset, 1, index, storage=config.storage).tobytes() for index in range(3)
    ]


def test_names_are_those_of_dlio(tmp_path):
    config = configure(tmp_path, "npz", num_files_train=12, num_subfolders_train=3, file_prefix="part")

    assert "data/train/1/part_04_of_12.npz" == data_files(config).keys[4]
    assert (
        "data/train/part_0_of_2.csv.gz"
        == data_files(configure(tmp_path, "csv", compression="gzip", file_prefix="part")).keys[0]
    )


def test_npz_holds_samples_on_the_last_axis_and_labels(tmp_path):
    config = configure(tmp_path, "npz", num_samples_per_file=3)
    generate(config)

    with np.load(tmp_path / data_files(config).keys[0]) as arrays:
        assert (20, 20, 3) == arrays["x"].shape
        assert [0, 0, 0] == arrays["y"].tolist()


def test_hdf5_splits_the_rows_of_a_record_over_data_sets(tmp_path):
    h5py = pytest.importorskip("h5py")
    config = configure(
        tmp_path, "hdf5", num_samples_per_file=3, enable_chunking=True, chunk_size=16, hdf5={"num_dset_per_record": 2}
    )
    generate(config)

    with h5py.File(tmp_path / data_files(config).keys[0]) as file:
        assert ["labels", "records_0", "records_1"] == sorted(file)
        assert (3, 10, 20) == file["records_0"].shape
        assert (1, 4, 4) == file["records_1"].chunks


def test_an_index_of_raw_samples_goes_on_from_sample_to_sample(tmp_path):
    config = configure(tmp_path, "indexed_binary", num_samples_per_file=3)
    generate(config)
    key = data_files(config).keys[0]

    assert [0, 400, 800] == np.fromfile(tmp_path / f"{key}.off.idx", "<i8").tolist()
    assert [400, 400, 400] == np.fromfile(tmp_path / f"{key}.sz.idx", "<u8").tolist()


def test_an_index_of_records_has_a_line_for_each_with_its_framing(tmp_path):
    config = configure(tmp_path, "tfrecord", num_samples_per_file=3)
    generate(config)
    key = data_files(config).keys[1]
    data = (tmp_path / key).read_bytes()
    lines = (tmp_path / "data/index/train" / f"{key.rpartition('/')[2]}.idx").read_text().splitlines()
    offsets = [tuple(map(int, line.split())) for line in lines]

    assert 3 == len(offsets)
    assert len(data) == sum(offsets[-1])
    assert all(length == struct.unpack_from("<Q", data, offset)[0] + 16 for offset, length in offsets)


def test_records_without_an_index_are_found_by_walking(tmp_path):
    config = configure(tmp_path, "tfrecord", num_samples_per_file=3)
    generate(config)
    for path in (tmp_path / "data/index/train").iterdir():
        path.unlink()

    assert (
        expected_samples(config, 1)[2].tobytes() == read_sample(config.dataset, 1, 2, storage=config.storage).tobytes()
    )


def test_shards_are_plain_tar_archives(tmp_path):
    config = configure(tmp_path, "webdataset", num_samples_per_file=2)
    generate(config)

    with tarfile.open(tmp_path / data_files(config).keys[0]) as archive:
        assert ["000000.bin", "000000.cls", "000001.bin", "000001.cls"] == archive.getnames()


@given(st.binary(max_size=200))
def test_the_checksum_equals_its_definition(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)

    assert crc ^ 0xFFFFFFFF == crc32c(data)


@pytest.mark.parametrize("name", sorted(FILE_FORMATS))
@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.97])
def test_a_cut_file_names_itself_and_the_sample(tmp_path, name, keep):
    config = configure(tmp_path, name, num_samples_per_file=1 if name in IMAGES else 4, record_length_bytes=2500)
    generate(config)
    key = data_files(config).keys[1]
    data = (tmp_path / key).read_bytes().rstrip(b"\0") if name == "webdataset" else (tmp_path / key).read_bytes()
    (tmp_path / key).write_bytes(data[: int(len(data) * keep)])

    with pytest.raises(InputError) as caught:
        read_sample(config.dataset, 1, config.dataset.num_samples_per_file - 1, storage=config.storage)

    assert f"{key}: sample" in caught.value.where
    assert "damaged or of another format" in caught.value.message


@pytest.mark.parametrize("name", ["npz", "npy", "hdf5", "tfrecord", "png", "csv", "parquet", "webdataset"])
def test_a_file_of_another_format_is_named(tmp_path, name):
    config = configure(tmp_path, name)
    generate(config)
    image = io.BytesIO()
    pytest.importorskip("PIL.Image").new("L", (9, 9)).save(image, "JPEG")
    key = data_files(config).keys[0]
    (tmp_path / key).write_bytes(image.getvalue())

    with pytest.raises(InputError, match="damaged or of another format") as caught:
        read_sample(config.dataset, 0, 0, storage=config.storage)

    assert f"{key}: sample 0" == caught.value.where
    assert "JPEG" in str(caught.value) or name in ("tfrecord", "csv", "webdataset")


@pytest.mark.parametrize(("position", "words"), [(9, "CRC of the length"), (-20, "CRC of the data")])
def test_a_wrong_checksum_names_file_sample_and_byte(tmp_path, position, words):
    config = configure(tmp_path, "tfrecord")
    generate(config)
    path = tmp_path / data_files(config).keys[0]
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)

    with pytest.raises(InputError, match=words) as caught:
        read_sample(config.dataset, 0, 0, storage=config.storage)

    assert "img_0_of_2.tfrecord: sample 0" in caught.value.where


@pytest.mark.parametrize("name", sorted(FILE_FORMATS))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(max_size=300), start=st.integers(0, 600))
def test_a_damaged_file_never_raises_anything_else(tmp_path, name, noise, start):
    config = configure(tmp_path, name)
    if not (tmp_path / data_files(config).keys[0]).exists():
        generate(config)
        (tmp_path / "whole").write_bytes((tmp_path / data_files(config).keys[0]).read_bytes())
    data = bytearray((tmp_path / "whole").read_bytes())
    data[start : start + len(noise)] = noise
    (tmp_path / data_files(config).keys[0]).write_bytes(data)

    with suppress(InputError):
        read_sample(config.dataset, 0, 0, storage=config.storage)


def test_a_sample_that_the_file_lacks_is_an_error(tmp_path):
    for name in sorted(set(FILE_FORMATS) - set(IMAGES)):
        config = configure(tmp_path / name, name, num_samples_per_file=2)
        generate(config)
        with pytest.raises(InputError, match="sample 2"):
            read_sample(config.dataset, 0, 2, storage=config.storage)


def test_a_missing_file_says_how_to_make_it(tmp_path):
    config = configure(tmp_path, "npz")

    with pytest.raises(InputError, match=r"(?s)not there.*dataio run"):
        read_sample(config.dataset, 0, 0, storage=config.storage)


def test_images_hold_one_sample(tmp_path):
    with pytest.raises(InputError, match="num_samples_per_file: 1"):
        generate(configure(tmp_path, "png", num_samples_per_file=2))


def test_reads_past_the_page_cache_give_the_same(tmp_path):
    for name in ("npy", "npz"):
        config = configure(tmp_path / name, name, record_length_bytes=9000)
        generate(config)
        with SampleReader(config.dataset, config.storage, is_direct=True) as reader:
            assert expected_samples(config, 0)[0].tobytes() == reader.read(data_files(config).keys[0], 0).tobytes()


def test_the_description_of_a_data_set_lies_next_to_it(tmp_path):
    generate(configure(tmp_path, "npz"))

    assert "npz" == json.loads((tmp_path / "data/.windtunnel.json").read_text())["format"]
