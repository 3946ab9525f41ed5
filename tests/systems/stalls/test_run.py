"""Files on a disk, and runs that are really made."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from windtunnel.cli import main  # noqa: E402
from windtunnel.errors import InputError  # noqa: E402
from windtunnel.hardware.host import usable_cores  # noqa: E402
from windtunnel.measure.disks import (  # noqa: E402
    can_throttle,
    evict,
    read_all,
    read_at,
    require_disk,
    resident_share,
    throttle_disk,
)
from windtunnel.measure.links import Bucket  # noqa: E402
from windtunnel.measure.spaces import can_shape  # noqa: E402
from windtunnel.systems.stalls.files import BatchFiles, batch_of, write_batches  # noqa: E402
from windtunnel.systems.stalls.job import job_of  # noqa: E402
from windtunnel.systems.stalls.model import CAUSES, RUNS  # noqa: E402
from windtunnel.systems.stalls.run import Surroundings, measure_stalls  # noqa: E402

two_cores = pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
shapes_links = pytest.mark.skipif(not can_shape(), reason="needs network namespaces")


def some_file(folder: Path, size_bytes: int = 1 << 20) -> Path:
    path = folder / "some.bin"
    path.write_bytes(os.urandom(size_bytes))
    return path


def test_files_leave_memory_when_they_are_dropped_and_come_back_when_they_are_read(tmp_path):
    try:
        require_disk(tmp_path)
    except InputError:
        pytest.skip("the temporary folder lies in memory")
    path = some_file(tmp_path)
    evict([path])
    dropped = resident_share([path])
    size_bytes, _ = read_all([path])

    assert dropped < 0.02
    assert (1 << 20, 1.0) == (size_bytes, resident_share([path]))


def test_a_folder_in_memory_is_refused():
    if not Path("/dev/shm").is_dir():
        pytest.skip("there is no /dev/shm")
    with pytest.raises(InputError, match="nothing in memory is impossible"):
        require_disk(Path("/dev/shm"))


def test_a_limited_reader_is_no_faster_than_its_rate(tmp_path):
    path = some_file(tmp_path, 400_000)
    bucket = Bucket(4e6)
    import time

    begun_ns = time.monotonic_ns()
    data = read_at(path, bucket)
    took_s = (time.monotonic_ns() - begun_ns) / 1e9

    assert path.read_bytes() == data
    assert took_s >= 0.1


@pytest.mark.skipif(not can_throttle(), reason="may mount no throttled disk")
def test_a_throttled_disk_reads_at_its_rate_and_is_gone_afterwards(tmp_path):
    with throttle_disk(tmp_path, 4e6, 2_000_000) as folder:
        path = some_file(folder, 2_000_000)
        evict([path])
        size_bytes, took_ns = read_all([path])

    assert 0 < size_bytes / took_ns * 1e9 < 1.3 * 4e6
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not can_throttle(), reason="may mount no throttled disk")
def test_what_a_killed_process_left_mounted_is_swept(tmp_path):
    code = """
import os, pathlib, sys
from windtunnel.measure.disks import throttle_disk
with throttle_disk(pathlib.Path(sys.argv[1]), 1e6, 1000):
    os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    (left,) = tmp_path.iterdir()
    assert -9 == done.returncode
    assert (left / "mounted").is_mount()
    with throttle_disk(tmp_path, 1e6, 1000):
        assert not (left / "mounted").is_mount()


def test_where_no_disk_may_be_throttled_the_reader_is(tmp_path, monkeypatch):
    monkeypatch.setattr("windtunnel.systems.stalls.run.can_throttle", lambda: False)
    around = Surroundings(disk_bytes_per_s=1e6)

    assert not around.is_throttled
    monkeypatch.setattr("windtunnel.measure.disks.can_throttle", lambda: False)
    with pytest.raises(InputError, match="may mount no throttled disk"), throttle_disk(tmp_path, 1e6, 1):
        pass


def test_an_image_comes_back_cut_out_and_perhaps_mirrored(tmp_path):
    job = job_of("relu-network:batch_size=3")
    (path,) = write_batches(job, tmp_path, 1)
    with np.load(path) as stored:
        whole, target = stored["input0"], stored["target"]
    (used,), found = batch_of(path.read_bytes(), np.random.default_rng(1))
    height, width = used.shape[2:]

    assert np.array_equal(target, found)
    assert whole.shape[2:] == (height + 8, width + 8)
    for row in range(3):
        back = np.rint((used[row].numpy() + 1) * 127.5).astype(np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(whole[row], (height, width), axis=(1, 2))
        seen = [window for line in windows.transpose(1, 2, 0, 3, 4) for window in line]
        assert any(np.array_equal(back, one) or np.array_equal(back[:, :, ::-1], one) for one in seen)


def test_what_is_no_image_comes_back_as_it_is(tmp_path):
    job = job_of("decoder-lm:size=tiny")
    (path,) = write_batches(job, tmp_path, 1)
    with np.load(io.BytesIO(path.read_bytes())) as stored:
        words = stored["input0"]
    (used,), _ = batch_of(path.read_bytes(), np.random.default_rng(0))

    assert np.array_equal(words, used.numpy())


def test_files_come_in_turn_without_end(tmp_path):
    paths = write_batches(job_of("mlp:batch_size=2"), tmp_path, 3)
    drawn = iter(BatchFiles(paths, 0, lambda: 0.0))
    targets = [next(drawn)[1] for _ in range(6)]

    assert all(torch.equal(targets[at], targets[at + 3]) for at in range(3))


@pytest.mark.slow
@two_cores
@shapes_links
def test_a_slow_network_is_named_and_really_measured(tmp_path):
    """A megabyte of gradients at 10 MB/s takes 0.1 s; nothing else here takes as long."""
    around = Surroundings(10e6, folder=tmp_path)
    found = measure_stalls("mlp:batch_size=8,width=250,depth=4", around, num_batches=2, num_turns=2)
    one = {stall.cause: stall for stall in found.stalls}["network"]
    size_bytes = 4 * sum(
        parameter.numel() for parameter in job_of("mlp:batch_size=8,width=250,depth=4").model.parameters()
    )

    assert list(RUNS) == list(found.times_ns)
    assert "network" == found.bottleneck
    assert one.per_iteration_ns.value > 0.7e9 * size_bytes / 10e6
    assert found.environment["link"]["measured_bytes_per_s"] == pytest.approx(10e6, rel=0.05)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@two_cores
def test_a_slow_disk_is_named(tmp_path, capsys):
    """Batches of about 230 kB at half a MB/s for each rank."""
    asked = [
        "stalls",
        "relu-network:batch_size=64",
        "--disk-bandwidth",
        "1MB/s",
        "--folder",
        str(tmp_path),
        "--batches",
        "2",
        "--rounds",
        "2",
    ]
    page = tmp_path / "stalls.html"

    assert main([*asked, "--json", "--html", str(page)]) == 0
    (found,) = json.loads(capsys.readouterr().out)["jobs"]
    assert "fetch" == found["bottleneck"]
    assert [cause for cause in CAUSES if cause != "network"] == [
        one["cause"] for one in found["stalls"] if one["cause"] != "interconnect"
    ]
    assert "to 1 MB/s" in found["environment"]["disk"]
    assert "<h1>Stalls of relu-network:batch_size=64</h1>" in page.read_text(encoding="utf-8")


@two_cores
def test_it_prints_what_was_not_detected_too(capsys):
    assert main(["stalls", "mlp:batch_size=4", "--no-files", "--batches", "2", "--rounds", "2"]) == 0
    said = capsys.readouterr().out

    assert "bottleneck:" in said
    assert "all ranks at once, each for itself" in said
    assert "fetch" not in said


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("gan", "more than one model"),
        ("nothing", "nothing"),
        ("absent.py:make", "there is no such file"),
        ("mlp:widht=3", "did you mean"),
    ],
)
def test_what_is_no_job_is_refused(job, said, capsys):
    assert 2 == main(["stalls", job, "--no-files"])
    assert said in capsys.readouterr().err
