"""Layers that are put in place of others in a program that knows nothing of it."""

import numpy as np
import pytest

from windtunnel import registry
from windtunnel.cost.rerun import Ratios
from windtunnel.errors import FlightError, InputError, NotApplicableError
from windtunnel.graph import Phase

torch = pytest.importorskip("torch")

from windtunnel.sources.torch.live import LiveProgram  # noqa: E402
from windtunnel.sources.torch.step import capture  # noqa: E402
from windtunnel.systems.layers.whatif_circulant import block_circulant  # noqa: E402
from windtunnel.systems.layers.whatif_dropout import structured_dropout  # noqa: E402


class Reader(torch.nn.Module):
    """Words to words; the embedding is tied to the last layer if one wants."""

    def __init__(self, is_tied=False):
        super().__init__()
        self.embedding = torch.nn.Embedding(16, 16)
        self.recurrent = torch.nn.LSTM(16, 16, 2, dropout=0.5)
        self.wide = torch.nn.Linear(16, 32)
        self.decoder = torch.nn.Linear(16, 16)
        self.narrow = torch.nn.Linear(32, 16)
        if is_tied:
            self.decoder.weight = self.embedding.weight

    def forward(self, words):
        hidden, _ = self.recurrent(self.embedding(words))
        return self.decoder(self.narrow(torch.relu(self.wide(hidden))))


def job(is_tied=False):
    torch.manual_seed(1)
    model = Reader(is_tied)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    words = torch.randint(0, 16, (6, 4))

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    return LiveProgram([model], [optimizer]), step


@pytest.fixture(scope="module", params=[False, True])
def graphs(request):
    live, step = job(request.param)
    return request.param, capture(step, iterations=3, model=live.models[0], optimizer=live.optimizers[0])


def flight(name):
    return registry.get("flight", name).function


def replaced_layers(change, graph):
    program = graph.meta.program
    assert program
    from windtunnel.cost.rerun import program_of

    calls = program_of(graph).calls
    return sorted({calls[place].layer for place, _, _ in change.needs[0].form.replaced})


def test_the_layers_that_can_are_asked_about_and_tied_ones_are_not(graphs):
    is_tied, graph = graphs
    expected = ["narrow", "wide"] if is_tied else ["decoder", "narrow", "wide"]

    assert ["recurrent"] == replaced_layers(structured_dropout(graph), graph)
    assert expected == replaced_layers(block_circulant(graph, k=8), graph)
    assert ["wide"] == replaced_layers(block_circulant(graph, k=8, layer="wide"), graph)


def test_a_tied_layer_that_is_named_is_refused_with_who_shares_it(graphs):
    is_tied, graph = graphs
    if not is_tied:
        pytest.skip("nothing is tied")

    with pytest.raises(InputError, match="decoder shares its weight: aten::embedding"):
        block_circulant(graph, k=8, layer="decoder")


def test_a_layer_that_is_not_there_is_refused_with_the_nearest(graphs):
    with pytest.raises(InputError, match="did you mean decoder"):
        block_circulant(graphs[1], k=8, layer="decodr")
    with pytest.raises(InputError, match="did you mean recurrent"):
        structured_dropout(graphs[1], layer="recurent")


def test_blocks_larger_than_every_layer_do_not_apply(graphs):
    with pytest.raises(NotApplicableError, match="none of 3 layers can be of circulant blocks of 64"):
        block_circulant(graphs[1], k=64)


def test_what_is_no_share_or_no_block_is_refused(graphs):
    with pytest.raises(InputError, match=r"1\.5 is not from 0 to 1"):
        structured_dropout(graphs[1], p=1.5)
    with pytest.raises(InputError, match="not 1"):
        block_circulant(graphs[1], k=1)


def test_only_the_replaced_calls_change_and_updates_are_of_what_is_left_of_the_weights(graphs):
    _, graph = graphs
    change = block_circulant(graph, k=8, layer="wide")
    count = len(change.needs[0].program.calls)
    places = [place for place, _, _ in change.needs[0].form.replaced]
    ratio = np.ones(count)
    ratio[places] = 0.5
    changed = change.finish(Ratios(ratio, ratio, np.ones(count), float("nan"), float("nan")), 0.75)
    moved = graph.duration_ns != changed.duration_ns
    is_update = graph.tasks["phase"] == 3

    (outputs, inputs) = next(call.shapes[1] for call in change.needs[0].program.calls if call.layer == "wide")
    assert {"wide.weight": (-(-outputs // 8), -(-inputs // 8), 8)} == change.needs[1].form.reshaped
    assert moved.any()
    is_engine = graph.select(phase=Phase.BACKWARD) & (graph.tasks["call"] < 0)  # on its way to a replaced node
    assert np.isin(graph.tasks["call"][moved & ~is_update & ~is_engine], places).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "given_"),
    [("structured-dropout", {"p": 0.5}), ("block-circulant", {"k": 8}), ("structured-dropout", {"p": 1.0})],
)
def test_the_captured_program_runs_again_with_the_layers_replaced(graphs, name, given_, tmp_path):
    from windtunnel.whatifs import whatif

    request = name + ":" + ",".join(f"{key}={value}" for key, value in given_.items())
    (answer,) = whatif(graphs[1], [request], prices="measured", database=str(tmp_path / "p.db"), budget_s=0.2)

    assert answer.is_applicable, answer.reason
    assert 0 < answer.predicted_ns


@pytest.mark.parametrize(("name", "given_"), [("structured-dropout", {}), ("block-circulant", {"k": 8})])
def test_training_goes_on_in_the_changed_program_and_everything_is_put_back(name, given_):
    live, step = job()
    model, optimizer = live.models[0], live.optimizers[0]
    step()
    before = [(id(one), one.stride()) for one in model.parameters()]
    order = [id(one) for one in optimizer.param_groups[0]["params"]]
    for _ in range(2):
        with flight(name)(live, **given_):
            losses = [step() for _ in range(3)]
        assert all(np.isfinite(losses))
        assert before == [(id(one), one.stride()) for one in model.parameters()]
        assert order == [id(one) for one in optimizer.param_groups[0]["params"]]
        assert not any("forward" in vars(module) for module in model.modules())
        step()


def test_circulant_weights_learn_in_place_of_the_dense_ones():
    live, step = job()
    model = live.models[0]
    dense = model.wide.weight.detach().clone()
    with flight("block-circulant")(live, k=8, layer="wide"):
        own = model.wide.forward.__self__.weight
        begun = own.detach().clone()
        step()

        assert torch.equal(dense, model.wide.weight)
        assert not torch.equal(begun, own)
        assert any(one is own for one in live.optimizers[0].param_groups[0]["params"])


def test_recurrent_layers_drop_whole_units_in_flight():
    live, _ = job()
    model = live.models[0]
    x = torch.zeros(6, 4, 16, requires_grad=True)
    with flight("structured-dropout")(live, p=0.5, place="nr"):
        model.recurrent(x)[0].sum().backward()
        dropped = (x.grad == 0).all(dim=1)  # [T, units]
        model.recurrent.eval()
        whole = model.recurrent(x)[0]

    assert [8] * 6 == dropped.sum(1).tolist()
    torch.testing.assert_close(model.recurrent(x)[0], whole)


def test_a_flight_of_a_tied_layer_is_refused():
    live, _ = job(is_tied=True)

    with (
        pytest.raises(FlightError, match="tied to another layer's weight"),
        flight("block-circulant")(live, k=8, layer="decoder"),
    ):
        pass


@pytest.mark.parametrize(("name", "said"), [("structured-dropout", "LSTM or GRU"), ("block-circulant", "linear layer")])
def test_a_flight_that_finds_nothing_is_refused(name, said):
    live, _ = job()

    with pytest.raises(FlightError, match=said), flight(name)(live, layer="nothing"):
        pass


class Feeding(torch.nn.Module):
    """A feed-forward block, behind a convolution; one dropout feeds a linear layer and one does not."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(8, 16, 3, padding=1)
        self.grouped = torch.nn.Conv2d(16, 16, 3, padding=1, groups=2)
        self.expand, self.reduce = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)
        self.dropout, self.last = torch.nn.Dropout(0.1), torch.nn.Dropout(0.1)

    def forward(self, x):
        hidden = self.grouped(self.conv(x)).mean((2, 3))
        return self.last(self.reduce(self.dropout(torch.relu(self.expand(hidden)))))


def feeding_job():
    torch.manual_seed(1)
    model = Feeding()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(5, 8, 4, 4)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return LiveProgram([model], [optimizer]), step


@pytest.fixture(scope="module")
def feeding_graph():
    live, step = feeding_job()
    return capture(step, iterations=3, model=live.models[0], optimizer=live.optimizers[0])


def test_linear_layers_behind_a_dropout_are_asked_about_with_it(feeding_graph):
    assert ["dropout", "reduce"] == replaced_layers(structured_dropout(feeding_graph), feeding_graph)
    with pytest.raises(NotApplicableError, match="there is no LSTM, GRU or linear layer behind a dropout"):
        structured_dropout(feeding_graph, layer="expand")
    with pytest.raises(NotApplicableError, match="there is no LSTM, GRU"):
        structured_dropout(feeding_graph, place="rh")


def test_the_dropout_before_a_layer_is_no_layer_of_its_own_in_a_ranking(feeding_graph):
    from windtunnel.simulate import replay
    from windtunnel.whatifs import Answer, parse_request
    from windtunnel.whatifs.by_layer import by_layer, worth_it

    change = structured_dropout(feeding_graph)
    ones = np.ones(len(change.needs[0].program.calls))
    after = change.finish(Ratios(0.5 * ones, 0.5 * ones, ones, float("nan"), float("nan")))
    answer = Answer(parse_request("structured-dropout"), replay(feeding_graph), 1.0).keeping(after)

    assert ["reduce"] == [one.layer for one in by_layer(answer)]
    assert "" == worth_it(by_layer(answer))


def test_convolutions_are_asked_about_and_those_of_groups_are_not(feeding_graph):
    assert ["conv", "expand", "reduce"] == replaced_layers(block_circulant(feeding_graph, k=8), feeding_graph)
    with pytest.raises(InputError, match="grouped is a convolution of 2 groups"):
        block_circulant(feeding_graph, k=8, layer="grouped")


def test_a_dropout_that_feeds_a_linear_layer_drops_whole_units_from_the_second_iteration_on():
    live, step = feeding_job()
    model = live.models[0]
    torch.nn.init.constant_(model.expand.bias, 10.0)  # so that ReLU makes no zeros of its own
    seen = []
    with flight("structured-dropout")(live, p=0.5):
        step()
        with model.expand.register_forward_hook(lambda _, __, y: y.retain_grad() or seen.append(y)):
            step()

        assert 16 == int((seen[0].grad == 0).all(dim=0).sum())
        assert not model.reduce.weight.is_contiguous()
        model.eval()
        whole = model(torch.ones(2, 8, 4, 4))

    torch.testing.assert_close(model(torch.ones(2, 8, 4, 4)), whole)
    assert model.reduce.weight.is_contiguous()


def test_the_product_behind_a_dropout_and_its_gradients_are_those_of_the_masked_input():
    from windtunnel.systems.layers.nn.dropout.feedforward import drop_units, multiply_kept_units
    from windtunnel.systems.layers.nn.layers import settings_of

    settings = settings_of(0.5, "nr", 1, 1)
    x, weight, bias = (torch.randn(size, dtype=torch.double, requires_grad=True) for size in ((3, 4, 8), (6, 8), (6,)))
    masked, keep = drop_units(x, settings)
    ours, theirs = (
        multiply_kept_units(masked, weight, bias, keep, settings),
        torch.nn.functional.linear(masked, weight, bias),
    )

    torch.testing.assert_close(ours, theirs)
    dy = torch.randn_like(ours)
    inputs = (x, weight, bias)
    for mine, other in zip(
        *(torch.autograd.grad(one, inputs, dy, retain_graph=True) for one in (ours, theirs)), strict=True
    ):
        torch.testing.assert_close(mine, other)
