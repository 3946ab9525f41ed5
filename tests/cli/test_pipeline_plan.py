"""``windtunnel pipeline plan``: graphs, workloads, Piper's form, and what goes wrong."""

import json

import pytest

from tests.cli.command import windtunnel
from tests.systems.pipelines.block_models import block_graph
from tests.systems.pipelines.test_piper import document
from windtunnel.graph import save


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "model.wt"
    save(block_graph(4), found)
    return found


def test_a_graph_is_planned_and_every_combination_told(path, tmp_path):
    page = tmp_path / "plans.html"
    done = windtunnel(
        "pipeline", "plan", path, "--on", 4, "--batch-size", 16, "--samples", 4, "--memory", "24KiB", "--html", page
    )
    told = windtunnel("pipeline", "plan", path, "--on", 4, "--batch-size", 16, "--samples", 4, "--json")
    answer = json.loads(told.stdout)

    assert 0 == done.code, done.stderr
    assert "samples per s by replay" in done.stdout
    assert "cannot be:" in done.stdout
    assert "4 blocks do not divide by a depth of 3" in done.stdout
    assert "What a worker of each stage of the best plan holds" in page.read_text()
    assert "windtunnel.pipeline-plan/1" == answer["schema"]
    assert {"is_feasible", "reason", "replayed_ns", "memory_bytes"} <= set(answer["rows"][0])
    assert min(row["replayed_ns"] for row in answer["rows"] if row["replayed_ns"]) == answer["best"]["replayed_ns"]
    assert 120 == len(answer["rows"])


def test_all_shows_every_combination(path):
    done = windtunnel("pipeline", "plan", path, "--on", 2, "--batch-size", 4, "--samples", 4, "--all", "--replay", 1)

    assert 0 == done.code, done.stderr
    assert "cannot be" in done.stdout
    assert "1 microbatch for 2 stages" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--on", 4, "--samples", 4], "the batch size is missing"),
        (["--on", 4, "--samples", 4, "--batch-size", 16, "--depth", 3], "do not divide by a depth of 3"),
        (["--on", 4, "--samples", 4, "--batch-size", 16, "--memory", "1KiB"], "tightest at stage"),
        (["--on", 4, "--samples", 4, "--batch-size", 16, "--microbatches", 5], "microbatches of 5 do not divide"),
        (["--on", 4, "--samples", 4, "--batch-size", 16, "--schedule", "zb"], "'zb' is not known"),
        (["--on", 4, "--samples", 4, "--batch-size", 16, "--width", "x"], "is no list of whole numbers"),
        (["--on", 4, "--samples", 4, "--batch-size", 16, "--precision", "fp8"], "no precision is called"),
        (["--on", 4, "--batch-size", 16], "--samples"),
        (["--on", "2xh100,2xa100", "--samples", 4, "--batch-size", 16], "2 kinds of devices"),
    ],
)
def test_what_is_wrong_is_said_with_exit_code_2(path, options, said):
    done = windtunnel("pipeline", "plan", path, *options)

    assert 2 == done.code
    assert said in " ".join(done.stderr.split())


def test_layers_in_pipers_form_are_planned(tmp_path):
    path = tmp_path / "layers.json"
    path.write_text(json.dumps(document()))
    done = windtunnel("pipeline", "plan", path, "--on", 2, "--time-unit", "ms")
    told = json.loads(windtunnel("pipeline", "plan", path, "--json").stdout)
    small = windtunnel("pipeline", "plan", path, "--memory", "1B")

    assert 0 == done.code, done.stderr
    assert "as fast as the best equal stages" in done.stdout
    assert "windtunnel.piper-plan/1" == told["schema"]
    assert 2 == small.code
    assert "layer layer 0 (row 0) takes 3 B on every device, of 1 B: 2 B too much" in " ".join(small.stderr.split())


def test_a_workload_needs_a_number_of_processes():
    done = windtunnel("pipeline", "plan", "mlp", "--on", "2xh100", "--batch-size", 16)

    assert 2 == done.code
    assert "is no number of processes" in done.stderr


def test_a_workload_may_have_a_parameter_with_a_point():
    done = windtunnel("pipeline", "plan", "mlp:dropout=0.1", "--on", "2", "--batch-size", 16)

    assert 2 == done.code
    assert "mlp has no parameter 'dropout'" in done.stderr


@pytest.mark.slow
def test_a_workload_is_captured_and_planned_for_processes_of_this_host(tmp_path):
    done = windtunnel(
        "pipeline", "plan", "mlp:width=64,depth=5", "--on", 2, "--batch-size", 16, "--microbatches", "4,8", "--json",
        "--out", tmp_path / "plan.json",
    )  # fmt: skip
    answer = json.loads(done.stdout)

    assert 0 == done.code, done.stderr
    assert 1 <= answer["best"]["width"] * answer["best"]["depth"] <= 2
    assert all(row["memory_bytes"] for row in answer["rows"] if row["is_feasible"])
    assert answer == json.loads((tmp_path / "plan.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 1, "1f1b"), (1, 2, "auto"), (2, 2, "2bw")])
def test_the_command_that_plan_prints_runs_exactly_the_plan(tmp_path, monkeypatch, shape):
    """Stages, replicas, microbatches, schedule and recomputing, with the planner's own prediction in the receipt."""
    depth, width, schedule = shape
    monkeypatch.chdir(tmp_path)
    done = windtunnel(
        "pipeline", "plan", "mlp:width=64,depth=5", "--on", depth * width, "--batch-size", 16, "--microbatches", 2,
        "--depth", depth, "--width", width, "--schedule", schedule, "--recompute", "yes",
    )  # fmt: skip
    command = done.stderr.strip().splitlines()[-1].removeprefix("next: ").split()
    ran = windtunnel(*command[1:], "--steps", 6, "--ledger", "ledger.db", "--json")
    plan, found = json.loads((tmp_path / "mlp.plan.json").read_text()), json.loads(ran.stdout)
    again = windtunnel("pipeline", "plan", "mlp", "--on", 2, "--batch-size", 16)

    assert 0 == ran.code, ran.stderr
    best = plan["best"]
    assert (best["depth"], best["width"], best["num_microbatches"], best["recomputes"]) == (
        found["ranks"], found["width"], found["microbatches"], found["recompute"],
    )  # fmt: skip
    assert depth == len(found["stages"])
    firsts = [names[0] for names in plan["stages"]]
    assert firsts == [names[0] for names in found["stages"]]
    assert best["replayed_ns"] == found["predicted_step_ns"] == found["receipt"]["predicted_ns"]
    assert found["step_ns"] == found["receipt"]["changed"]["value"]
    assert (2, True) == (again.code, "is there already" in again.stderr)
