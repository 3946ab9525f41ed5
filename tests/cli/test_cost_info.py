import json

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from dataclasses import replace

from tests.systems.tensor_programs.model.small_set import small_set
from windtunnel import registry
from windtunnel.cli.app import build_app
from windtunnel.errors import InputError
from windtunnel.measure import ProfileDatabase
from windtunnel.measure.database import Measurement


def run(*arguments):
    return CliRunner().invoke(
        build_app(registry.verbs("cost")), ["cost", *(str(argument) for argument in arguments)], catch_exceptions=False
    )


def test_every_cost_model_is_listed_with_its_source():
    document = json.loads(run("info", "--json").stdout)

    assert {"ast", "measured", "roofline", "tile"} <= {one["name"] for one in document["models"]}
    assert all(one["source"] and one["about"] for one in document["models"])
    assert "CDMPP" in run("info").stdout


def test_a_set_says_what_is_in_it(tmp_path):
    path = small_set(num_tasks=6, per_task=4).save(tmp_path / "programs.npz")
    document = json.loads(run("info", path, "--json").stdout)

    assert (document["num_programs"], document["num_tasks"]) == (24, 6)
    assert document["programs_by_kind"] == {"matmul": 12, "chain": 12}
    assert "a formula" in run("info", path).stdout


def test_a_model_says_what_it_learned_from_and_how_good_it_is(tmp_path):
    data = small_set(num_tasks=6, per_task=4).save(tmp_path / "programs.npz")
    model = tmp_path / "model.safetensors"
    trained = run("train", "programs", "--data", data, "--out", model, "--budget", "1s", "--device", "all", "--json")
    document = json.loads(run("info", model, "--json").stdout)

    assert document["devices"] == ["fast", "slow"]
    assert document["test"]["mape"] == json.loads(trained.stdout)["mape"]
    assert document["kind"] == "cdmpp"
    assert "features" not in document
    assert "num training samples" in run("info", model).stdout


def test_what_is_neither_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not there"):
        run("info", tmp_path / "none.npz")
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(InputError, match="no cost model"):
        run("info", tmp_path / "text.safetensors")


def test_what_is_kept_is_listed_by_change_and_forgotten(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    one = Measurement("aten::relu", "[4]", "forward", "as captured -> autocast=bfloat16 (method 2)", 1, "a cpu",
                      "torch", 10.0, 6.0, spread_ratio=0.04)  # fmt: skip
    update = replace(one, phase="update", change='[{"fused":true,"foreach":false},[],0]')
    ProfileDatabase().add([one, update])
    listed = json.loads(run("info", "--kept", "--json").stdout)["kept"]

    assert {"autocast=bfloat16", "update: fused"} == {row["change"] for row in listed}
    assert {0.04} == {row["median_spread_ratio"] for row in listed}
    assert not any(row["is_this_host"] for row in listed)
    assert "2 measurements in" in run("info", "--kept").stdout
    assert 1 == json.loads(run("info", "--drop", "autocast", "--json").stdout)["num_dropped"]
    assert 1 == json.loads(run("info", "--drop", "all", "--json").stdout)["num_dropped"]
