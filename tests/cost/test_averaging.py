"""What averaging gradients between processes of this host takes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from windtunnel.cost import ProfileDatabase
from windtunnel.cost.averaging import _SIZES_BYTES, _read, averaging_ns
from windtunnel.cost.database import Measurement
from windtunnel.cost.fingerprint import libraries, machine
from windtunnel.errors import PriceError


def known(tmp_path, added_ns: dict[int, float]) -> ProfileDatabase:
    database = ProfileDatabase(str(tmp_path / "profile.db"))
    database.add(
        Measurement(
            "DistributedDataParallel",
            f"{size} bytes",
            "backward",
            "gloo:2",
            1,
            machine(),
            libraries(),
            10.0,
            10.0 + added,
        )
        for size, added in added_ns.items()
    )
    return database


def test_between_measured_sizes_lies_a_line(tmp_path):
    database = known(tmp_path, {size: size / 2 for size in _SIZES_BYTES})

    assert 3 << 19 == averaging_ns(3 << 20, 2, database=database)
    assert 1 << 27 == averaging_ns(1 << 28, 2, database=database)
    assert 0 == averaging_ns(0, 2, database=database)


def test_processes_that_say_nothing_are_an_error_with_their_last_words():
    with pytest.raises(PriceError, match="could not be measured here: no route to host"):
        _read([("", "Traceback\nno route to host"), ("", "")], 2)


@pytest.mark.slow
def test_real_processes_take_longer_for_more_bytes(tmp_path):
    database = ProfileDatabase(str(tmp_path / "profile.db"))

    assert 0 < averaging_ns(1 << 20, 2, database=database) < averaging_ns(1 << 26, 2, database=database)


def test_threads_that_sleep_are_another_fingerprint_than_threads_that_spin(monkeypatch):
    """Else a ratio measured under one policy would price a step under the other."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    libraries.cache_clear()
    sleeping = libraries()
    monkeypatch.delenv("OMP_WAIT_POLICY")
    libraries.cache_clear()

    assert sleeping == f"{libraries()} passive"
