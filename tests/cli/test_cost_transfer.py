"""``cost transfer``: what to measure, then all others; nets whose latency is a price list of parts."""

import csv
import json

import numpy as np
import pytest

from windtunnel.cli import main
from windtunnel.systems.utilization.cells.transfer import METHODS

PARTS = np.random.default_rng(0).integers(0, 4, (80, 4))
PRICES = np.random.default_rng(1).uniform(0.5, 2.0, (4, 7))
LATENCY_MS = 1.0 + PARTS @ PRICES
NEW_MS = 3 * (1.0 + PARTS @ PRICES.mean(axis=1))


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "latencies.csv"
    rows = [",".join([f"net{row}", *map(str, one)]) for row, one in enumerate(LATENCY_MS.tolist())]
    path.write_text("\n".join(["net," + ",".join(f"d{column}" for column in range(7)), *rows]) + "\n")
    return path


def run(capsys, *arguments):
    code = main(list(map(str, ("cost", "transfer", *arguments))))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_new_device_from_a_handful_of_nets(capsys, table, tmp_path):
    wanted, found = tmp_path / "wanted.csv", tmp_path / "found.csv"

    code, _, err = run(capsys, table, "--samples", 8, "--out", wanted)

    assert 0 == code, err
    names = [row["net"] for row in csv.DictReader(wanted.read_text().splitlines())]
    assert 8 == len(set(names))
    lines = [f"{name},{NEW_MS[int(name.removeprefix('net'))]}" for name in names]
    wanted.write_text("\n".join(["net,latency_ms", *lines]) + "\n")
    code, out, err = run(capsys, table, "--measured", wanted, "--out", found)
    assert 0 == code, err
    assert "80 nets from 8 measured ones by " in out
    assert "% off on nets left out" in out
    rows = list(csv.DictReader(found.read_text().splitlines()))
    mean, low, high = (np.array([float(row[key]) for row in rows]) for key in ("latency_ms", "low_ms", "high_ms"))
    np.testing.assert_allclose(mean, NEW_MS, rtol=0.1)
    assert ((low <= mean) & (mean <= high)).all()


def test_a_known_device_shows_how_good_it_is(capsys, table):
    code, out, _ = run(capsys, table, "--device", "d3", "--samples", 8, "--json")
    document = json.loads(out)

    assert 0 == code
    assert document["rank_correlation"] > 0.9
    assert document["mean_ape"] < 0.2
    assert document["method"] in METHODS
    assert {*METHODS} == set(document["errors"])
    assert 0 <= document["coverage_of_90"] <= 1
    assert "Spearman" in run(capsys, table, "--device", "d3")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "d9"), "no latencies on 'd9'"),
        (("--device", "d1", "--measured", "some.csv"), "give one of them"),
        (("--measured", "nowhere.csv"), "cannot be read"),
        (("--measured", "other.csv"), "'vgg' is not in the table"),
        (("--measured", "empty.csv"), "line 2"),
        (("--measured", "negative.csv"), "not above zero"),
        (("--samples", "90"), "90 samples of 80 nets"),
        (("--out", "latencies.csv"), "is there already"),
    ],
)
def test_wrong_wishes_are_answered_with_two(capsys, table, monkeypatch, arguments, message):
    monkeypatch.chdir(table.parent)
    for name, row in {"other": "vgg,1.0", "empty": "net1,", "negative": "net1,-1"}.items():
        (table.parent / f"{name}.csv").write_text(f"net,latency_ms\n{row}\n")

    code, _, err = run(capsys, table, *arguments)

    assert 2 == code
    assert message in err
