"""The profile database keeps what was measured, whole or not at all."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import InputError, SchemaVersionError
from windtunnel.measure import ProfileDatabase
from windtunnel.measure.database import Measurement

RELU = Measurement("aten::relu", "[32] float", "forward", "threads=1", 2, "cpu", "torch", 10.0, 25.0, 0.1, 7, 1.0, 99)


def test_a_measurement_comes_back_as_it_was(tmp_path):
    ProfileDatabase(tmp_path / "folder" / "profile.db").add([RELU])
    again = ProfileDatabase(tmp_path / "folder" / "profile.db")

    assert RELU == again.find(RELU.key)
    assert [RELU] == list(again)
    assert 2.5 == RELU.ratio


def test_a_new_measurement_replaces_the_old_one(tmp_path):
    database = ProfileDatabase(tmp_path / "profile.db")
    database.add([RELU])
    newer = Measurement(*RELU.key, 10.0, 30.0)
    database.add([newer])

    assert 1 == len(database)
    assert 3.0 == database.find(RELU.key).ratio


def test_what_was_measured_on_a_busy_machine_is_not_trusted_for_long():
    steady, old = RELU, Measurement(*RELU.key, 10.0, 25.0, spread_ratio=0.9, measured_at=99)
    fresh = Measurement(*RELU.key, 10.0, 25.0, spread_ratio=0.9, measured_at=int(time.time()))

    assert [True, False, True] == [one.is_trusted for one in (steady, old, fresh)]


def test_another_machine_or_library_is_another_measurement(tmp_path):
    database = ProfileDatabase(tmp_path / "profile.db")
    database.add([RELU])
    for place in range(len(RELU.key)):
        other = tuple("other" if row == place else value for row, value in enumerate(RELU.key))
        assert database.find(other) is None


def test_a_database_that_does_not_exist_is_empty_and_is_not_made_by_looking(tmp_path):
    database = ProfileDatabase(tmp_path / "profile.db")

    assert 0 == len(database)
    assert [] == list(database)
    assert {} == database.find_all([RELU.key])
    assert not (tmp_path / "profile.db").exists()


def test_a_failed_write_leaves_nothing(tmp_path):
    database = ProfileDatabase(tmp_path / "profile.db")
    broken = Measurement(*RELU.key[:-1], None, 1.0, 2.0)  # a key may not be null
    with pytest.raises(sqlite3.IntegrityError):
        database.add([RELU, broken])

    assert 0 == len(database)


def test_a_file_that_is_no_database_is_named(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to look like a header of one" * 50)
    with pytest.raises(InputError, match="no profile database") as caught:
        ProfileDatabase(path).add([RELU])

    assert str(path) in str(caught.value)


def test_a_newer_database_is_refused(tmp_path):
    path = tmp_path / "profile.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(SchemaVersionError, match="version 99"):
        len(ProfileDatabase(path))


def test_several_writers_lose_nothing(tmp_path):
    path = tmp_path / "profile.db"
    rows = [Measurement(f"op{number}", *RELU.key[1:], 1.0, 2.0) for number in range(12)]
    writers = [threading.Thread(target=ProfileDatabase(path).add, args=([row],)) for row in rows]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert 12 == len(ProfileDatabase(path))


@given(st.text(max_size=40), st.text(max_size=40))
def test_hostile_names_are_only_values(operator, signature):
    encodable = [text.encode("utf-8", "replace").decode() for text in (operator, signature)]
    database = ProfileDatabase(":memory:")
    row = Measurement(*encodable, *RELU.key[2:], 1.0, 2.0)
    database.add([row, RELU])

    assert row.ratio == database.find(row.key).ratio
    assert 2 == len(database)


def test_what_was_measured_before_is_not_looked_at_where_all_is_measured_anew(tmp_path):
    old = Measurement("aten::relu", "[4]", "forward", "x -> y", 1, "cpu", "torch", 10.0, 6.0, measured_at=1000)
    ProfileDatabase(tmp_path / "p.db").add([old])
    fresh = ProfileDatabase(tmp_path / "p.db", since=2000)

    assert fresh.find(old.key) is None
    fresh.add([replace(old, new_ns=7.0, measured_at=3000)])
    assert 7.0 == fresh.find(old.key).new_ns
    assert 1 == len(fresh)


def test_measurements_of_a_change_are_forgotten_alone(tmp_path):
    one = Measurement("aten::relu", "[4]", "forward", "as captured -> amp", 1, "cpu", "torch", 10.0, 6.0)
    database = ProfileDatabase(tmp_path / "p.db")
    database.add([one, replace(one, change="as captured -> threads=1")])

    assert 1 == database.drop("amp")
    assert ["as captured -> threads=1"] == [kept.change for kept in database]
    assert 1 == database.drop()
    assert 0 == ProfileDatabase(tmp_path / "none.db").drop()


@pytest.mark.parametrize(
    ("column", "value"), [("old_ns", "fast"), ("new_ns", float("inf")), ("rounds", 1.5), ("measured_at", b"\xff")]
)
def test_a_damaged_measurement_names_its_key_and_column(tmp_path, column, value):
    database = ProfileDatabase(tmp_path / "profile.db")
    database.add([RELU])
    with closing(sqlite3.connect(database.path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE measurements SET {column} = ?", (value,))

    with pytest.raises(InputError, match=f"the measurement's {column} is") as caught:
        list(database)
    assert "'aten::relu'" in caught.value.where


def test_text_of_the_database_that_is_no_utf8_is_told(tmp_path):
    database = ProfileDatabase(tmp_path / "profile.db")
    database.add([RELU])
    with closing(sqlite3.connect(database.path, isolation_level=None)) as connection:
        connection.execute("UPDATE measurements SET machine = CAST(x'ff' AS TEXT)")

    with pytest.raises(InputError, match="the profile database cannot be used"):
        list(database)
