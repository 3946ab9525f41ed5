"""The verbs that collect tasks and measure programs."""

from __future__ import annotations

import json

import pytest

from tests.cli.command import windtunnel
from windtunnel.systems.tensor_programs.run.tasks import read_tasks


def test_a_set_that_is_there_is_not_overwritten(tmp_path):
    pytest.importorskip("tvm")
    (tmp_path / "set.npz").write_text("kept")

    outcome = windtunnel("models", "sample", "--out", tmp_path / "set.npz")

    assert (2, "kept") == (outcome.code, (tmp_path / "set.npz").read_text())
    assert "is there already" in outcome.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--targets", "neon-1"), "no target is called 'neon-1'"),
        (("--tasks", "nowhere.csv"), "cannot be read"),
        (("--time-limit", "soon"), "is not a duration"),
        (("--profile", "3"), "--profile applies to an existing set"),
        (("--of", "shipped", "--tasks", "mine.csv"), "--tasks applies to new programs"),
        (("--of", "nowhere.npz"), "nowhere.npz is not there"),
        (("--of", "shipped", "--profile", "5000"), "5000 tasks are asked for"),
    ],
)
def test_what_cannot_be_asked_for_is_told_before_anything_is_measured(options, message, tmp_path):
    pytest.importorskip("tvm")
    outcome = windtunnel("models", "sample", "--out", tmp_path / "set.npz", *options)

    assert 2 == outcome.code
    assert message in outcome.stderr
    assert [] == list(tmp_path.iterdir())


def test_without_the_compiler_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("windtunnel.base.extras.importlib.import_module", _no_tvm)
    outcome = windtunnel("models", "sample", "--out", tmp_path / "set.npz")

    assert 2 == outcome.code
    assert "pip install 'windtunnel[tvm]'" in outcome.stderr


def _no_tvm(name):
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.slow
def test_harvested_tasks_can_be_read_and_programs_of_them_measured(tmp_path):
    pytest.importorskip("torch")
    tasks = tmp_path / "tasks.csv"
    outcome = windtunnel("models", "sample", "tasks", "--networks", "mlp", "--count", 3, "--out", tasks, "--json")

    assert 0 == outcome.code, outcome.stderr
    assert 3 == json.loads(outcome.stdout)["num_tasks"] == len(read_tasks(tasks))

    pytest.importorskip("tvm")
    options = ("--targets", "sse4.2-1", "--max-spread", 1e9, "--canary-tolerance", 1e9)
    stopped = windtunnel(
        "models", "sample", "--tasks", tasks, "--out", tmp_path / "set.npz", "--time-limit", "0s", *options
    )
    assert 0 == stopped.code, stopped.stderr
    assert "0 of 8000 programs measured" in stopped.stdout
    assert "--resume" in stopped.stderr
