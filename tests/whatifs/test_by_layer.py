import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from windtunnel.cost.rerun import Ratios
from windtunnel.simulate import replay
from windtunnel.sources.torch import capture
from windtunnel.systems.layers.whatif_circulant import block_circulant
from windtunnel.whatifs import Answer, parse_request, whatif
from windtunnel.whatifs.by_layer import by_layer, worth_it


@pytest.fixture(scope="module")
def graph():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(32, 64)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return capture(step, iterations=3, model=model, optimizer=optimizer)


def answered(graph, factors):
    """As if each linear layer took so many times as long."""
    change = block_circulant(graph, k=16)
    program = change.needs[0].program
    ratio = np.ones(len(program.calls))
    for place, call in enumerate(program.calls):
        if call.operator == "aten::linear" and call.layer in factors:
            ratio[place] = factors[call.layer]
    prices = [Ratios(ratio, ratio, np.ones(len(ratio)), float("nan"), float("nan"))]
    prices += [1.0] * (len(change.needs) - 1)
    after = change.finish(*prices)
    baseline = replay(graph)
    predicted_ns = replay(after).makespan_ns / graph.num_iterations
    return Answer(parse_request("block-circulant:k=16"), baseline, predicted_ns).keeping(after)


def test_layers_are_ranked_by_what_each_alone_would_gain_and_losers_stay_in(graph):
    answer = answered(graph, {"0": 0.25, "2": 3.0})

    found = by_layer(answer)

    assert ["0", "2"] == [one.layer for one in found]
    assert [True, False] == [one.pays for one in found]
    assert found[0].predicted_ns == pytest.approx(found[0].now_ns / 4, rel=0.01)
    assert found[1].speedup < 1 < found[0].speedup
    assert "0" == worth_it(found)


def test_gains_of_one_layer_are_those_of_the_replay(graph):
    answer = answered(graph, {"0": 0.25})
    found = {one.layer: one for one in by_layer(answer)}

    assert answer.speedup == pytest.approx(found["0"].speedup, rel=0.01)
    assert found["2"].speedup == pytest.approx(1.0)


def test_a_change_that_replaces_no_layers_has_no_ranking(graph):
    (answer,) = whatif(graph, "block-circulant:k=1024")
    (other,) = whatif(graph, "faster-cpu:factor=2")

    assert [] == by_layer(answer)
    assert [] == by_layer(other)
