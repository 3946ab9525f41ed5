from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis.strategies import booleans, integers, lists, sampled_from

from windtunnel.errors import InputError

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import pack_padded_sequence  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.systems.layers.nn.masked import gru_layer, lstm_layer, masks  # noqa: E402
from windtunnel.systems.layers.nn import StructuredGRU, StructuredLSTM  # noqa: E402
from windtunnel.systems.layers.nn.dropout.keep import draw, spans  # noqa: E402
from windtunnel.systems.layers.nn.dropout.products import WAYS  # noqa: E402
from windtunnel.systems.layers.nn.dropout.sequence import Dropped, Steps, gru, lstm, product  # noqa: E402

KINDS = {"lstm": (StructuredLSTM, torch.nn.LSTM), "gru": (StructuredGRU, torch.nn.GRU)}


def gradients(values, inputs):
    total = sum(
        (value * torch.linspace(-1, 1, value.numel(), dtype=value.dtype).view(value.shape)).sum() for value in values
    )
    return torch.autograd.grad(total, inputs)


def random(*sizes, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(size, dtype=dtype, generator=generator) / 2).requires_grad_() for size in sizes]


@given(
    sampled_from([(torch.float32, 1e-5), (torch.float64, 1e-10)]),
    sampled_from(["gru", "lstm"]),
    sampled_from(sorted(WAYS)),
    lists(integers(1, 5), min_size=1, max_size=5),
    booleans(),
    integers(0, 999),
)
def test_results_and_all_gradients_are_those_of_the_masked_form(precision, kind, way, sizes, is_reverse, seed):
    dtype, tolerance = precision
    sizes, (D, H) = sorted(sizes, reverse=True), (5, 6)
    N, B, num_gates = sum(sizes), sizes[0], 4 if kind == "lstm" else 3
    drop_x = spans(sizes, draw(D, 0.4, range(len(sizes)), seed=seed), 1)
    drop_h = spans(sizes, draw(H, 0.5, range(len(sizes)), seed=seed, site=1), 1)
    x, weight, recurrent, bias, second, h, c = given_ = random(
        (N, D),
        (num_gates * H, D),
        (num_gates * H, H),
        (num_gates * H,),
        (num_gates * H,),
        (B, H),
        (B, H),
        dtype=dtype,
        seed=seed,
    )
    mask_x, mask_h = masks(drop_x, N, D, dtype), masks(drop_h, N, H, dtype)
    gates, again = product(x, weight, bias, Dropped(drop_x, way=way)), Dropped(drop_h, way=way)
    steps = Steps(tuple(sizes), is_reverse)
    if kind == "lstm":
        inputs = [x, weight, recurrent, bias, h, c]
        ours = lstm(gates, recurrent, h, c, steps, again)
        reference = lstm_layer(x, weight, recurrent, bias, h, c, sizes, mask_x, mask_h, is_reverse=is_reverse)
    else:
        inputs = given_[:-1]
        ours = gru(gates, recurrent, second, h, steps, again)
        reference = gru_layer(x, weight, recurrent, bias, second, h, sizes, mask_x, mask_h, is_reverse=is_reverse)

    for mine, theirs in zip(
        (*ours, *gradients(ours, inputs)), (*reference, *gradients(reference, inputs)), strict=True
    ):
        assert float((mine - theirs).detach().norm()) <= tolerance * max(float(theirs.detach().norm()), 1.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_bidirectional", [False, True])
@pytest.mark.parametrize("how", ["steps first", "batch first", "packed", "unsorted", "alone"])
def test_where_nothing_is_left_out_it_is_torchs_layer(kind, is_bidirectional, how):
    """A share that rounds to no unit takes the way of structured dropout and must give what torch gives."""
    ours, theirs = (
        one(5, 6, 2, batch_first=how == "batch first", bidirectional=is_bidirectional, dropout=share, **own).double()
        for one, share, own in zip(
            KINDS[kind], (1e-9, 0.0), ({"input_dropout": 1e-9, "recurrent_dropout": 1e-9}, {}), strict=True
        )
    )
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(*((7, 5) if how == "alone" else (7, 4, 5)), dtype=torch.double, requires_grad=True)
    lengths = torch.tensor([7, 5, 5, 2] if how == "packed" else [2, 7, 5, 5])
    results = []
    for layer in (ours, theirs):
        given_ = pack_padded_sequence(x, lengths, enforce_sorted=False) if how in ("packed", "unsorted") else x
        output, last = layer(given_)
        data = output if isinstance(output, torch.Tensor) else output.data
        states = last if isinstance(last, tuple) else (last,)
        inputs = [x, *[parameter for _, parameter in sorted(layer.named_parameters())]]
        results.append([data, *states, *gradients([data, *states], inputs)])

    for mine, torchs in zip(*results, strict=True):
        torch.testing.assert_close(mine, torchs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_dict_loads_both_ways(kind):
    ours, theirs = (one(5, 6, 2, bidirectional=True) for one in KINDS[kind])
    ours.load_state_dict(theirs.state_dict())
    other = KINDS[kind][1](5, 6, 2, bidirectional=True)
    other.load_state_dict(ours.state_dict())

    for name, value in theirs.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck_passes(kind):
    layer = KINDS[kind][0](
        3, 4, 2, dropout=0.5, recurrent_dropout=0.5, input_dropout=0.3, seed=2, way="gather"
    ).double()
    x = torch.randn(3, 2, 3, dtype=torch.double, requires_grad=True)

    def run(given_, *_):
        layer.num_calls = 0
        return layer(given_)[0]

    assert torch.autograd.gradcheck(run, (x, *layer.parameters()))


def test_evaluation_drops_nothing():
    ours = StructuredLSTM(5, 6, 2, dropout=0.5, recurrent_dropout=0.5, input_dropout=0.5).eval()
    theirs = torch.nn.LSTM(5, 6, 2).eval()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(7, 4, 5)

    torch.testing.assert_close(theirs(x)[0], ours(x)[0])


def test_the_batch_can_be_permuted():
    layer = StructuredLSTM(5, 6, recurrent_dropout=0.5, input_dropout=0.5, seed=1).double()
    x, order, results = torch.randn(7, 4, 5, dtype=torch.double), torch.tensor([2, 0, 3, 1]), []
    for given_ in (x, x[:, order]):
        layer.num_calls = 0
        output, _ = layer(given_)
        results.append((output, torch.autograd.grad(output.square().sum(), list(layer.parameters()))))
    (plain, dplain), (permuted, dpermuted) = results

    torch.testing.assert_close(plain[:, order], permuted)
    for mine, theirs in zip(dplain, dpermuted, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_checkpoint_drops_the_same_units_again():
    layer = StructuredLSTM(5, 6, recurrent_dropout=0.5, input_dropout=0.5).double()
    x, found = torch.randn(7, 4, 5, dtype=torch.double, requires_grad=True), []
    for is_checkpointed in (False, True):
        torch.manual_seed(3)
        output = checkpoint(lambda one: layer(one)[0], x, use_reentrant=False) if is_checkpointed else layer(x)[0]
        found.append(torch.autograd.grad(output.square().sum(), [x, *layer.parameters()]))

    for plain, again in zip(*found, strict=True):
        assert torch.equal(plain, again)


def test_a_seed_of_its_own_under_a_checkpoint_is_refused():
    layer = StructuredLSTM(5, 6, recurrent_dropout=0.5, seed=1)
    x = torch.randn(7, 4, 5, requires_grad=True)
    output = checkpoint(lambda one: layer(one)[0], x, use_reentrant=False)

    with pytest.raises(InputError, match="would drop other units"):
        output.sum().backward()


def test_a_period_keeps_the_sets_and_calls_draw_other_ones():
    layer = StructuredLSTM(6, 6, input_dropout=0.5, period=7, seed=1, bias=False).double()
    x = torch.zeros(7, 1, 6, dtype=torch.double, requires_grad=True)
    found = []
    for _ in range(2):
        (dx,) = torch.autograd.grad(layer(x)[0].sum(), [x])
        found.append([tuple(torch.nonzero(row[0]).flatten().tolist()) for row in dx])

    assert 1 == len(set(found[0]))
    assert 3 == len(found[0][0])
    assert found[0][0] != found[1][0]


def test_all_dropped_leaves_the_biases():
    layer = StructuredLSTM(5, 6, input_dropout=1.0, recurrent_dropout=1.0).double()
    output, _ = layer(torch.randn(3, 2, 5, dtype=torch.double))
    nothing, _ = layer(torch.zeros(3, 2, 5, dtype=torch.double))

    assert torch.equal(nothing, output)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"recurrent_dropout": 1.2}, "from 0 to 1"),
        ({"input_dropout": -1.0}, "from 0 to 1"),
        ({"group": 8}, "groups of 8 where there are 6"),
        ({"period": 0}, "0 steps"),
        ({"way": "magic"}, "use one of auto, dense"),
        ({"proj_size": 3}, "has no projections"),
    ],
)
def test_what_cannot_be_done_is_said(arguments, said):
    with pytest.raises(InputError, match=said):
        StructuredLSTM(5, 6, **arguments)


def test_half_precision_is_refused():
    layer = StructuredLSTM(5, 6, recurrent_dropout=0.5).to(torch.bfloat16)

    with pytest.raises(InputError, match="has no bfloat16"):
        layer(torch.zeros(2, 1, 5, dtype=torch.bfloat16))


def test_a_state_of_another_shape_is_refused():
    layer = StructuredLSTM(5, 6, recurrent_dropout=0.5)

    with pytest.raises(InputError, match=r"\(1, 2, 7\) instead of \(1, 1, 6\)"):
        layer(torch.zeros(2, 1, 5), (torch.zeros(1, 2, 7), torch.zeros(1, 2, 7)))


def test_every_way_gives_one_loss():
    layer = StructuredLSTM(12, 8, 2, dropout=0.5, recurrent_dropout=0.5, input_dropout=0.5, group=2, seed=1).double()
    x, found = torch.randn(5, 3, 12, dtype=torch.double), {}
    for way in ("auto", *WAYS):
        layer.settings, layer.num_calls = replace(layer.settings, way=way), 0
        found[way] = layer(x)[0].square().sum().item()

    assert pytest.approx(found["dense"], rel=1e-12) == min(found.values())
    assert pytest.approx(found["dense"], rel=1e-12) == max(found.values())


def test_sequences_of_many_lengths_are_timed_as_few_shapes():
    from windtunnel.systems.layers.nn.dropout.ways import shape_of

    weight = torch.zeros(8, 4)
    shapes = {
        shape_of(weight, spans([20] * length, draw(8, 0.5, range(length), seed=0), 1), 1) for length in range(1, 65)
    }

    assert 7 == len(shapes)
    assert {20} == {shape.num_rows // shape.num_sets for shape in shapes}
