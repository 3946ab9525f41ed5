"""Exact counts: on paper, by the counter, under fake tensors, and in captured graphs."""

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from windtunnel.graph.flops import CONTRACTIONS, operator_flops
from windtunnel.sources.torch.flop_count import conv_flops, conv_output_size, count

# inputs, outputs, kernel, size, and what differs from the default
CONVOLUTIONS = [
    (3, 64, (7, 7), (32, 32), {"stride": 2, "padding": 3}),
    (16, 32, (3, 3), (8, 8), {"padding": 1}),
    (16, 32, (1, 1), (8, 8), {}),
    (16, 32, (3, 5), (9, 12), {}),
    (16, 32, (3, 3), (8, 8), {"padding": 1, "groups": 4}),
    (16, 16, (3, 3), (8, 8), {"padding": 1, "groups": 16}),
    (16, 32, (3, 3), (8, 8), {"padding": 1, "groups": 16}),
    (8, 12, (3, 3), (11, 11), {"dilation": 2}),
    (8, 12, (3, 3), (11, 11), {"dilation": 3, "padding": 3, "stride": 2}),
    (8, 12, (3, 3), (11, 11), {"dilation": 2, "groups": 2, "stride": 2}),
    (8, 12, (5,), (40,), {"stride": 3}),
    (8, 12, (5,), (40,), {"groups": 4, "dilation": 2}),
    (4, 6, (3, 3, 3), (6, 7, 8), {"padding": 1}),
    (4, 6, (3, 3, 3), (6, 7, 8), {"groups": 2, "stride": 2}),
    (8, 12, (3, 3), (7, 7), {"transposed": True}),
    (8, 12, (4, 4), (7, 7), {"transposed": True, "stride": 2, "padding": 1}),
    (8, 12, (3, 3), (7, 7), {"transposed": True, "groups": 4}),
    (8, 8, (3, 3), (7, 7), {"transposed": True, "groups": 8, "stride": 2}),
    (8, 12, (5,), (9,), {"transposed": True, "stride": 3}),
    (4, 6, (3, 3, 3), (4, 4, 4), {"transposed": True, "stride": 2}),
]
LINEARS = [(64, 10, (8,)), (64, 10, (2, 5)), (1, 1, (1,)), (17, 33, (3, 1, 4))]


def convolution(inputs, outputs, kernel, settings):
    arguments = {name: value for name, value in settings.items() if name != "transposed"}
    kind = "ConvTranspose" if settings.get("transposed") else "Conv"
    return getattr(nn, f"{kind}{len(kernel)}d")(inputs, outputs, kernel, **arguments)


@pytest.mark.parametrize(("inputs", "outputs", "kernel", "size", "settings"), CONVOLUTIONS)
def test_a_convolution_counts_as_on_paper_and_twice_that_backward(inputs, outputs, kernel, size, settings):
    layer = convolution(inputs, outputs, kernel, settings)
    images = torch.zeros(2, inputs, *size, requires_grad=True)
    on_paper = conv_flops(inputs, outputs, kernel, size, batch_size=2, **settings)

    assert count(lambda: layer(images)).total == on_paper
    assert count(lambda: layer(images).sum().backward()).total == 3 * on_paper


@pytest.mark.parametrize(("inputs", "outputs", "kernel", "size", "settings"), CONVOLUTIONS)
def test_the_size_after_a_convolution_is_that_of_torch(inputs, outputs, kernel, size, settings):
    layer = convolution(inputs, outputs, kernel, settings)
    rules = {name: value for name, value in settings.items() if name != "groups"}
    sizes = [conv_output_size(one, width, **rules) for one, width in zip(size, kernel, strict=True)]

    assert sizes == list(layer(torch.zeros(1, inputs, *size)).shape[2:])


@pytest.mark.parametrize(("inputs", "outputs", "positions"), LINEARS)
def test_a_linear_layer_counts_as_on_paper(inputs, outputs, positions):
    layer = nn.Linear(inputs, outputs)
    features = torch.zeros(*positions, inputs)

    expected = 2 * inputs * outputs * int(torch.tensor(positions).prod())

    assert count(lambda: layer(features)).total == expected


def test_torch_forgets_the_groups_in_the_gradient_of_the_weights_and_we_do_not():
    layer = nn.Conv2d(16, 32, 3, groups=4)
    images = torch.zeros(1, 16, 8, 8, requires_grad=True)
    with FlopCounterMode(display=False) as theirs:
        layer(images).sum().backward()
    forward = conv_flops(16, 32, (3, 3), (8, 8), groups=4)

    assert count(lambda: layer(images).sum().backward()).total == 3 * forward
    assert theirs.get_total_flops() == (1 + 1 + 4) * forward


@pytest.mark.parametrize(
    ("product", "expected"),
    [
        (lambda: torch.zeros(3, 4, 5) @ torch.zeros(3, 5, 6), 2 * 3 * 4 * 5 * 6),
        (lambda: torch.baddbmm(torch.zeros(3, 4, 6), torch.zeros(3, 4, 5), torch.zeros(3, 5, 6)), 2 * 3 * 4 * 5 * 6),
        (lambda: torch.addbmm(torch.zeros(4, 6), torch.zeros(3, 4, 5), torch.zeros(3, 5, 6)), 2 * 3 * 4 * 5 * 6),
        (lambda: torch.zeros(4, 5) @ torch.zeros(5), 2 * 4 * 5),
        (lambda: torch.zeros(5) @ torch.zeros(5), 2 * 5),
        (lambda: torch.einsum("bik,bjk->bij", torch.zeros(3, 4, 5), torch.zeros(3, 6, 5)), 2 * 3 * 4 * 5 * 6),
    ],
)
def test_other_products_count_two_per_pair(product, expected):
    assert count(product).total == expected


def test_attention_counts_two_products_forward_and_five_backward():
    query = torch.zeros(2, 4, 8, 16, requires_grad=True)
    key, value = (torch.zeros(2, 4, 10, 16, requires_grad=True) for _ in range(2))
    product = 2 * 2 * 4 * 8 * 10 * 16

    def attend():
        return functional.scaled_dot_product_attention(query, key, value)

    assert count(attend).total == 2 * product
    assert count(lambda: attend().sum().backward()).total == 7 * product


ATTENTION = {"query": [2, 3, 5, 8], "key": [2, 3, 7, 8], "value": [2, 3, 7, 4]}


@pytest.mark.parametrize("name", [name for name in CONTRACTIONS if "attention" in name])
@pytest.mark.parametrize("is_causal", [False, True])
def test_every_attention_is_read_as_torch_calls_it(name, is_causal):
    arguments = [one.name for one in getattr(torch.ops.aten, name).default._schema.arguments]
    shapes = [ATTENTION.get(one, []) for one in arguments]
    values = [is_causal if one == "is_causal" else None for one in arguments]
    met = 2 * 3 * (15 if is_causal else 35)  # positions of rows that see positions of columns
    expected = 2 * met * (3 * 8 + 2 * 4 if name.endswith("backward") else 8 + 4)

    assert expected == operator_flops(f"aten::{name}", shapes, values, [])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_count_their_gates(kind):
    gates = {"LSTM": 4, "GRU": 3}[kind]
    layer = getattr(nn, kind)(8, 16, num_layers=2)
    series = torch.zeros(5, 3, 8)
    on_paper = 2 * 5 * 3 * gates * 16 * ((8 + 16) + (16 + 16))

    assert count(lambda: layer(series)).total == on_paper


def test_the_backward_pass_of_an_lstm_counts_twice_the_forward_pass():
    layer = nn.LSTM(8, 16)
    series = torch.zeros(5, 3, 8, requires_grad=True)
    forward = 2 * 5 * 3 * 4 * 16 * (8 + 16)

    assert count(lambda: layer(series)[0].sum().backward()).total == 3 * forward


@pytest.mark.parametrize(("cell", "gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3), (nn.RNNCell, 1)])
def test_recurrent_cells_count_their_gates(cell, gates):
    layer = cell(8, 16)

    assert count(lambda: layer(torch.zeros(3, 8))).total == 2 * 3 * gates * 16 * (8 + 16)


def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Sequential(nn.Linear(8 * 6 * 6, 10), nn.Tanh())
    )


def test_fake_tensors_give_the_same_count():
    from torch._subclasses import FakeTensorMode

    model, images = network(), torch.zeros(2, 3, 6, 6)
    real = count(lambda: model(images).sum().backward())
    with FakeTensorMode():
        model, images = network(), torch.zeros(2, 3, 6, 6)
        fake = count(lambda: model(images).sum().backward())

    assert real == fake


def test_layers_operators_and_types_add_up():
    model = network()
    found = count(lambda: model(torch.zeros(2, 3, 6, 6)))
    parts = {"0": conv_flops(3, 8, (3, 3), (6, 6), batch_size=2, padding=1), "3.0": 2 * 288 * 10 * 2}

    assert parts == found.by_layer
    assert {"aten::convolution": parts["0"], "aten::addmm": parts["3.0"]} == found.by_op
    assert {"float32": found.total} == found.by_dtype
    assert found.total == sum(parts.values())


def test_elementwise_work_counts_one_per_element_and_views_nothing():
    inputs = torch.zeros(4, 6)

    assert count(lambda: inputs.relu().view(24).reshape(6, 4).t()).elementwise == 24
    assert count(lambda: inputs.relu()).total == 0


def test_autocast_counts_under_the_type_that_computes():
    layer = nn.Linear(8, 16)

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            layer(torch.zeros(4, 8))

    assert {"bfloat16": 2 * 8 * 16 * 4} == count(step).by_dtype


def test_whole_nets_agree_with_the_counter_of_torch():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(), nn.Linear(8 * 16, 5))
    with FlopCounterMode(display=False) as theirs:
        model(torch.zeros(2, 3, 8, 8))

    assert theirs.get_total_flops() == count(lambda: model(torch.zeros(2, 3, 8, 8))).total


def test_a_captured_transposed_convolution_counts_its_inputs():
    shapes = [[2, 8, 7, 7], [8, 12, 3, 3], [], [], [], [], [], [], []]
    values = [None, None, None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1]

    assert operator_flops("aten::convolution", shapes, values, [[2, 12, 9, 9]]) == 2 * 2 * 49 * 8 * 12 * 9


@pytest.mark.parametrize(("rows", "columns", "met"), [(4, 4, 10), (2, 4, 3), (4, 2, 7)])
def test_what_a_causal_mask_hides_is_not_counted(rows, columns, met):
    query, key = torch.zeros(1, 3, rows, 8, requires_grad=True), torch.zeros(1, 3, columns, 8)

    def step(*, is_causal):
        nn.functional.scaled_dot_product_attention(query, key, key, is_causal=is_causal).sum().backward()

    assert torch.ones(rows, columns).tril().sum() == met
    assert count(lambda: step(is_causal=True)).total == 3 * met * 2 * 7 * 8
    assert count(lambda: step(is_causal=False)).total == 3 * rows * columns * 2 * 7 * 8


def test_an_overload_with_other_arguments_counts_nothing():
    assert operator_flops("aten::mm.weird", [[]], [], []) == 0


def test_a_gradient_penalty_is_counted_without_layers():
    """Forward, the gradient of the input, and what that gradient's own gradient asks of the weights."""
    layer = torch.nn.Linear(4, 3, bias=False)

    def step():
        inputs = torch.ones(2, 4, requires_grad=True)
        (slope,) = torch.autograd.grad(layer(inputs).sum(), inputs, create_graph=True)
        (slope**2).sum().backward()

    product = 2 * 4 * 3 * 2

    assert count(step).total == 3 * product
    assert list(count(step).by_layer.values()) == [3 * product]
