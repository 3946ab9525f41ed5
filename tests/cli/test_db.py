import json
from dataclasses import replace

import pytest

from tests.cli.command import windtunnel
from windtunnel.measure import ProfileDatabase
from windtunnel.measure.database import Measurement


@pytest.fixture
def measured(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    autocast = Measurement("aten::relu", "[4]", "forward", "as captured -> autocast=bfloat16 (method 2)", 1, "a cpu",
                           "torch", 10.0, 6.0, spread_ratio=0.04)  # fmt: skip
    update = replace(autocast, phase="update", change='[{"fused":true,"foreach":false},[],0]')
    ProfileDatabase().add([autocast, update])


def test_measured_prices_are_listed_by_change_and_forgotten(measured):
    listed = json.loads(windtunnel("db", "prices", "--json").stdout)["prices"]

    assert {"autocast=bfloat16", "update: fused"} == {row["change"] for row in listed}
    assert {0.04} == {row["median_spread_ratio"] for row in listed}
    assert not any(row["is_this_host"] for row in listed)
    assert "2 measurements in" in windtunnel("db", "prices").stdout
    assert 1 == json.loads(windtunnel("db", "forget", "--prices", "autocast", "--json").stdout)["num_prices"]
    assert "removed 1 measurements" in windtunnel("db", "forget", "--prices", "all").stdout


def test_updates_of_other_shapes_and_sparse_gradients_are_listed(measured):
    known = next(iter(ProfileDatabase()))
    changes = ('[{},[],2,{"weight":[6,2]}]', '[{},[],0,{"sparse":["weight"]}]')
    ProfileDatabase().add([replace(known, phase="update", change=change) for change in changes])

    listed = json.loads(windtunnel("db", "prices", "--json").stdout)["prices"]

    assert {"update: threads=2, other shapes", "update: sparse gradients"} < {row["change"] for row in listed}


def test_forget_says_what_it_needs(tmp_path):
    assert "there is nothing to remove" in windtunnel("db", "forget").stderr
    done = windtunnel("db", "forget", "--receipts", "twelve", "--ledger", tmp_path / "none.db")
    assert 2 == done.code
    assert "is no list of whole numbers" in done.stderr
