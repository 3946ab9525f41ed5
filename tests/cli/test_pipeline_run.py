"""``windtunnel pipeline run`` on the command line."""

from __future__ import annotations

import json

import pytest

from tests.cli.command import windtunnel

pytest.importorskip("torch")
JOB = "mlp:batch_size=16,width=8,depth=2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--schedule", "fast"), "no schedule is called 'fast'"),
        (("--resume",), "--resume needs a checkpoint"),
        (("--ranks", "4", "--microbatches", "2"), "2 microbatches per batch on 4 ranks"),
        (("--ranks", "2", "--microbatches", "3"), "3 microbatches of a batch of 16"),
        (("--ranks", "2", "--microbatches", "4", "--width", "3"), "12 microbatches of a batch of 16"),
    ],
)
def test_what_cannot_run_is_said_with_exit_code_2(options, message):
    shown = windtunnel("pipeline", "run", JOB, *options)

    assert 2 == shown.code
    assert message in shown.stderr


def test_a_plan_says_all_that_runs(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("{}")
    both = windtunnel("pipeline", "run", JOB, "--plan", path, "--width", 2)
    other = windtunnel("pipeline", "run", "--plan", path)
    neither = windtunnel("pipeline", "run")
    missing = windtunnel("pipeline", "run", "--plan", tmp_path / "plans.json")

    assert [2, 2, 2, 2] == [one.code for one in (both, other, neither, missing)]
    assert f"the plan says what runs, not {JOB}, --width" in both.stderr
    assert "this is no plan of a pipeline" in other.stderr
    assert "there is no workload" in neither.stderr
    assert "did you mean" in missing.stderr


@pytest.mark.slow
def test_replicas_are_predicted_also_after_a_resume(tmp_path):
    words = ("pipeline", "run", JOB, "--ranks", "2", "--microbatches", "4", "--width", "2", "--schedule", "1f1b")
    more = ("--checkpoint", str(tmp_path / "kept"), "--ledger", str(tmp_path / "ledger.db"), "--json")
    first = json.loads(windtunnel(*words, "--steps", "5", *more).stdout)
    later = json.loads(windtunnel(*words, "--steps", "10", "--resume", *more).stdout)

    assert first["receipt"]["parameters"]["width"] == 2
    assert first["predicted_step_ns"] == later["predicted_step_ns"] == later["receipt"]["predicted_ns"]
    assert first["stages"] == later["stages"]
    assert 5 == later["first_step"]


@pytest.mark.slow
def test_a_pipeline_trains_and_its_receipt_is_kept(tmp_path):
    words = ("pipeline", "run", JOB, "--ranks", "2", "--microbatches", "4", "--checkpoint", str(tmp_path / "kept"))
    shown = windtunnel(*words, "--schedule", "1f1b", "--steps", "6", "--ledger", str(tmp_path / "ledger.db"), "--json")
    document = json.loads(shown.stdout)
    again = windtunnel(*words, "--schedule", "1f1b", "--steps", "6", "--resume")

    assert 6 == len(document["losses"])
    assert document["losses"][-1] < document["losses"][0]
    assert document["step_ns"] > 0 < document["predicted_step_ns"]
    assert "1f1b" == document["receipt"]["parameters"]["schedule"]
    assert 2 == again.code
    assert "6 batches are done, of 6" in again.stderr
