import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers, sampled_from

from windtunnel.errors import InputError

torch = pytest.importorskip("torch")

from windtunnel.systems.layers.nn import (  # noqa: E402
    BlockCirculantConv2d,
    BlockCirculantLinear,
    BlockCirculantLSTM,
    CirculantAdapter,
    project,
)
from windtunnel.systems.layers.nn.circulant.algebra import Blocks, dense, nearest  # noqa: E402
from windtunnel.systems.layers.nn.circulant.products import WAYS, multiply  # noqa: E402

PADDED = pytest.mark.filterwarnings("ignore:blocks of")


def slow_dense(weight, blocks):
    """Element by element: W[i k + r, j k + c] = w[i, j, (r - c) mod k]."""
    k = blocks.size
    return torch.stack(
        [
            torch.stack([weight[row // k, column // k, (row - column) % k] for column in range(blocks.num_inputs)])
            for row in range(blocks.num_outputs)
        ]
    )


SIZES = (integers(2, 13), integers(2, 13), integers(2, 13))


@given(
    *SIZES, sampled_from(sorted(WAYS)), sampled_from([(torch.float32, 1e-5), (torch.float64, 1e-11)]), integers(0, 99)
)
def test_product_and_both_gradients_are_those_of_the_dense_matrix(m, n, k, way, precision, seed):
    """Odd and even blocks, those that divide and those that do not."""
    dtype, tolerance = precision
    blocks = Blocks(m, n, min(k, max(m, n)))
    generator = torch.Generator().manual_seed(seed)
    weight, x = (
        torch.randn(size, dtype=dtype, generator=generator).requires_grad_() for size in (blocks.shape, (3, n))
    )
    results = []
    for y in (multiply(x, weight, blocks, way), x @ slow_dense(weight, blocks).t()):
        results.append([y, *torch.autograd.grad((y * torch.arange(y.numel()).view_as(y)).sum(), [x, weight])])

    for mine, theirs in zip(*results, strict=True):
        assert float((mine - theirs).detach().norm()) <= tolerance * max(1.0, float(theirs.detach().norm()))


@given(*SIZES)
def test_the_dense_matrix_is_what_its_definition_says(m, n, k):
    blocks = Blocks(m, n, min(k, max(m, n)))
    weight = torch.arange(blocks.num_weights, dtype=torch.double).view(blocks.shape)

    assert torch.equal(slow_dense(weight, blocks), dense(weight, blocks))


@given(integers(1, 3), integers(1, 3), integers(2, 6), integers(0, 99))
def test_the_nearest_to_a_circulant_matrix_is_that_matrix(p, q, k, seed):
    blocks = Blocks(p * k, q * k, k)
    weight = torch.from_numpy(np.random.default_rng(seed).normal(size=blocks.shape))

    torch.testing.assert_close(nearest(dense(weight, blocks), blocks), weight, rtol=1e-13, atol=1e-13)


@given(*SIZES, integers(0, 99))
def test_what_is_left_by_the_nearest_is_orthogonal_to_every_circulant_matrix(m, n, k, seed):
    """The normal equations of least squares, over the places that the matrix has."""
    blocks = Blocks(m, n, min(k, max(m, n)))
    generator = np.random.default_rng(seed)
    matrix, any_weight = (torch.from_numpy(generator.normal(size=size)) for size in ((m, n), blocks.shape))
    rest = matrix - dense(nearest(matrix, blocks), blocks)

    assert pytest.approx(0.0, abs=1e-10) == (rest * dense(any_weight, blocks)).sum().item()


def test_a_block_times_a_basis_vector_is_a_shifted_column():
    weight = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])

    for way in WAYS:
        y = multiply(torch.eye(4)[2:3], weight, Blocks(4, 4, 4), way)
        torch.testing.assert_close(y, torch.tensor([[3.0, 4.0, 1.0, 2.0]]), rtol=1e-6, atol=1e-6)


@PADDED
@given(
    integers(2, 9),
    integers(2, 9),
    integers(2, 5),
    integers(1, 3),
    integers(0, 2),
    integers(1, 2),
    sampled_from(["fft", "auto"]),
)
def test_a_convolution_is_the_dense_one(channels, filters, k, stride, padding, dilation, way):
    k = min(k, max(channels, filters))
    layer = BlockCirculantConv2d(
        channels, filters, (2, 3), k, stride=stride, padding=padding, dilation=dilation, way=way
    ).double()
    x = torch.randn(2, channels, 7, 8, dtype=torch.double, requires_grad=True)
    y = layer(x)
    kernel = layer.dense_weight()
    reference = torch.nn.functional.conv2d(x, kernel, layer.bias, stride=stride, padding=padding, dilation=dilation)
    inputs = [x, layer.weight, layer.bias]

    assert (filters, channels, 2, 3) == tuple(kernel.shape)
    torch.testing.assert_close(y, reference, rtol=1e-10, atol=1e-10)
    for mine, theirs in zip(
        torch.autograd.grad(y.square().sum(), inputs),
        torch.autograd.grad(reference.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_a_convolution_comes_from_its_dense_form():
    made = BlockCirculantConv2d(8, 8, 3, 4, stride=2, padding=1)
    layer = torch.nn.Conv2d(8, 8, 3, stride=2, padding=1)
    with torch.no_grad():
        layer.weight.copy_(made.dense_weight())
    x = torch.randn(2, 8, 6, 6)

    torch.testing.assert_close(BlockCirculantConv2d.from_dense(layer, 4)(x), layer(x), rtol=1e-4, atol=1e-5)


def test_an_lstm_of_circulant_blocks_is_torchs_with_these_weights():
    layer = torch.nn.LSTM(8, 8, 2).double()
    made = BlockCirculantLSTM.from_dense(layer, 4)
    with torch.no_grad():
        for depth in range(2):
            for kind, parts in (("ih", made.inputs), ("hh", made.states)):
                getattr(layer, f"weight_{kind}_l{depth}").copy_(dense(parts[depth].weight, parts[depth].blocks))
    x = torch.randn(5, 3, 8, dtype=torch.double)
    (y, (h, c)), (reference, (h_reference, c_reference)) = made(x), layer(x)

    for mine, theirs in ((y, reference), (h, h_reference), (c, c_reference)):
        torch.testing.assert_close(mine, theirs)


def test_evaluation_keeps_what_it_made_and_sees_a_change_of_the_weight():
    layer = BlockCirculantLinear(16, 16, 8, way="fft").eval()
    x = torch.randn(3, 16)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(layer(x), x @ dense(layer.weight, layer.blocks).t() + layer.bias)
            layer.weight.add_(1.0)
        made = layer._kept[1]
        layer(x)
        changed = layer._kept[1]
        layer(x)

    assert changed is layer._kept[1]
    assert made is not changed


def test_storage_is_divided_by_k():
    layer = BlockCirculantLinear(1024, 512, 64)

    assert 1024 * 512 // 64 == layer.weight.numel()
    assert 64.0 == layer.blocks.compression


def test_padding_is_said():
    with pytest.warns(UserWarning, match="blocks of 4 do not divide 10 x 6: padded by 2 rows and 2 columns"):
        layer = BlockCirculantLinear(6, 10, 4)

    assert "padded by 2 x 2" in repr(layer)
    assert "padded" not in repr(BlockCirculantLinear(8, 8, 4))


@pytest.mark.parametrize("k", [0, 1, 9])
def test_a_block_that_is_no_block_is_refused(k):
    with pytest.raises(InputError, match="take k from 2 to 8"):
        BlockCirculantLinear(6, 8, k)


def test_half_precision_is_refused():
    with pytest.raises(InputError, match="no bfloat16"):
        BlockCirculantLinear(8, 8, 4).to(torch.bfloat16)(torch.zeros(1, 8, dtype=torch.bfloat16))


def test_an_adapter_begins_as_its_base_and_can_be_merged():
    base = torch.nn.Linear(8, 8)
    adapter = CirculantAdapter(base, 4, scale=0.5)
    x = torch.randn(3, 8)

    torch.testing.assert_close(adapter(x), base(x))
    assert ["update.weight"] == [name for name, one in adapter.named_parameters() if one.requires_grad]
    torch.nn.init.normal_(adapter.update.weight)
    torch.testing.assert_close(adapter.to_linear()(x), adapter(x), rtol=1e-4, atol=1e-5)


def test_only_layers_that_are_measured_quicker_are_replaced_where_rows_are_said(monkeypatch):
    """The choice is asked with the size of each layer; a convolution stays dense."""
    asked = []

    def is_quicker(inputs, outputs, k, num_rows, like, *, trains):
        asked.append((outputs, inputs, num_rows, trains))
        return inputs > 16

    monkeypatch.setattr("windtunnel.systems.layers.nn.circulant.modules.is_quicker", is_quicker)
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3), torch.nn.Linear(64, 16), torch.nn.Linear(16, 8))
    project(model, 8, rows=32)

    assert [torch.nn.Conv2d, BlockCirculantLinear, torch.nn.Linear] == [type(one) for one in model]
    assert [(16, 64, 32, True), (8, 16, 32, True)] == asked


def test_a_model_is_projected_layer_by_layer():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    project(model, {"0": 8, "2": 4})

    assert [8, 4] == [model[0].blocks.size, model[2].blocks.size]


def test_a_size_for_all_leaves_what_is_smaller():
    model = project(torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.Conv2d(16, 16, 3)), 8)

    assert [torch.nn.Conv2d, BlockCirculantConv2d] == [type(one) for one in model]


def test_a_name_that_is_not_there_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="did you mean first"):
        project(torch.nn.ModuleDict({"first": torch.nn.Linear(8, 8)}), {"frist": 4})


def test_what_is_shared_or_tied_is_refused():
    layer, tied = torch.nn.Linear(8, 8), torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    tied[1].weight = tied[0].weight

    with pytest.raises(InputError, match="used in 2 places"):
        project(torch.nn.Sequential(layer, layer), {"0": 4})
    with pytest.raises(InputError, match="tied to another layer's weight"):
        project(tied, {"0": 4})


def test_what_has_no_such_layer_is_refused():
    with pytest.raises(InputError, match="is a ReLU"):
        project(torch.nn.Sequential(torch.nn.ReLU()), {"0": 4})


@pytest.mark.parametrize("way", ["fft", "dft"])
def test_an_exported_layer_gives_the_same(way):
    layer, x = BlockCirculantLinear(16, 8, 8, way=way), torch.randn(3, 16)

    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))


@pytest.mark.slow
def test_a_compiled_layer_trains_to_the_same_gradients():
    layer, x = BlockCirculantLinear(16, 8, 8), torch.randn(3, 16, requires_grad=True)
    found = [
        torch.autograd.grad(one(x).square().sum(), [x, layer.weight])
        for one in (layer, torch.compile(layer, backend="aot_eager"))
    ]

    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)
