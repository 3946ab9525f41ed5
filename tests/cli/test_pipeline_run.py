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
        (("--resume",), "there is nothing to resume from"),
        (("--ranks", "4", "--microbatches", "2"), "2 microbatches per batch on 4 ranks"),
        (("--ranks", "2", "--microbatches", "3"), "3 microbatches of a batch of 16"),
        (("--ranks", "2", "--microbatches", "4", "--width", "3"), "12 microbatches of a batch of 16"),
    ],
)
def test_what_cannot_run_is_said_with_exit_code_2(options, message):
    shown = windtunnel("pipeline", "run", JOB, *options)

    assert 2 == shown.code
    assert message in shown.stderr


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
