"""Storage: the same data set on a disk and on a server that speaks S3; one clear error for what fails."""

import json
import pickle
import shutil
import warnings
from dataclasses import replace

import pytest

from tests.cli.command import windtunnel
from windtunnel.errors import InputError
from windtunnel.systems.dataio.config import StorageConfig
from windtunnel.systems.dataio.config_file import dump_config, parse_config
from windtunnel.systems.dataio.generate import data_files, generate, random_samples
from windtunnel.systems.dataio.reading import SampleReader
from windtunnel.systems.dataio.storage import LocalStorage, S3Storage, open_storage

# libraries of the service, not ours
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def server():
    """The address of a server on this machine with a bucket ``data``."""
    pytest.importorskip("s3fs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
    host, port = server.get_host_and_port()
    S3Storage("x", options(f"http://{host}:{port}"))  # options are known
    import s3fs

    s3fs.S3FileSystem(key="user", secret="word", endpoint_url=f"http://{host}:{port}").mkdir("data")
    yield f"http://{host}:{port}"
    server.stop()


def options(endpoint, **more):
    return {
        "endpoint_url": endpoint,
        "region": "us-east-1",
        "access_key_id": "user",
        "secret_access_key": "word",
        "max_attempts": 1,
        "connect_timeout_s": 2,
        **more,
    }


def configure(endpoint, root="s3://data/set", **dataset):
    return parse_config(
        {
            "storage": {"storage_type": "s3", "storage_root": root, "storage_options": options(endpoint)},
            "dataset": {"num_files_train": 2, "num_samples_per_file": 2, "record_length_bytes": 900, **dataset},
        }
    )


SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("hdf5", "csv", "tfrecord", "indexed_binary", "parquet", "webdataset")
]


@pytest.mark.parametrize("name", ["npz", *SLOW])
def test_a_data_set_on_s3_is_read_as_it_was_written(server, name):
    config = configure(server, format=name, data_folder=f"set-{name}")
    assert 2 == generate(config).num_written
    assert 2 == generate(config).num_kept

    files = data_files(config)
    expected = list(random_samples(files.layout(1), 10, is_eval=False, file=1))
    with SampleReader(config.dataset, config.storage) as reader:
        for index in (1, 0):
            assert expected[index].tobytes() == reader.read(files.keys[1], index).tobytes()


@pytest.mark.slow
def test_a_job_whose_files_are_on_s3_is_predicted_planned_and_verified(server, tmp_path):
    path = tmp_path / "job.yaml"
    config = configure(server, format="npy", data_folder="job", num_files_train=24, num_samples_per_file=1)
    dump_config(replace(config, reader=replace(config.reader, batch_size=2, data_loader="pytorch")), path)
    costs, ledger = tmp_path / "costs.json", tmp_path / "receipts.db"

    predicted = windtunnel("dataio", "predict", path, "--out", costs, "--ledger", ledger)
    assert predicted.code == 0, predicted.stderr
    left = open_storage(config.storage).sizes("")  # of other tests, but no sample
    assert [] == [name for name in left if name.startswith("job")]
    planned = windtunnel("dataio", "plan", path, "--costs", costs, "--workers", "0,1", "--prefetch", "2")
    assert planned.code == 0, planned.stderr
    words = ("--change", "reader.read_threads=0", "--rounds", "3", "--ledger", ledger, "--json")
    flown = windtunnel("dataio", "verify", path, "--costs", costs, *words)
    assert flown.code == 0, flown.stderr
    assert [1.0, 1.0] == json.loads(flown.stdout)["device_ratios"]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["predict", "plan", "verify", "run"])
def test_what_fails_on_s3_is_one_error(server, tmp_path, verb):
    import requests

    path = tmp_path / "job.yaml"
    more = ("--change", "reader.read_threads=0") if verb == "verify" else ()
    dump_config(configure(server, root="s3://absent/set", format="npy", num_files_train=24), path)
    missing = windtunnel("dataio", verb, path, *more)
    dump_config(configure(server, format="npy", num_files_train=24), path)
    requests.post(f"{server}/moto-api/reset-auth", data=b"0", timeout=10)
    try:
        refused = windtunnel("dataio", verb, path, *more)
    finally:
        requests.post(f"{server}/moto-api/reset-auth", data=b"inf", timeout=10)

    assert (2, 2) == (missing.code, refused.code)
    assert "there is no bucket 'absent'" in missing.stderr
    assert "refuses the credentials" in refused.stderr
    assert "Traceback" not in missing.stderr + refused.stderr


def test_a_missing_bucket_is_named(server):
    with pytest.raises(InputError, match="there is no bucket 'absent'"):
        generate(configure(server, root="s3://absent/set", format="npy"))


def test_a_missing_object_is_named(server):
    config = configure(server, format="npy", data_folder="nothing")

    with pytest.raises(InputError, match="the object is not there") as caught:
        SampleReader(config.dataset, config.storage).read(data_files(config).keys[0], 0)

    assert "s3://data/set/nothing/train/img_0_of_2.npy" in caught.value.where


def test_an_endpoint_that_does_not_answer_is_named():
    pytest.importorskip("s3fs")
    with pytest.raises(InputError, match=r"(?s)127\.0\.0\.1:9 does not answer.*endpoint_url"):
        generate(configure("http://127.0.0.1:9", format="npy"))


def test_wrong_credentials_are_named(server):
    import requests

    requests.post(f"{server}/moto-api/reset-auth", data=b"0", timeout=10)
    try:
        with pytest.raises(InputError, match=r"(?s)refuses the credentials.*access_key_id"):
            generate(configure(server, format="npy"))
    finally:
        requests.post(f"{server}/moto-api/reset-auth", data=b"inf", timeout=10)


def test_an_unknown_option_is_an_error():
    with pytest.raises(InputError, match="storage_options has no key 'endpoint'"):
        S3Storage("bucket", {"endpoint": "x"})


def test_a_bucket_has_to_be_named():
    with pytest.raises(InputError, match="names no bucket"):
        S3Storage("./", {})


def test_aistore_is_reached_through_its_gateway():
    with pytest.raises(InputError, match="AIStore speaks S3"):
        open_storage(StorageConfig(storage_type="aistore"))


def test_connections_stay_in_their_process():
    storage = pickle.loads(pickle.dumps(S3Storage("bucket/a", {"s3_force_path_style": True})))

    assert "bucket/a" == storage.root


def test_only_local_files_are_mapped(server):
    config = configure(server, format="mmap_indexed_binary")

    with pytest.raises(InputError, match="only local files can be mapped"):
        SampleReader(config.dataset, config.storage).read(data_files(config).keys[0], 0)


def test_a_vanished_mount_is_one_clear_error(tmp_path):
    config = parse_config(
        {
            "storage": {"storage_root": str(tmp_path / "mount")},
            "dataset": {"format": "npy", "num_files_train": 1, "data_folder": "set"},
        }
    )
    generate(config)
    reader = SampleReader(config.dataset, config.storage)
    reader.read(data_files(config).keys[0], 0)
    shutil.rmtree(tmp_path / "mount")

    with pytest.raises(InputError, match=r"(?s)storage does not answer.*is mounted"):
        reader.read(data_files(config).keys[0], 0)


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    storage = LocalStorage(str(tmp_path))

    def write():
        with storage.put("a/b") as path:
            path.write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert {} == storage.sizes("")
    assert [] == list((tmp_path / "a").iterdir())
