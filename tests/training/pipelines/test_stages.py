"""Models cut into stages compute what they computed before, alone and in processes."""

from __future__ import annotations

import multiprocessing

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from windtunnel.errors import InputError, NotApplicableError
from windtunnel.training.pipelines.stages import schedule_of, split_model


class Crossing(nn.Module):
    """A skip over two layers, values for several stages, work in place, and outputs that do not lie in order."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third, self.last = (nn.Linear(6, 6) for _ in range(4))
        self.act = nn.ReLU(inplace=True)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        early = self.first(x)
        turned = early.reshape(2, -1, 6).transpose(0, 1)
        kept = self.act(self.second(early))
        later = self.norm(self.third(kept) + early)
        return self.last(later + kept) + turned.transpose(0, 1).reshape(-1, 6)


PLACES = {"first": 0, "second": 1, "act": 2, "third": 2, "norm": 2, "last": 3, "": 0}


def stages_of(pipe):
    return [
        {name.rpartition(".")[0] for name, _ in pipe.get_stage_module(at).named_parameters()}
        for at in range(pipe.num_stages)
    ]


def test_layers_lie_where_they_were_put_and_nothing_else_changes():
    torch.manual_seed(0)
    model, x = Crossing(), torch.randn(8, 6)
    pipe = split_model(model, (x,), PLACES)

    assert stages_of(pipe) == [{"first"}, {"second"}, {"third", "norm"}, {"last"}]
    model.eval()  # the running mean of the norm moves in training
    found, expected = split_model(model, (x,), PLACES)(x), model(x)
    assert torch.equal(found[0] if isinstance(found, tuple) else found, expected)
    assert {id(one) for one in model.parameters()} == {id(one) for one in pipe.parameters()}


def test_a_module_without_a_stage_follows_the_one_around_it():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    pipe = split_model(model, (torch.randn(2, 4),), {"0": 0, "1": 1})

    assert stages_of(pipe) == [{"0.0"}, {"1.0"}]


@pytest.mark.parametrize(
    ("places", "error", "message"),
    [
        ({"0": 0, "1": 2}, InputError, "stage 1 computes nothing"),
        ({"0": 1, "1": 1}, InputError, "stage 0 computes nothing"),
    ],
)
def test_stages_that_cannot_be(places, error, message):
    with pytest.raises(error, match=message):
        split_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), (torch.randn(2, 4),), places)


class Late(nn.Module):
    """Reads its input twice."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(self.a(x) + x)


class Chosen(nn.Module):
    """Hands on numbers of places."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Embedding(4, 4)

    def forward(self, x):
        return self.b(self.a(x).argmax(1))


class Asking(nn.Module):
    """Looks at its values."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        return self.a(x) if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("model", "places", "message"),
    [
        (Late(), {"a": 0, "b": 1, "": 1}, "stage 1 reads the model's input"),
        (Chosen(), {"a": 0, "b": 1, "": 0}, "no tensor of floats"),
        (Asking(), {"a": 0}, "torch.export does not take this model"),
    ],
)
def test_models_that_cannot_be_cut(model, places, message):
    with pytest.raises(NotApplicableError, match=message):
        split_model(model, (torch.ones(2, 4),), places)


def test_schedules_that_cannot_be():
    pipe = split_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), (torch.randn(2, 4),), {"0": 0, "1": 1})
    with pytest.raises(InputError, match="no schedule is called"):
        schedule_of(pipe, 0, 4, nn.functional.mse_loss, "fast")
    with pytest.raises(InputError, match="1 microbatches for 2 stages"):
        schedule_of(pipe, 0, 1, nn.functional.mse_loss)


def _train(rank, meeting, schedule, answers):
    """One stage of four: losses and gradients of its own parameters."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=4)
    model, x, target = job()
    runs = schedule_of(split_model(model, (x[:2],), PLACES), rank, 4, nn.functional.mse_loss, schedule)
    losses = []
    if rank == 0:
        runs.step(x)
    elif rank == 3:
        runs.step(target=target, losses=losses)
    else:
        runs.step()
    answers.put(
        ([float(one.detach()) for one in losses],
         {name: one.grad.tolist() for name, one in model.named_parameters() if one.grad is not None})
    )  # fmt: skip
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def job():
    torch.manual_seed(1)
    return Crossing(), torch.randn(8, 6), torch.randn(8, 6)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_four_processes_have_the_gradients_of_one(tmp_path, schedule):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [context.Process(target=_train, args=(rank, tmp_path / "meet", schedule, answers)) for rank in range(4)]
    for process in processes:
        process.start()
    try:
        found = [answers.get(timeout=60) for _ in processes]
    finally:
        for process in processes:
            process.kill()

    model, x, target = job()
    losses = [nn.functional.mse_loss(model(part), goal) for part, goal in zip(x.chunk(4), target.chunk(4), strict=True)]
    (sum(losses) / 4).backward()
    assert [float(one.detach()) for one in losses] == pytest.approx(next(one for one, _ in found if one), rel=1e-6)
    gradients = {name: torch.tensor(value) for _, part in found for name, value in part.items()}
    assert gradients.keys() == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, gradients[name], rtol=1e-5, atol=1e-7), name
