"""Models cut into stages compute what they computed before, alone and in processes."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from tests.systems.pipelines.training.schedules_merged import merged
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.systems.pipelines.generate import generate
from windtunnel.systems.pipelines.training.parts import RestingBatch
from windtunnel.systems.pipelines.training.runtime import pipeline_rank
from windtunnel.systems.pipelines.training.stages import cut_stages, split_model


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


class Tied(nn.Module):
    """Reads with the weights that it writes with."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


@pytest.mark.parametrize(
    ("model", "places", "message"),
    [
        (Late(), {"a": 0, "b": 1, "": 1}, "stage 1 reads the model's input"),
        (Chosen(), {"a": 0, "b": 1, "": 0}, "no tensor of floats"),
        (Asking(), {"a": 0}, "torch.export does not take this model"),
        (Tied(), {"a": 0, "b": 1}, "a.weight and b.weight are the same weights"),
    ],
)
def test_models_that_cannot_be_cut(model, places, message):
    with pytest.raises(NotApplicableError, match=message):
        split_model(model, (torch.ones(2, 4),), places)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "2bw"])
def test_four_stages_have_the_gradients_of_one_process(name):
    """Values that cross several stages, views and means that move included: with a rate of one, what is subtracted."""
    torch.manual_seed(1)
    model, x, target = Crossing(), torch.randn(8, 6), torch.randn(8, 6)
    alone = copy.deepcopy(model)
    losses = [nn.functional.mse_loss(alone(part), goal) for part, goal in zip(x.chunk(4), target.chunk(4), strict=True)]
    (sum(losses) / 4).backward()
    table = merged(generate(name, 4, 4))
    runs = pipeline_rank(
        cut_stages(split_model(model, (x[:2],), PLACES)), table, 0, nn.functional.mse_loss,
        RestingBatch((x,), target, 4), lambda trained: torch.optim.SGD(trained, lr=1.0),
    )  # fmt: skip
    runs.run(table)

    assert [float(one.detach()) / 4 for one in losses] == pytest.approx(
        [float(one) for one in runs.losses[0]], rel=1e-6
    )
    found = {key: one for stage in runs.stages.values() for key, one in stage.weights.newest.named_parameters()}
    assert found.keys() == dict(alone.named_parameters()).keys()
    for key, parameter in alone.named_parameters():
        assert torch.allclose(parameter.detach() - parameter.grad, found[key], rtol=1e-5, atol=1e-6), key
    assert torch.equal(alone.norm.running_mean, model.norm.running_mean)
