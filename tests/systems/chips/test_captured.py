"""Captured steps as models for the search of chips."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from windtunnel.errors import InputError, NotApplicableError
from windtunnel.sources.torch.step import capture
from windtunnel.systems.chips.answer import Options, codesign_models
from windtunnel.systems.chips.captured import models_of_graph

WIDTH, ROWS, DEPTH = 32, 16, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 10)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture(scope="module")
def graph():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, target = torch.randn(ROWS, 8), torch.zeros(ROWS, dtype=torch.int64)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), target).backward()
        optimizer.step()

    return capture(step, iterations=3, model=net, optimizer=optimizer)


def test_a_block_has_the_products_of_its_layers(graph):
    models = models_of_graph("net", graph, ROWS, [ROWS, 2 * ROWS])
    for samples, one in models.items():
        before, block, behind = one.by_degree[1].layers

        assert DEPTH == one.depth
        assert 8 * samples * WIDTH == before.forward.num_macs
        assert 8 * samples * WIDTH * WIDTH == block.forward.num_macs
        assert 2 * block.forward.num_macs == block.backward.num_macs  # gradients of inputs and of weights
        assert samples * WIDTH * 10 == behind.forward.num_macs
        assert 4 * (8 * WIDTH * WIDTH + 5 * WIDTH) == block.param_bytes
        assert [4 * samples * WIDTH] * 2 == one.by_degree[1].sent_bytes.tolist()
        # what relu hands on, for itself and the product behind it
        assert 4 * samples * 4 * WIDTH <= block.kept_bytes <= 4 * samples * 10 * WIDTH


def test_chips_are_chosen_for_a_captured_step(graph):
    models = models_of_graph("net", graph, ROWS, [ROWS])
    options = Options(num_devices=4, batch_size=64, memories=(2.0**30,), area_limit_um2=8e6, min_samples_per_s=1e4)
    answer = codesign_models(models, options, ("plan", "both", "smallest", "frugal"))

    assert "plan" == answer.base
    assert {"plan", "both", "smallest", "frugal"} == set(answer.choices)
    small = answer.choices["smallest"]
    assert small.samples_per_s >= 1e4
    cheaper = [one for one in answer.codesign.front if one.area_um2 < small.area_um2]
    assert all(one.samples_per_s < 1e4 for one in cheaper)
    assert {"num_planned", "num_possible"} == set(answer.to_dict()["cheapest"]["smallest"])
    with pytest.raises(InputError, match="no published plan"):
        codesign_models(models, options, ("given",))


def test_what_is_no_captured_step_is_refused(graph):
    with pytest.raises(InputError, match="how many samples"):
        models_of_graph("net", graph, 0, [1])
    with pytest.raises(InputError, match="a microbatch cannot be 0"):
        models_of_graph("net", graph, ROWS, [0])
    one = graph.with_columns(layer=np.full(graph.num_tasks, "head"))
    with pytest.raises(NotApplicableError, match="no two blocks"):
        models_of_graph("net", one, ROWS, [ROWS])
