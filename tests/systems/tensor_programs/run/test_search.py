"""Schedules are drawn, ranked and measured; a network of chosen programs is really run."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.peers.network import call_ns, fly, library_of
from typer.testing import CliRunner

from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.run.build import parse_target
from windtunnel.systems.tensor_programs.run.tasks import Task
from windtunnel.systems.tensor_programs.run.worker import Worker
from windtunnel.systems.tensor_programs.search import draw_candidates, in_turn, rank_candidates, search

pytest.importorskip("tvm")
pytestmark = pytest.mark.slow

TARGET = parse_target("sse4.2-1")
TASK = Task("matmul", {"m": 32, "n": 32, "k": 64}, ("relu",))
SHEET = {"name": TARGET.name, "peak_flops_per_s": 1e10, "bandwidth_bytes_per_s": 1e10}


class ByLeaves:
    """Fewer statements are taken to be faster."""

    def predict(self, programs, samples):
        return 1e-6 * programs.num_leaves[samples[:, 0]] + 1e-9 * samples[:, 0]


@pytest.fixture(scope="module")
def worker():
    with Worker(1) as one:
        yield one


def test_candidates_are_distinct_and_always_the_same(worker):
    first, second = (draw_candidates(worker, TASK, 12, seed=4) for _ in range(2))

    assert len({one.sampled.sched.tobytes() for one in first}) == 12
    assert [one.key for one in first] == [one.key for one in second]


def test_the_best_of_the_ranking_are_measured(worker):
    found = search(worker, TASK, TARGET, ByLeaves(), SHEET, num_candidates=10, num_measured=3)
    timed = [one for one in found if one.timing is not None]

    assert len(found) == 10
    assert [one.timing is not None for one in found] == [True] * 3 + [False] * 7
    assert [one.timing.mean_s for one in timed] == sorted(one.timing.mean_s for one in timed)
    expected = rank_candidates(ByLeaves(), TASK, draw_candidates(worker, TASK, 10), SHEET)
    assert {one.key for one in timed} == {one.key for one in expected[:3]}
    assert [one.predicted_s for one in expected] == sorted(one.predicted_s for one in expected)


def test_a_chain_runs_every_program_and_takes_longer_than_one(worker):
    other = Task("elementwise", {"b": 1, "c": 64, "s": 4096}, ("relu",))
    tasks = [TASK, other, TASK]
    library, candidates = library_of(worker, tasks, 4)
    programs = {
        name: candidates[int(np.flatnonzero(library.task == place)[0])]
        for place, name in enumerate((TASK.name, other.name))
    }
    passes, alone = fly(worker, tasks, programs, TARGET, repeats=5)

    assert len(passes) == 5
    assert set(alone) == {TASK.name, other.name}
    assert min(passes) > 0
    assert call_ns(worker, TARGET) > 0


def test_programs_are_timed_in_turn(worker):
    (one,) = draw_candidates(worker, TASK, 1)
    worker.ask("replay", one.key, TASK, one.sampled.sched)
    worker.ask("build", one.key, TASK, [TARGET.isa])
    assert in_turn(worker, [one.key], TARGET, rounds=2)[one.key].mean_s > 0


def test_the_verb_prints_measured_schedules_and_their_steps(tmp_path):
    pytest.importorskip("safetensors")
    from tests.systems.tensor_programs.model.small_set import small_set
    from windtunnel import registry
    from windtunnel.cli.app import build_app

    programs = small_set(num_tasks=6, per_task=4)
    sheets = tuple(device | {"num_threads": 1, "simd_bits": 128} for device in programs.devices)
    data = replace(programs, devices=sheets).save(tmp_path / "programs.npz")
    other = small_set(num_tasks=6, per_task=4).save(tmp_path / "other.npz")
    model = str(tmp_path / "model.safetensors")

    def run(*given):
        return CliRunner().invoke(
            build_app(registry.verbs("models")), ["models", *(str(one) for one in given)], catch_exceptions=False
        )

    assert (
        run("train", "programs", "--data", other, "--out", model, "--time-limit", "1s", "--device", "all").exit_code
        == 0
    )
    with pytest.raises(InputError, match="described by 8 numbers"):
        run("search", TASK.name, "--target", TARGET.name, "--model", model, "--candidates", 2)
    trained = run(
        "train", "programs", "--data", data, "--out", model, "--time-limit", "1s", "--device", "all", "--force"
    )
    assert trained.exit_code == 0
    common = ("search", TASK.name, "--target", TARGET.name, "--model", model, "--candidates", 5, "--measure", 2)
    document = json.loads(run(*common, "--json").stdout)
    assert len(document["candidates"]) == 5
    assert document["candidates"][0]["measured_s"] > 0
    assert np.array(document["steps"]).shape == (25, 22)
    assert "Gflop/s" in run(*common).stdout
