import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from tests.systems.tensor_programs.model.small_set import small_set
from windtunnel import registry
from windtunnel.cli.app import build_app
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.checkpoint import load_predictor

pytestmark = pytest.mark.usefixtures("own_time")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small_set(num_tasks=6, per_task=4).save(tmp_path_factory.mktemp("cost") / "programs.npz")


def run(*arguments):
    return CliRunner().invoke(
        build_app(registry.verbs("models")),
        ["models", *(str(argument) for argument in arguments)],
        catch_exceptions=False,
    )


def test_train_then_eval(data, tmp_path):
    model = tmp_path / "model.safetensors"
    common = ("--data", data, "--device", "fast", "--json")

    trained = run("train", "programs", *common, "--out", model, "--time-limit", "1s")
    judged = run("eval", "programs", model, *common)
    other = run("eval", "programs", model, *common, "--seed", "5")

    assert trained.exit_code == judged.exit_code == 0
    first, second = json.loads(trained.stdout), json.loads(judged.stdout)
    assert first["mape"] == second["mape"]
    assert second["is_split_of_training"]
    assert not json.loads(other.stdout)["is_split_of_training"]


def test_table_says_the_split(data, tmp_path):
    found = run("train", "programs", "--data", data, "--out", tmp_path / "m.safetensors", "--time-limit", "1s")

    assert "by-task" in found.stdout
    assert "MAPE" in found.stdout


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
    run("train", "programs", *common, "--out", model, "--time-limit", "1s")

    plain, carried = (
        json.loads(run("eval", "programs", model, *common, "--json", *more).stdout) for more in ((), ("--profile", "3"))
    )

    assert carried["num_profiled_tasks"] == 3
    assert carried["mape"] < 0.7 * plain["mape"]
    with pytest.raises(InputError, match="held-out device"):
        run("eval", "programs", model, "--data", data, "--profile", "3")
    with pytest.raises(InputError, match="tasks are asked for"):
        run("eval", "programs", model, *common, "--profile", "300")


def two_hosts(path):
    """The same devices on a second host, where all takes three times what it does here and a third is measured."""
    here = small_set(num_tasks=6, per_task=6)
    there = replace(
        here.select(np.arange(here.num_programs) % 3 == 0),
        devices=tuple({**device, "name": f"{device['name']}@there"} for device in here.devices),
    )
    return here.merge_devices(replace(there, mean_s=3 * there.mean_s, std_s=3 * there.std_s)).save(path)


def test_a_model_of_one_host_is_trained_on_for_another(tmp_path):
    data, model, tuned = (tmp_path / name for name in ("programs.npz", "model.safetensors", "tuned.safetensors"))
    two_hosts(data)
    run("train", "programs", "--data", data, "--out", model, "--device", "fast", "--time-limit", "4s")
    common = ("--data", data, "--device", "@there", "--json")

    begun = run("train", "programs", *common, "--out", tuned, "--from", model, "--time-limit", "4s")
    before, after = (json.loads(run("eval", "programs", one, *common).stdout) for one in (model, tuned))

    assert 0 == begun.exit_code
    assert 0 < json.loads(begun.stdout)["num_samples"]
    assert after["mape"] < 0.7 * before["mape"]
    with pytest.raises(InputError, match="made by another recipe"):
        run("train", "programs", *common, "--out", tmp_path / "x", "--from", model, "--recipe", "efficiency")
    with pytest.raises(InputError, match="no device '@nowhere'"):
        run("train", "programs", *common[:2], "--device", "@nowhere", "--out", tmp_path / "x", "--from", model)


def test_a_held_out_host_teaches_nothing(tmp_path):
    data, model = two_hosts(tmp_path / "programs.npz"), tmp_path / "model.safetensors"
    common = ("--data", data, "--device", "fast@there", "--hold-out", "host", "--json")

    run("train", "programs", *common, "--out", model, "--time-limit", "1s")
    header = load_predictor(model).header
    plain, carried = (
        json.loads(run("eval", "programs", model, *common, *more).stdout) for more in ((), ("--profile", "3"))
    )

    assert header["devices"] == ["fast", "slow"]
    assert carried["mape"] < 0.7 * plain["mape"]
    lonely = small_set(num_tasks=6, per_task=4).save(tmp_path / "lonely.npz")
    with pytest.raises(InputError, match="no device of another host"):
        run("eval", "programs", model, "--data", lonely, "--hold-out", "host")
