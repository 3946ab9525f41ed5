"""``windtunnel collectives``: what a user sees of programs and schedules."""

import json
from pathlib import Path

import pytest
import torch

from tests.cli.command import windtunnel

OWN_PROGRAM = """
from windtunnel.systems.collectives.build import Builder

def mean():
    builder = Builder("mean", 2)
    weights, gradient = builder.declare_replicated("w", (8,)), builder.declare_local("g", (8,))
    return builder.program(builder.update(weights, weights - 0.5 * builder.all_reduce(gradient)))

def wrong():
    builder = Builder("wrong", 2)
    return builder.program(builder.all_reduce(builder.declare_replicated("g", (8,))))
"""


@pytest.fixture
def own_program(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN_PROGRAM, encoding="utf-8")
    return path


def test_show_lists_the_schedules_with_their_states():
    outcome = windtunnel("collectives", "show", "adam:num_ranks=4,num_parameters=1024", "--json")

    document = json.loads(outcome.stdout)
    assert 0 == outcome.code
    sizes = {(item["label"], item["state_bytes"]) for item in document["schedules"]}
    assert ("AR - C", 3 * 4096) in sizes
    assert ("fuse(RS-C-AG)", 4096 + 2 * 1024) in sizes


def test_show_proves_a_schedule_and_prints_what_rank_0_runs():
    outcome = windtunnel(
        "collectives", "show", "tensor-parallel", "--schedule", "overlap(mm, fuse(rs-c-ag))", "--source"
    )

    assert 0 == outcome.code
    assert "overlap (ring order): product -> fused_t5_ag" in outcome.stdout
    assert "computes the same on 2, 3 and 4 ranks" in outcome.stdout
    assert "# rank 0, communication thread" in outcome.stdout
    assert "def " in outcome.stdout


def test_a_program_of_the_user_is_shown(own_program):
    outcome = windtunnel("collectives", "show", f"{own_program}:mean", "--json")

    assert 0 == outcome.code
    assert "mean" == json.loads(outcome.stdout)["program"]["name"]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["adm"], ["no program 'adm'", "did you mean adam"]),
        (["adam:ranks=4"], ["no parameter 'ranks'", "num_ranks"]),
        (["adam", "--schedule", "RS - C"], ["no schedule 'RS - C'", "did you mean"]),
        (["adam:num_ranks=0"], ["num_ranks cannot be '0'", "give 1 to"]),
    ],
)
def test_what_is_not_there_is_named_with_the_nearest(arguments, texts):
    outcome = windtunnel("collectives", "show", *arguments)

    assert 2 == outcome.code
    assert all(text in outcome.stderr for text in texts)


def test_a_program_with_wrong_layouts_names_the_repair(own_program):
    outcome = windtunnel("collectives", "show", f"{own_program}:wrong")

    assert 2 == outcome.code
    assert "multiplies it by 2" in outcome.stderr
    assert "remove" in outcome.stderr


def test_plan_prices_the_papers_schedules_on_a_node_of_gpus(tmp_path):
    page = tmp_path / "plan.html"
    program = "tensor-parallel:num_ranks=16,batch=8,sequence=1024,hidden=3072,dtype=float16"

    outcome = windtunnel("collectives", "plan", program, "--on", "dgx-2", "--html", page, "--json")

    document = json.loads(outcome.stdout)
    durations = {item["label"]: item["duration_ns"] for item in reversed(document["schedules"])}
    assert 0 == outcome.code
    assert "overlap(MM, fuse(RS-C-AG))" == document["schedules"][0]["label"]
    assert durations["MM - AR - C"] == document["baseline_ns"]
    assert durations["overlap(MM, fuse(RS-C-AG))"] < durations["MM - fuse(RS-C-AG)"] < durations["MM - AR - C"]
    assert 3 == page.read_text(encoding="utf-8").count('aria-label="timeline of')


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        ("dgx-h100", "constants of NCCL are not known"),
        ("0xdgx-2", "names no cluster"),
        ("dgx-2", "has 16 devices, not 64"),
    ],
)
def test_clusters_that_cannot_be_priced_say_why(cluster, text):
    outcome = windtunnel("collectives", "plan", "adam:num_ranks=64", "--on", cluster)

    assert 2 == outcome.code
    assert text in outcome.stderr


def test_verify_runs_the_best_schedules_and_keeps_receipts(tmp_path):
    ledger = tmp_path / "ledger.db"
    program = "sgd:num_ranks=2,num_parameters=5000"

    outcome = windtunnel(
        "collectives", "verify", program, "--bandwidth", "1GB/s", "--rounds", 3, "--ledger", ledger, "--json"
    )

    document = json.loads(outcome.stdout)
    assert 0 == outcome.code
    assert "AR - C" == document["schedules"][0]["label"]
    assert 3 == len(document["receipts"])
    assert all(0 == item["difference"] for item in document["schedules"])
    assert 3 == windtunnel("db", "receipts", "--ledger", ledger).stdout.count("collectives-schedule")


def test_a_latency_without_a_bandwidth_is_refused():
    outcome = windtunnel("collectives", "run", "sgd", "--latency", "1ms")

    assert 2 == outcome.code
    assert "--bandwidth" in outcome.stderr


def test_run_with_pytorch_says_that_fusions_ran_in_parts():
    outcome = windtunnel(
        "collectives", "run", "sgd:num_parameters=5000", "--schedule", "fuse(RS-C-AG)", "--transport", "torch",
        "--rounds", 3,
    )  # fmt: skip

    assert 0 == outcome.code
    assert "fuse(RS-C-AG)" in outcome.stdout
    assert "fusions ran in their parts" in outcome.stdout


def test_verify_with_pytorch_prices_what_pytorch_runs(tmp_path):
    outcome = windtunnel(
        "collectives", "verify", "sgd:num_parameters=5000", "--transport", "torch", "--rounds", 3,
        "--ledger", tmp_path / "ledger.db", "--json",
    )  # fmt: skip

    document = json.loads(outcome.stdout)
    assert 0 == outcome.code
    assert "PyTorch (torch), 2 ranks" == document["hardware"]
    assert 3 == len(document["receipts"])
    assert all(item["difference"] < 1e-6 < item["predicted_ns"] for item in document["schedules"])


@pytest.mark.skipif(torch.cuda.device_count() >= 2, reason="here are GPUs")
@pytest.mark.parametrize("verb", ["run", "verify"])
def test_nccl_without_gpus_is_one_error(verb):
    outcome = windtunnel("collectives", verb, "sgd", "--transport", "nccl")

    assert 2 == outcome.code
    assert "error: 2 ranks over NCCL need 2 GPUs" in outcome.stderr
    assert "where: " in outcome.stderr
    assert "fix: " in outcome.stderr
