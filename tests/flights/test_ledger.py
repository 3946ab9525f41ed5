"""The receipts ledger: what goes in comes out, whoever writes and whatever the names are."""

import json
import sqlite3
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import InputError, SchemaVersionError
from windtunnel.flights.ledger import Ledger
from windtunnel.flights.receipt import Receipt, table_of
from windtunnel.measure.stats import Estimate

HOSTILE = [
    "'; DROP TABLE receipts; --",
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "\udcff\ud800",
    "\x00\x1b[31m",
    "n" * 100_000,
]


def receipt(whatif="amp", *, predicted_ns=50.0, speedup=2.0, target="train.py", **more):
    changed = Estimate(100.0 / speedup, 99.0 / speedup, 101.0 / speedup)
    return Receipt(
        whatif=whatif,
        predicted_baseline_ns=100.0,
        predicted_ns=predicted_ns,
        baseline=Estimate(100.0, 99.0, 101.0),
        changed=changed,
        speedup=Estimate(speedup, speedup * 0.98, speedup * 1.02),
        target=target,
        **more,
    )


def add_some(path, first, number):
    for place in range(number):
        Ledger(path).add(receipt(target=f"{first + place}"))


def test_a_receipt_comes_back_as_it_went_in(tmp_path):
    ledger = Ledger(tmp_path / "deep" / "receipts.db")
    first = receipt("batch-size", parameters={"factor": 2}, notes=("still drifting",), num_rounds=25)
    second = receipt("amp")
    ledger.add(first)
    ledger.add(second)

    assert [first, second] == ledger.receipts()
    assert [second] == ledger.receipts("amp")
    assert 2 == len(ledger)


def test_a_ledger_that_is_not_there_is_empty_and_is_not_made_by_reading(tmp_path):
    ledger = Ledger(tmp_path / "receipts.db")

    assert [] == ledger.receipts()
    assert 0 == len(ledger)
    assert not ledger.path.exists()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_change_nothing_but_the_text(tmp_path, name):
    ledger = Ledger(tmp_path / "receipts.db")
    ledger.add(receipt(name, target=name))
    ledger.add(receipt("amp"))

    shown = name.encode(errors="replace").decode()

    assert [shown, "amp"] == [kept.whatif for kept in ledger.receipts()]
    assert 2 == len(ledger)


@settings(max_examples=20)
@given(name=st.text(), target=st.text())
def test_any_text_can_be_a_name(tmp_path_factory, name, target):
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "receipts.db")
    ledger.add(receipt(name, target=target))

    assert [target] == [kept.target for kept in ledger.receipts(name)]


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    path = tmp_path / "receipts.db"
    with ProcessPoolExecutor(4) as pool:
        for future in [pool.submit(add_some, path, 100 * worker, 10) for worker in range(4)]:
            future.result()

    expected = sorted(str(100 * worker + place) for worker in range(4) for place in range(10))
    assert expected == sorted(kept.target for kept in Ledger(path).receipts())


def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("my notes " * 1000)

    with pytest.raises(InputError, match=r"cannot be used[\s\S]*notes\.txt[\s\S]*--ledger"):
        Ledger(path).add(receipt())
    assert "my notes " * 1000 == path.read_text()


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE receipts (x)")
    other.close()
    before = path.read_bytes()

    for use in (lambda: Ledger(path).add(receipt()), Ledger(path).receipts):
        with pytest.raises(InputError, match="not a receipts ledger"):
            use()
    assert before == path.read_bytes()


def test_a_ledger_of_a_newer_version_is_refused(tmp_path):
    ledger = Ledger(tmp_path / "receipts.db")
    ledger.add(receipt())
    with sqlite3.connect(ledger.path) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()

    with pytest.raises(SchemaVersionError, match="schema version 99"):
        ledger.receipts()


def test_a_receipt_prints_prediction_beside_measurement():
    line = str(receipt(predicted_ns=52.5, num_rounds=25))

    assert line == "amp  predicted 1.90x, measured 2.00x (1.96-2.04, 90%), off by +5.0%; 100 ns -> 50 ns, 25 rounds"


def test_the_error_is_that_of_the_iteration_time():
    kept = receipt(predicted_ns=55.0, speedup=2.0)

    assert pytest.approx(0.1) == kept.error_ratio
    assert pytest.approx(0.1) == kept.absolute_error_ratio


def test_receipts_are_a_table_with_units_in_the_column_names():
    table = table_of([receipt("amp"), receipt("gc-pauses")])

    assert ["amp", "gc-pauses"] == table["whatif"].to_pylist()
    assert [50.0, 50.0] == table["changed_ns"].to_pylist()
    assert {"speedup_low", "baseline_high_ns", "error_ratio"} <= set(table.column_names)


def with_row(tmp_path, column, value):
    ledger = Ledger(tmp_path / "receipts.db")
    ledger.add(receipt())
    ledger.add(receipt("batch-size"))
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE receipts SET {column} = ? WHERE id = 2", (value,))
    return ledger


def changed_document(**entries):
    return json.dumps({**receipt().to_dict(), **entries})


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[]", "a receipt is a mapping, not a list"),
        ("{}", "missing required field `whatif`"),
        ("[" * 100_000, "nested too deeply"),
        (b"\xff", "the receipt is a bytes instead of text"),
        (7, "'7'|mapping"),
        (changed_document(predicted_ns=0), "predicted_ns of a receipt is 0"),
        (changed_document(predicted_ns="fast"), "predicted_ns"),
        (changed_document(predicted_ns=float("nan")), "predicted_ns of a receipt is nan"),
        (changed_document(speedup={"value": -1.0, "low": 1.0, "high": 1.0}), "speedup.value of a receipt is -1"),
        (changed_document(notes=7), "notes"),
        (changed_document(parameters={"factor": float("inf")}), "a number of this receipt is not finite"),
    ],
)
def test_a_damaged_receipt_names_its_row(tmp_path, document, says):
    ledger = with_row(tmp_path, "document", document)

    with pytest.raises(InputError, match=says) as caught:
        ledger.receipts()
    assert f"{ledger.path}: row 2, column document" == caught.value.where
    assert "db forget --receipts NUMBER removes this row" in caught.value.fix


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("log_residual", "x"),
        ("log_residual", float("inf")),
        ("whatif", b"\xff"),
        ("subject", b"a"),
        ("family", b"\x00"),
    ],
)
def test_a_damaged_residual_names_its_row_and_column(tmp_path, column, value):
    ledger = with_row(tmp_path, column, value)

    with pytest.raises(InputError, match=f"the receipt's {column} is") as caught:
        ledger.residuals()
    assert f"{ledger.path}: row 2, column {column}" == caught.value.where


def test_a_ledger_without_its_table_is_refused(tmp_path):
    """A view of that name could run for ever."""
    ledger = Ledger(tmp_path / "receipts.db")
    ledger.add(receipt())
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as connection:
        connection.execute("DROP TABLE receipts")
        connection.execute("CREATE VIEW receipts AS SELECT 1 AS id, 'x' AS document")

    with pytest.raises(InputError, match="the ledger has no table receipts"):
        ledger.receipts()


def test_a_flight_that_others_disturbed_is_kept_and_is_no_evidence(tmp_path):
    ledger = Ledger(tmp_path / "receipts.db")
    ledger.add(receipt("amp", neighbors_ratio=0.6))
    ledger.add(receipt("amp", neighbors_ratio=0.01))

    assert 2 == len(ledger.receipts())
    assert 1 == len(ledger.residuals())


def test_receipts_are_dropped_all_or_none(tmp_path):
    ledger = Ledger(tmp_path / "receipts.db")
    for target in ("a", "b", "c"):
        ledger.add(receipt(target=target))

    with pytest.raises(InputError, match="there is no receipt 9") as caught:
        ledger.drop([2, 9])
    assert str(ledger.path) == caught.value.where
    assert ["a", "b", "c"] == [one.target for one in ledger.receipts()]
    assert 1 == ledger.drop([2])
    assert ["a", "c"] == [one.target for one in ledger.receipts()]
