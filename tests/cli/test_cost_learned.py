import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from tests.cost.learned.small_set import small_set
from windtunnel.cli.cost import cost
from windtunnel.errors import InputError


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small_set(num_tasks=6, per_task=4).save(tmp_path_factory.mktemp("cost") / "programs.npz")


def run(*arguments):
    return CliRunner().invoke(cost, [str(argument) for argument in arguments], catch_exceptions=False)


def test_train_then_eval(data, tmp_path):
    model = tmp_path / "model.safetensors"
    common = ("--data", data, "--device", "fast", "--json")

    trained = run("train", "programs", *common, "--out", model, "--budget", "1s")
    judged = run("eval", "programs", model, *common)
    other = run("eval", "programs", model, *common, "--seed", "5")

    assert trained.exit_code == judged.exit_code == 0
    first, second = json.loads(trained.stdout), json.loads(judged.stdout)
    assert first["mape"] == second["mape"]
    assert second["is_split_of_training"]
    assert not json.loads(other.stdout)["is_split_of_training"]


def test_table_says_the_split(data, tmp_path):
    found = run("train", "programs", "--data", data, "--out", tmp_path / "m.safetensors", "--budget", "1s")

    assert "by-task" in found.stdout
    assert "mean |error|" in found.stdout


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--recipe", "best", "unknown recipe"),
        ("--hold-out", "mondays", "cannot hold out"),
        ("--device", "x", "no device"),
    ],
)
def test_bad_options_are_named(data, tmp_path, option, value, message):
    with pytest.raises(InputError, match=message):
        run("train", "programs", "--data", data, "--out", tmp_path / "m.safetensors", option, value)


def test_profiled_tasks_are_carried_to_a_held_out_device(tmp_path):
    """The held-out device takes three times what its rates let expect: that shows however long was trained."""
    measured = small_set(num_tasks=6, per_task=4)
    is_fast = np.array([device["name"] == "fast" for device in measured.devices])
    times = {name: getattr(measured, name) * np.where(is_fast, 3.0, 1.0) for name in ("mean_s", "std_s")}
    data = replace(measured, **times).save(tmp_path / "programs.npz")
    model = tmp_path / "model.safetensors"
    common = ("--data", data, "--device", "fast", "--hold-out", "device")
    run("train", "programs", *common, "--out", model, "--budget", "1s")

    plain, carried = (
        json.loads(run("eval", "programs", model, *common, "--json", *more).stdout) for more in ((), ("--profile", "3"))
    )

    assert carried["num_profiled_tasks"] == 3
    assert carried["mape"] < 0.7 * plain["mape"]
    with pytest.raises(InputError, match="held-out device"):
        run("eval", "programs", model, "--data", data, "--profile", "3")
    with pytest.raises(InputError, match="tasks are asked for"):
        run("eval", "programs", model, *common, "--profile", "300")
