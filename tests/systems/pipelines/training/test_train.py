"""Pipelines that train have the weights that their recurrences say."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch
from benchmarks.peers.delayed import delayed_training, largest_error

from tests.systems.pipelines.training.schedules_merged import merged
from windtunnel.errors import FlightError, InputError, NotApplicableError
from windtunnel.measure.workers import Workers
from windtunnel.systems.pipelines.generate import generate
from windtunnel.systems.pipelines.schedules import Action, Schedule, pipedream
from windtunnel.systems.pipelines.training import train
from windtunnel.systems.pipelines.training.runtime import PipelineRank
from windtunnel.systems.pipelines.training.train import merge_reports, orders_of, train_pipeline
from windtunnel.systems.pipelines.training.trainer import train_rank
from windtunnel.systems.pipelines.verify import require_valid

MLP = {"batch_size": 16, "width": 8, "depth": 3}
PLACES = {"0": 0, "1": 0, "2": 1, "3": 1, "4": 2, "5": 2, "6": 3}
DEEP = {"batch_size": 16, "width": 8, "depth": 7}
DEEP_PLACES = {str(at): min(at // 2, 7) for at in range(15)}
RULES = {"2bw": "2bw", "pipedream": "stash"}


def weights_of(trained):
    return {name: one for report in trained.reports for part in report.weights.values() for name, one in part.items()}


def in_one_process(orders):
    """All stages in this process, in an order in which the ranks of the table could run them."""
    return merge_reports(orders, [train_rank(orders, 0, lambda _: None)])


def orders_for(name, parameters, places, num_microbatches, num_batches, *, num_ranks=4, is_one=True, **more):
    def make(length):
        table = generate(name, num_ranks, num_microbatches, num_batches=length)
        return merged(table) if is_one else table

    return orders_of("mlp", parameters, places, make, num_batches, returns_weights=True, **more)


def require_equal(trained, expected):
    losses, weights = expected
    assert losses == pytest.approx(list(trained.losses), rel=1e-6)
    assert largest_error(weights_of(trained), weights) <= 1e-6


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "2bw", "pipedream", "zb-h1"])
def test_stages_train_as_the_recurrence_says(name):
    parts = 1 if name == "pipedream" else 4
    trained = in_one_process(orders_for(name, MLP, PLACES, parts, 8))

    require_equal(trained, delayed_training("mlp", MLP, PLACES, 8, parts, RULES.get(name, "flush")))


@pytest.mark.parametrize("name", ["interleaved", "zbv", "dualpipev"])
def test_several_stages_per_rank_train_as_one_process(name):
    trained = in_one_process(orders_for(name, DEEP, DEEP_PLACES, 8, 2))

    require_equal(trained, delayed_training("mlp", DEEP, DEEP_PLACES, 2, 8, "flush"))


def test_recomputing_changes_nothing():
    plain, again = (in_one_process(orders_for("2bw", MLP, PLACES, 4, 4, recomputes=flag)) for flag in (False, True))

    assert plain.losses == again.losses
    assert 0.0 == largest_error(weights_of(plain), weights_of(again))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpipe", "2bw", "pipedream", "zb-h1", "dualpipe"])
def test_four_processes_train_as_the_recurrence_says(name):
    parts = 1 if name == "pipedream" else 4
    trained = train_pipeline(orders_for(name, MLP, PLACES, parts, 8, is_one=False))

    require_equal(trained, delayed_training("mlp", MLP, PLACES, 8, parts, RULES.get(name, "flush")))


def test_two_replicas_of_two_stages_train_on_the_whole_batch():
    places = {"0": 0, "1": 0, "2": 0, "3": 0, "4": 1, "5": 1, "6": 1}
    trained = train_pipeline(orders_for("2bw", MLP, places, 4, 6, num_ranks=2, num_replicas=2, is_one=False))

    require_equal(trained, delayed_training("mlp", MLP, places, 6, 4, "2bw", num_replicas=2))


def test_what_replicas_sent_is_given_up_before_the_update():
    """An update takes memory of its own; the peak has the one or the other."""
    alive: list[bool] = []

    class Sent:
        def share(self, stage, gradients):
            flat = torch.zeros(4)
            sent.append(weakref.ref(flat))
            return lambda: gradients[0].copy_(flat)

        def clip(self, gradients):
            pass

        waits = True

    class Weights:
        def gradients(self, batch):
            return [torch.ones(4)]

        def update(self, gradients):
            alive.append(any(one() is not None for one in sent))

    sent: list[weakref.ref] = []
    stages = {at: SimpleNamespace(weights=Weights()) for at in (0, 1)}
    rank = PipelineRank(stages, {}, 0, 1, 0, loss=None, feed=None, reduction=Sent())
    for stage in stages:
        rank._finish(stage, 0)

    assert [False, False] == alive


@pytest.mark.slow
@pytest.mark.parametrize("name", ["interleaved", "zbv"])
def test_replicas_with_several_stages_per_rank_train_on_the_whole_batch(name):
    """Gradients of a stage are on their way while its rank still goes backward through others."""
    places = {"0": 0, "1": 0, "2": 1, "3": 1, "4": 2, "5": 2, "6": 3}
    trained = train_pipeline(orders_for(name, MLP, places, 4, 6, num_ranks=2, num_replicas=2, is_one=False))

    require_equal(trained, delayed_training("mlp", MLP, places, 6, 4, "flush", num_replicas=2))


@pytest.mark.parametrize("name", ["1f1b", "2bw"])
def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path, name):
    whole = in_one_process(orders_for(name, MLP, PLACES, 4, 7))
    in_one_process(orders_for(name, MLP, PLACES, 4, 4, folder=tmp_path, every=2))
    later = in_one_process(orders_for(name, MLP, PLACES, 4, 7, folder=tmp_path, every=2, resumes=True))

    assert 4 == later.first_batch
    assert whole.losses[4:] == later.losses
    assert 0.0 == largest_error(weights_of(whole), weights_of(later))
    assert ["batch-7", "pipeline.json"] == sorted(one.name for one in tmp_path.iterdir())


def test_a_checkpoint_of_another_pipeline_is_refused(tmp_path):
    in_one_process(orders_for("2bw", MLP, PLACES, 4, 2, folder=tmp_path))

    with pytest.raises(InputError, match="there is a checkpoint after 2 batches"):
        orders_for("2bw", MLP, PLACES, 4, 4, folder=tmp_path)
    with pytest.raises(InputError, match='of another pipeline: schedule is "2bw", not "1f1b"'):
        orders_for("1f1b", MLP, PLACES, 4, 4, folder=tmp_path, resumes=True)
    with pytest.raises(InputError, match="2 batches are done, of 2"):
        orders_for("2bw", MLP, PLACES, 4, 2, folder=tmp_path, resumes=True)
    (tmp_path / "batch-2" / "rank0.pt").write_bytes(b"half")
    with pytest.raises(InputError, match="the checkpoint of rank 0 cannot be read"):
        in_one_process(orders_for("2bw", MLP, PLACES, 4, 4, folder=tmp_path, resumes=True))
    (tmp_path / "pipeline.json").write_text("{}")
    with pytest.raises(InputError, match="is no checkpoint of a pipeline"):
        orders_for("2bw", MLP, PLACES, 4, 4, folder=tmp_path, resumes=True)


def test_a_killed_rank_is_named_and_training_resumes_bit_for_bit(tmp_path, monkeypatch):
    """Kill -9 in the middle: the others end within seconds, and the last whole checkpoint goes on as if nothing was."""
    places = {"0": 0, "1": 0, "2": 0, "3": 0, "4": 1, "5": 1, "6": 1}
    orders = orders_for("2bw", MLP, places, 4, 400, num_ranks=2, is_one=False, folder=tmp_path, every=2)
    started = []

    class Watched(Workers):
        def __enter__(self):
            started.append(self)
            return super().__enter__()

    def kill():
        while not (tmp_path / "pipeline.json").exists():
            time.sleep(0.02)
        os.kill(started[0]._processes[1].pid, signal.SIGKILL)

    monkeypatch.setattr(train, "Workers", Watched)
    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(FlightError, match="rank 1 was killed by SIGKILL"):
        train_pipeline(orders)
    killer.join()
    for process in [one.pid for one in started[0]._processes]:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)

    again = orders_for("2bw", MLP, places, 4, 400, num_ranks=2, is_one=False, folder=tmp_path, resumes=True)
    later = train_pipeline(replace(again, segments=(3,), tables={3: generate("2bw", 2, 4, num_batches=3)}))
    losses, weights = delayed_training("mlp", MLP, places, later.first_batch + 3, 4, "2bw")
    assert losses[later.first_batch :] == pytest.approx(list(later.losses), rel=1e-6)
    assert 0.0 == largest_error(weights_of(later), weights)


def test_gradients_are_clipped_by_the_norm_of_the_whole_model():
    clipped = in_one_process(orders_for("1f1b", MLP, PLACES, 4, 1, max_norm=1e-9))
    free = in_one_process(orders_for("1f1b", MLP, PLACES, 4, 1))

    assert clipped.losses == free.losses
    assert largest_error(weights_of(clipped), weights_of(free)) > 0


def test_what_cannot_train():
    with pytest.raises(NotApplicableError, match="more than one model and a loss"):
        in_one_process(orders_of("moe-lm", {"size": "tiny"}, {"words": 0, "blocks": 1},
                                 lambda length: generate("1f1b", 2, 4, num_batches=length), 1))  # fmt: skip
    with pytest.raises(InputError, match="3 microbatches of a batch of 16"):
        in_one_process(orders_for("1f1b", MLP, PLACES, 3, 1))


def test_a_batch_smaller_than_the_replicas_of_a_stage_is_refused():
    def make(length):
        return pipedream(2, 2, length, replicas=[3, 1])

    with pytest.raises(InputError, match="a batch of 2 microbatches for 3 replicas of stage 0") as refusal:
        orders_of("mlp", MLP, {"0": 0, "6": 1}, make, 4)
    assert "3 microbatches or more" in refusal.value.fix
    with pytest.raises(InputError, match="for 3 replicas"):
        require_valid(make(4))


def test_a_table_that_runs_ahead_of_its_weights_names_rank_and_slot():
    row = [Action(0, "F", 0), Action(0, "F", 1), Action(0, "B", 0), Action(0, "B", 1)]
    table = Schedule("hasty", (tuple(row),), (0,), 1, 2)
    orders = orders_of("mlp", MLP, {"0": 0, "6": 0}, lambda _: table, 1)

    with pytest.raises(InputError, match="batch 1 needs weights after 1 updates, there are 0") as refusal:
        in_one_process(orders)
    assert "rank 0, slot 1: 0F1" in refusal.value.where


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "versions", "recomputes"),
    [("gpipe", 1, False), ("1f1b", 1, False), ("2bw", 2, False), ("2bw", 2, True), ("pipedream", 0, False)],
)
def test_ranks_hold_what_the_formula_says(name, versions, recomputes):
    """Versions of the weights, one gradient, one state; what is under way, or its inputs and one that is recomputed."""

    def held(schedule, num_microbatches, **more):
        parameters = DEEP | {"batch_size": 16 * num_microbatches, "width": 32}
        places = {name: at // 2 for name, at in DEEP_PLACES.items()}
        orders = orders_of(
            "mlp", parameters, places,
            lambda length: generate(schedule, 4, num_microbatches, num_batches=length), 2, watches_memory=True, **more,
        )  # fmt: skip
        return [report.memory for report in train_pipeline(orders).reports]

    one, many = held("gpipe", 1), held(name, 8, recomputes=recomputes)
    for rank, (single, found) in enumerate(zip(one, many, strict=True)):
        under_way = 8 if name == "gpipe" else 4 - rank
        assert found["base"] == found["weight"] == (versions or under_way) * single["weight"]
        assert found["gradient"] == single["gradient"]
        assert found["optimizer state"] == single["optimizer state"]
        if rank in (1, 2):  # the others hold batches, too
            assert found["input"] == under_way * single["input"]
            kept = 1 if recomputes else under_way
            assert abs(found["feature map"] - kept * single["feature map"]) <= single["input"]


def test_a_pipeline_that_is_not_flushed_clips_by_the_norm_of_the_batch_before():
    """In one process: the factor of a batch is that of the gradient before; the first batch is not clipped."""
    norm = 0.5
    clipped = in_one_process(orders_for("2bw", MLP, PLACES, 4, 5, max_norm=norm))
    losses, weights = delayed_training("mlp", MLP, PLACES, 5, 4, "2bw", max_norm=norm, is_delayed=True)

    require_equal(clipped, (losses, weights))
