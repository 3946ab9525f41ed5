import json

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from tests.systems.tensor_programs.model.small_set import small_set
from windtunnel import registry
from windtunnel.cli.app import build_app
from windtunnel.errors import InputError


def run(*arguments):
    return CliRunner().invoke(
        build_app(registry.verbs("models")),
        ["models", *(str(argument) for argument in arguments)],
        catch_exceptions=False,
    )


def test_every_cost_model_is_listed_with_its_source():
    document = json.loads(run("show", "--json").stdout)

    assert {"ast", "measured", "roofline", "tile"} <= {one["name"] for one in document["models"]}
    assert all(one["source"] and one["about"] for one in document["models"])
    assert "CDMPP" in run("show").stdout


def test_a_set_says_what_is_in_it(tmp_path):
    path = small_set(num_tasks=6, per_task=4).save(tmp_path / "programs.npz")
    document = json.loads(run("show", path, "--json").stdout)

    assert (document["num_programs"], document["num_tasks"]) == (24, 6)
    assert document["programs_by_kind"] == {"matmul": 12, "chain": 12}
    assert "a formula" in run("show", path).stdout


def test_a_model_says_what_it_learned_from_and_how_good_it_is(tmp_path):
    data = small_set(num_tasks=6, per_task=4).save(tmp_path / "programs.npz")
    model = tmp_path / "model.safetensors"
    trained = run(
        "train", "programs", "--data", data, "--out", model, "--time-limit", "1s", "--device", "all", "--json"
    )
    document = json.loads(run("show", model, "--json").stdout)

    assert document["devices"] == ["fast", "slow"]
    assert document["test"]["mape"] == json.loads(trained.stdout)["mape"]
    assert document["kind"] == "cdmpp"
    assert "features" not in document
    assert "num training samples" in run("show", model).stdout


def test_what_is_neither_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not there"):
        run("show", tmp_path / "none.npz")
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(InputError, match="no cost model"):
        run("show", tmp_path / "text.safetensors")
