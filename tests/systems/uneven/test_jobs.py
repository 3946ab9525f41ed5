"""Jobs by name: what they hold, that they learn, what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from tests.systems.uneven.small import free_fleet
from windtunnel import registry
from windtunnel.errors import InputError

torch = pytest.importorskip("torch")

from windtunnel.systems.uneven.goal import Goal  # noqa: E402
from windtunnel.systems.uneven.job import FlatModel  # noqa: E402
from windtunnel.systems.uneven.jobs import train_job  # noqa: E402
from windtunnel.systems.uneven.model import train_virtually  # noqa: E402
from windtunnel.systems.uneven.networks import next_word_network, norm_of, resnet_network  # noqa: E402


@pytest.fixture
def no_data(monkeypatch):
    monkeypatch.delenv("WINDTUNNEL_DATA", raising=False)


def test_a_residual_network_has_as_many_layers_as_asked():
    for depth in (8, 14, 20):
        model = resnet_network(3, depth, norm_of("batch"))
        on_the_way = [
            name
            for name, one in model.named_modules()
            if isinstance(one, torch.nn.Conv2d | torch.nn.Linear) and "around" not in name
        ]

        assert depth == len(on_the_way)
        assert (2, 10) == model(torch.randn(2, 3, 32, 32)).shape


def test_words_are_scored_from_those_before_them_only():
    model, words = next_word_network(50, 8), torch.randint(0, 50, (3, 6))
    changed = words.clone()
    changed[:, 4] = (words[:, 4] + 1) % 50

    torch.testing.assert_close(model(words)[:, :, :4], model(changed)[:, :, :4])
    assert (3, 50, 6) == model(words).shape


def test_a_text_is_cut_into_windows_that_follow_each_other(no_data):
    job = train_job("text:vocabulary=100,width=8,length=8")

    torch.testing.assert_close(job.inputs[:, 1:], job.targets[:, :-1])
    assert list(range(10)) == sorted(set(job.sample_labels()))
    assert (np.diff(job.sample_labels()) >= 0).all()
    assert len(job.inputs) == pytest.approx(9 * len(job.test_inputs), rel=0.01)


@pytest.mark.parametrize("name", ["text:vocabulary=100,width=16,length=8", "resnet:data=gratings,batch=8"])
def test_it_learns_under_a_strategy(no_data, name):
    job = train_job(name)
    few = replace(job, test_inputs=job.test_inputs[:200], test_targets=job.test_targets[:200])
    policy = registry.get("strategy", "bsp").function()
    goal = Goal(200_000_000, every_ns=200_000_000)
    run = train_virtually(few, free_fleet([1, 1]), "bsp", policy, goal)

    assert run.points[-1].accuracy > 2 * run.points[0].accuracy


def test_the_gradient_is_that_of_the_module(no_data):
    job = train_job("text:vocabulary=60,width=8,length=6")
    flat, chosen = FlatModel(job, 3), torch.arange(5)
    torch.manual_seed(3)
    module = job.model()
    loss = job.loss(module(job.inputs[chosen]), job.targets[chosen])
    loss.backward()
    gradient, found = flat.gradient(flat.initial, flat.buffers(), chosen, 0)

    assert loss.item() == pytest.approx(found)
    torch.testing.assert_close(torch.cat([one.grad.flatten() for one in module.parameters()]), gradient)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet:depth=9", "no such network has 9 layers"),
        ("resnet:norm=layer", "no normalization is called 'layer'"),
        ("text:vocabulary=5", "no text has 5 words"),
        ("text:words=5", "text has no parameter"),
        ("gru", "no job is called 'gru'"),
    ],
)
def test_what_cannot_be_is_refused(no_data, name, said):
    with pytest.raises(InputError, match=said):
        train_job(name)
