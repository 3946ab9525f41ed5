import pytest

from windtunnel.errors import InputError

torch = pytest.importorskip("torch")

from tests.systems.layers.nn.masked import masks  # noqa: E402
from windtunnel.systems.layers.nn import StructuredFeedForward, StructuredLinear  # noqa: E402
from windtunnel.systems.layers.nn.dropout.keep import draw, spans  # noqa: E402

SEED = 4


def seed_of_first_call():
    return SEED + (1 << 32)


@pytest.mark.parametrize("step_dim", [None, 0, 1])
def test_a_linear_layer_is_the_masked_one(step_dim):
    layer = StructuredLinear(6, 5, dropout=0.5, step_dim=step_dim, seed=SEED).double()
    x = torch.randn(3, 4, 6, dtype=torch.double, requires_grad=True)
    sizes = {None: [12], 0: [4] * 3, 1: [3] * 4}[step_dim]
    found = spans(sizes, draw(6, 0.5, range(len(sizes)), seed=seed_of_first_call()), 1)
    mask = masks(found, 12, 6, torch.double).view(*((4, 3) if step_dim == 1 else (3, 4)), 6)
    mask = mask.transpose(0, 1) if step_dim == 1 else mask
    y, reference = layer(x), torch.nn.functional.linear(x * mask, layer.weight, layer.bias)
    inputs = [x, layer.weight, layer.bias]

    torch.testing.assert_close(reference, y, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(
        torch.autograd.grad(y.square().sum(), inputs),
        torch.autograd.grad(reference.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(theirs, mine, rtol=1e-12, atol=1e-12)


def test_hidden_units_that_are_dropped_are_not_computed_and_gradients_are_exact():
    layer = StructuredFeedForward(6, 12, 5, dropout=0.75, seed=SEED).double()
    x = torch.randn(3, 6, dtype=torch.double, requires_grad=True)
    (keep,) = draw(12, 0.75, [0], seed=seed_of_first_call())
    mask = keep.factors(torch.double)
    y = layer(x)
    reference = layer.reduce(torch.relu(layer.expand(x)) * mask)
    inputs = [x, *layer.parameters()]

    torch.testing.assert_close(reference, y, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(
        torch.autograd.grad(y.square().sum(), inputs),
        torch.autograd.grad(reference.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(theirs, mine, rtol=1e-12, atol=1e-12)


def test_evaluation_is_dense():
    layer = StructuredFeedForward(6, 12, 5, dropout=0.75).eval()
    x = torch.randn(3, 6)

    torch.testing.assert_close(layer.reduce(torch.relu(layer.expand(x))), layer(x))


def test_a_group_larger_than_the_layer_is_refused():
    with pytest.raises(InputError, match="groups of 32 where there are 20"):
        StructuredLinear(20, 5, group=32)
