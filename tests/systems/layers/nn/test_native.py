import pytest

torch = pytest.importorskip("torch")

from windtunnel.systems.layers.nn.dropout import native as native_room  # noqa: E402
from windtunnel.systems.layers.nn.dropout.keep import draw, spans  # noqa: E402
from windtunnel.systems.layers.nn.dropout.native import Direction, _native, _own, lay_by_unit, run_direction  # noqa: E402
from windtunnel.systems.layers.nn.dropout.sequence import Dropped, Steps  # noqa: E402


def given(kind, generator, *, has_bias=True, dtype=torch.float64):
    def random(*size):
        return (torch.randn(size, dtype=dtype, generator=generator) / 2).requires_grad_()

    gates = 24 if kind == "lstm" else 18
    biases = (random(gates), random(gates)) if has_bias else ()
    states = tuple(random(3, 6) for _ in range(2 if kind == "lstm" else 1))
    return Direction((random(gates, 5), random(gates, 6), *biases), states), random(12, 5)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("period", [0, 1, 3])
def test_torchs_kernel_gives_what_ours_does_where_nothing_is_dropped_from_step_to_step(kind, has_bias, period):
    direction, x = given(kind, torch.Generator().manual_seed(period), has_bias=has_bias)
    sets = spans([3] * 4, draw(5, 0.4, range(-(-4 // period)), seed=1), period) if period else ()
    dropped, steps = Dropped(sets), Steps((3,) * 4)
    inputs = [x, *direction.weights, *direction.states]

    native, own = _native(direction, x, steps, dropped), _own(direction, x, steps, dropped, Dropped())

    for mine, theirs in zip(native, own, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    for mine, theirs in zip(
        *(torch.autograd.grad(one[0].square().sum(), inputs) for one in (native, own)), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)


def test_what_torch_cannot_drop_is_never_left_to_it():
    """Whatever is quicker: from step to step something is dropped."""
    direction, x = given("lstm", torch.Generator().manual_seed(0))
    again = Dropped(spans([3] * 4, draw(6, 0.5, range(4), seed=2), 1))
    steps = Steps((3,) * 4)

    found = run_direction(direction, x, steps, Dropped(), again)

    for mine, theirs in zip(found, _own(direction, x, steps, Dropped(), again), strict=True):
        torch.testing.assert_close(mine, theirs)


def leaf(weight):
    return torch.nn.Parameter(weight.detach().clone())


@pytest.mark.parametrize("is_native", [True, False])
def test_the_first_shape_decides_how_weights_are_stored(monkeypatch, is_native):
    monkeypatch.setattr(native_room, "_is_native_quicker", lambda _: is_native)
    direction, x = given("lstm", torch.Generator().manual_seed(0))
    weights = tuple(leaf(one) for one in direction.weights)
    before = [one.detach().clone() for one in weights]
    lay_by_unit(weights)
    run_direction(Direction(weights, direction.states), x, Steps((3,) * 4), Dropped(), Dropped())

    assert [is_native] * 2 == [one.is_contiguous() for one in weights[:2]]
    assert all(torch.equal(one, other) for one, other in zip(weights, before, strict=True))
    monkeypatch.setattr(native_room, "_is_native_quicker", lambda _: not is_native)
    run_direction(Direction(weights, direction.states), x, Steps((3,) * 4), Dropped(), Dropped())

    assert [is_native] * 2 == [one.is_contiguous() for one in weights[:2]]
