"""What is registered as a layer keeps the contract of layers."""

from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")

from windtunnel.errors import InputError  # noqa: E402
from windtunnel.systems.layers.nn.layers import settings_of  # noqa: E402
from windtunnel.testing import LayerContract  # noqa: E402


def recurrent(kind, num_gates):
    weights = [
        torch.randn(num_gates * 6, 5),
        torch.randn(num_gates * 6, 6),
        torch.randn(num_gates * 6),
        torch.randn(num_gates * 6),
    ]
    weights = [weight.requires_grad_() for weight in weights]
    state = torch.zeros(1, 3, 6)
    hx = [state, state] if kind == "lstm" else state
    return [torch.randn(4, 3, 5), hx, weights, True, 1, 0.0, True, False, False]


class TestStructuredLstm(LayerContract):
    name = "structured-dropout"
    operator = "aten::lstm"

    def arguments(self):
        return recurrent("lstm", 4)


class TestStructuredGru(LayerContract):
    name = "structured-dropout"
    operator = "aten::gru"
    parameters: ClassVar = {"place": "rh", "period": 2}

    def arguments(self):
        return recurrent("gru", 3)


class TestStructuredLinear(LayerContract):
    name = "structured-dropout"
    operator = "aten::linear"

    def arguments(self):
        return [torch.randn(4, 8), torch.randn(6, 8, requires_grad=True), torch.randn(6)]


@pytest.mark.filterwarnings("ignore:blocks of")
class TestBlockCirculant(LayerContract):
    name = "block-circulant"
    operator = "aten::linear"
    parameters: ClassVar = {"k": 4}

    def arguments(self):
        return [torch.randn(4, 8), torch.randn(6, 8, requires_grad=True), torch.randn(6)]


@pytest.mark.filterwarnings("ignore:blocks of")
class TestBlockCirculantConvolution(LayerContract):
    name = "block-circulant"
    operator = "aten::conv2d"
    parameters: ClassVar = {"k": 4}

    def arguments(self):
        weight = torch.randn(8, 6, 3, 3, requires_grad=True)
        return [torch.randn(2, 6, 9, 9), weight, torch.randn(8), [2, 2], [1, 1], [1, 1], 1]


class TestDroppedUnits(LayerContract):
    name = "structured-dropout"
    operator = "aten::dropout"

    def arguments(self):
        return [torch.randn(4, 8, requires_grad=True), 0.1, True]


def test_a_packed_call_is_replaced_too():
    from windtunnel import registry

    data, sizes = torch.randn(6, 5), torch.tensor([3, 2, 1])
    _, hx, weights, *how = recurrent("lstm", 4)
    made = registry.get("layer", "structured-dropout").function("aten::lstm", [data, sizes, hx, weights, *how[:-1]])
    output, h, _ = made.function(data, sizes, hx, weights, *how[:-1])

    assert ((6, 6), (1, 3, 6)) == (tuple(output.shape), tuple(h.shape))


def test_a_place_that_is_not_known_is_refused():
    with pytest.raises(InputError, match="use one of nr, rh"):
        settings_of(0.5, "everywhere", 1, 1)
