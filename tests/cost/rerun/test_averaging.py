"""What averaging gradients between processes of this host takes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from windtunnel.cost.rerun.averaging import _SIZES_BYTES, _fly, _job, _key, averaging_ns, reducing_ns
from windtunnel.errors import PriceError
from windtunnel.measure import ProfileDatabase
from windtunnel.measure.database import Measurement
from windtunnel.measure.fingerprint import libraries


def known(tmp_path, jobs, num_ranks: int, added_ns: list[float], spread_ratio: float = 0.0) -> ProfileDatabase:
    database = ProfileDatabase(str(tmp_path / "profile.db"))
    database.add(
        Measurement(*_key(job, num_ranks), old_ns=10.0, new_ns=10.0 + added, spread_ratio=spread_ratio)
        for job, added in zip(jobs, added_ns, strict=True)
    )
    return database


def test_between_measured_sizes_lies_a_line_and_below_them_the_latency_stays(tmp_path):
    jobs = [_job([[size // 4 // 8]] * 8) for size in _SIZES_BYTES]
    database = known(tmp_path, jobs, 2, [size / 2 for size in _SIZES_BYTES])

    assert 3 << 19 == averaging_ns(3 << 20, 2, database=database)
    assert 1 << 27 == averaging_ns(1 << 28, 2, database=database)
    assert _SIZES_BYTES[0] / 2 == averaging_ns(0, 2, database=database)


def test_only_the_sizes_that_enclose_what_is_averaged_are_measured(tmp_path):
    """The largest takes longer than all others together, and says nothing of a small model."""
    jobs = [_job([[size // 4 // 8]] * 8) for size in _SIZES_BYTES[1:3]]
    database = known(tmp_path, jobs, 2, [size / 2 for size in _SIZES_BYTES[1:3]])

    assert 3 << 17 == averaging_ns(3 << 18, 2, database=database)
    assert 2 == len(database)


def test_what_is_added_says_how_far_it_varied(tmp_path):
    """A tenth of the whole pass, as a share of what is added to it."""
    job = _job([[64]])
    database = known(tmp_path, [job], 2, [40.0], spread_ratio=0.1)

    assert 0.125 == pytest.approx(reducing_ns([(64,)], 2, database=database).spread_ratio)


def test_what_a_reducer_adds_is_known_by_shapes_sender_and_buckets(tmp_path):
    job = _job([[64, 32], [64]], "powersgd", {"rank": 2}, 1 << 20, 1 << 10)
    database = known(tmp_path, [job], 2, [700.0])
    asked = {"sender": "powersgd", "bucket_bytes": 1 << 20, "first_bucket_bytes": 1 << 10, "database": database}

    assert 700 == reducing_ns([(64, 32), (64,)], 2, options={"rank": 2}, **asked)
    others = [_job([[64, 32]], *(job[name] for name in ("sender", "options"))), {**job, "options": {"rank": 4}}]
    assert 4 == len({_key(job, 2), _key(job, 3), *(_key(other, 2) for other in others)})


@pytest.mark.slow
def test_real_processes_compress_real_shapes(tmp_path):
    """With thin factors the hook's error feedback runs; a second asking reads the database."""
    database = ProfileDatabase(str(tmp_path / "profile.db"))
    flown = reducing_ns([(64, 64), (64,)], 2, sender="powersgd", options={"rank": 1}, database=database)

    assert 0 < flown == reducing_ns([(64, 64), (64,)], 2, sender="powersgd", options={"rank": 1}, database=database)
    assert 1 == len(database)


def test_processes_that_say_nothing_are_an_error_with_their_last_words():
    with pytest.raises(PriceError, match=r"could not be measured here: .*no sender"):
        _fly(1, [_job([[4]], "no sender")])


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
