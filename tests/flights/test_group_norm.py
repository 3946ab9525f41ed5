"""Group norms in place of batch norms, in a program that knows nothing of it."""

import pytest

from tests.flights.test_changes import picture, program
from windtunnel import registry
from windtunnel.cost.rerun import program_of
from windtunnel.errors import FlightError, InputError

torch = pytest.importorskip("torch")

from windtunnel.sources.torch.step import capture  # noqa: E402
from windtunnel.systems.layers.nn.group_norm import num_groups  # noqa: E402
from windtunnel.whatifs.normalization import group_norm  # noqa: E402

flight = registry.get("flight", "group-norm").function


@pytest.fixture(scope="module")
def graph():
    live, step = program()
    return capture(step, iterations=3, model=live.models[0], optimizer=live.optimizers[0])


def grouped(model, groups):
    """The same model with group norms, written out."""
    for block in model.blocks:
        norm = torch.nn.GroupNorm(num_groups(block[1].num_features, groups), block[1].num_features)
        norm.load_state_dict({key: block[1].state_dict()[key] for key in ("weight", "bias")})
        block[1] = norm
    return model


def test_it_computes_what_group_norms_do_and_puts_everything_back():
    (live, _), (other, _) = program(), program()
    direct = grouped(other.models[0], 2)
    before, images = picture(live), torch.randn(6, 3, 8, 8)
    with flight(live, groups=2):
        flown = [live.models[0].train(is_training)(images) for is_training in (True, False)]
    direct_runs = [direct(images)] * 2

    for one, expected in zip(flown, direct_runs, strict=True):
        torch.testing.assert_close(expected, one, rtol=0, atol=0)
    live.models[0].train()
    assert before == picture(live)


def test_a_sample_no_longer_hangs_on_its_batch():
    live, _ = program()
    images = torch.randn(6, 3, 8, 8)
    with flight(live):
        together, alone = live.models[0](images), live.models[0](images[:1])

    torch.testing.assert_close(together[:1], alone)


def test_every_norm_is_asked_about_or_the_named_one(graph):
    def layers(change):
        calls = program_of(graph).calls
        return sorted(calls[place].layer for place, _, _ in change.needs[0].form.replaced)

    assert ["blocks.0.1", "blocks.1.1"] == layers(group_norm(graph))
    assert ["blocks.0.1"] == layers(group_norm(graph, layer=r"blocks\.0\.1"))


def test_the_form_runs_group_norms(graph):
    from windtunnel.systems.layers.nn.group_norm import group_norm as layer

    x = torch.randn(2, 6, 3, 3)
    arguments = (x, torch.ones(6), torch.zeros(6), None, None, True, 0.1, 1e-5, True)
    made = layer("aten::batch_norm", arguments, groups=4).function(*arguments)

    torch.testing.assert_close(torch.nn.functional.group_norm(x, 2), made)


def test_what_has_no_norm_or_no_group_is_refused(graph):
    with pytest.raises(InputError, match="1 group or more, not 0"):
        group_norm(graph, groups=0)
    with pytest.raises(InputError, match="did you mean"):
        group_norm(graph, layer="blocks.0.3")
    live, _ = program()
    with pytest.raises(FlightError, match="no batch norm matches"), flight(live, layer="head"):
        pass
