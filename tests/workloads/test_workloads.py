"""Every registered workload really trains."""

import math
from types import SimpleNamespace

import pytest

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.workloads import Workload
from windtunnel.workloads.workload import Training

torch = pytest.importorskip("torch", reason="needs the extra torch")

NAMES = ("cnn", "gan", "lstm", "mlp", "recommender", "transformer")
SMALL = {
    "cnn": {"batch_size": 4, "width": 4, "blocks": 1},
    "gan": {"batch_size": 4, "width": 4, "latent": 8},
    "lstm": {"batch_size": 2, "length": 4, "width": 16, "vocabulary": 50},
    "mlp": {"batch_size": 8, "width": 16, "depth": 2},
    "recommender": {"batch_size": 8, "tables": 3, "rows": 50, "width": 8},
    "transformer": {"batch_size": 2, "length": 8, "width": 16, "depth": 1, "vocabulary": 50},
}


def make(name, **options) -> Workload:
    return registry.get("workload", name).function(**{**SMALL[name], **options})


def losses(workload):
    return [float(workload.step()) for _ in range(3)]


def test_the_six_workloads_are_registered_with_their_source():
    found = registry.all("workload")

    assert set(NAMES) <= set(found)
    assert all(found[name].source and found[name].summary for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_changes_every_parameter(name):
    workload = make(name)
    before = [parameter.detach().clone() for model in workload.models for parameter in model.parameters()]

    found = losses(workload)

    after = [parameter for model in workload.models for parameter in model.parameters()]
    assert all(math.isfinite(loss) for loss in found)
    assert len(before) == sum(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_losses(name):
    first, second = (losses(make(name)) for _ in range(2))

    assert first == pytest.approx(second, rel=1e-4)


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_the_loss_falls_on_data_that_stay(name):
    workload = make(name)

    falling = [float(workload.step()) for _ in range(40)]

    assert falling[-1] < falling[0]


def test_the_batch_size_is_what_was_asked_for():
    assert 6 == make("cnn", batch_size=6).batch_size
    assert 6 == len(next(iter(make("cnn", batch_size=6).loader))[0])


def test_a_training_has_its_size_own_batch_unless_another_is_asked_for_and_draws_from_its_seed():
    presets = {"tiny": SimpleNamespace(batch_size=4), "small": SimpleNamespace(batch_size=32)}
    draws = []
    for batch_size, seed in ((None, 1), (7, 1), (7, 2)):
        training = Training.of("job", presets, "tiny", batch_size, seed)
        draws.append(float(torch.rand(())))

        assert (batch_size or 4, seed, "tiny") == (training.batch_size, training.seed, training.size)
        assert presets["tiny"] is training.preset
    assert draws[0] == draws[1] != draws[2]
    with pytest.raises(InputError, match="no size is called 'paper'") as caught:
        Training.of("job", presets, "paper", None, 0)
    assert "tiny, small" in caught.value.fix
