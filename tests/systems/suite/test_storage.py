"""A disk's rates come from bytes that were really written and read."""

import pytest

from windtunnel.errors import InputError
from windtunnel.systems.suite.storage import measure_disk


def test_a_folder_is_measured_and_left_empty(tmp_path):
    folder = tmp_path / "new"
    disk = measure_disk(folder, size_bytes=2**20)

    assert 2**20 == disk.size_bytes
    assert disk.write_bytes_per_s > 0
    assert disk.read_bytes_per_s > 0
    assert disk.is_read_cold in (True, False, None)
    assert [] == list(folder.iterdir())
    assert {"write_bytes_per_s", "read_bytes_per_s", "is_read_cold", "size_bytes"} == set(disk.json())


def test_a_folder_that_cannot_be_one_is_refused(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(InputError, match="the disk cannot be measured"):
        measure_disk(tmp_path / "file", size_bytes=10)
