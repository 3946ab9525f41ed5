"""Kernels found on fake tensors, measured in turn, and added up."""

import math

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from torch import nn

from windtunnel.cost import lookup
from windtunnel.cost.kernels import Kernel
from windtunnel.cost.lookup import Overhead, Stand, fit_overhead, measure
from windtunnel.cost.tracing import trace
from windtunnel.errors import PriceError
from windtunnel.measure.database import ProfileDatabase


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lookup, "_MIN_ROUNDS", 2)


def network():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 10)).eval()


IMAGES = torch.zeros(2, 3, 4, 4)


def test_a_net_is_traced_as_python_calls_it():
    kernels = trace(network(), [IMAGES])

    assert [
        "aten::conv2d.default",
        "aten::relu.default",
        "aten::flatten.using_ints",
        "aten::linear.default",
    ] == [kernel.operator for kernel in kernels]
    assert [(2, 3, 4, 4), (8, 3, 3, 3), (8,)] == [one.shape for one in kernels[0].tensors]


def test_nothing_is_computed_while_tracing():
    class Net(nn.Module):
        def forward(self, images):
            self.seen = images @ images
            return self.seen

    net = Net()
    trace(net, [torch.zeros(40_000, 40_000, device="meta")])  # 6 GB if it were real

    assert (40_000, 40_000) == tuple(net.seen.shape)


def test_equal_layers_are_one_kernel_and_other_shapes_another():
    same = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).eval()

    assert 1 == len(set(trace(same, [torch.zeros(2, 8)])))
    assert 2 == len({*trace(same, [torch.zeros(2, 8)]), *trace(same, [torch.zeros(3, 8)])})


def test_layout_is_part_of_a_kernel():
    layer = nn.Conv2d(4, 4, 3).eval()
    rows, channels = torch.zeros(1, 4, 8, 8), torch.zeros(1, 4, 8, 8).to(memory_format=torch.channels_last)

    assert trace(layer, [rows]) != trace(layer, [channels])
    assert "/[" in trace(layer, [channels])[0].signature


def test_a_net_that_decides_by_values_is_refused():
    class Deciding(nn.Module):
        def forward(self, images):
            return images if images.sum() > 0 else -images

    with pytest.raises(PriceError, match="does not run on fake tensors"):
        trace(Deciding(), [IMAGES])


def test_every_kernel_is_measured_once_and_found_again():
    database = ProfileDatabase(":memory:")
    kernels = trace(network(), [IMAGES])
    first = measure([*kernels, *kernels], 1, database=database, budget_s=0.0)

    assert set(kernels) == set(first)
    assert all(took > 0 for took in first.values())
    assert len(first) == len(database)
    assert first == measure(kernels, 1, database=database, budget_s=0.0)


def test_lists_keywords_and_indices_can_be_run_alone():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(5, 8)

        def forward(self, tokens):
            found = self.words(tokens)
            return torch.cat([found, found], dim=1).to(torch.bfloat16).add_(1, alpha=2)

    kernels = trace(Net().eval(), [torch.zeros(2, 3, dtype=torch.int64)])

    assert all(took > 0 for took in measure(kernels, 1, budget_s=0.0).values())


def test_a_kernel_that_cannot_run_has_no_time():
    weird = Kernel("aten::no_such_operator.default")

    assert math.isnan(measure([weird], 1, budget_s=0.0)[weird])
    with pytest.raises(PriceError, match="no measured time"):
        Overhead().latency_ns([weird], {weird: math.nan})


def test_rounds_can_be_made_one_by_one():
    stand = Stand(trace(network(), [IMAGES]))
    stand.rehearse()
    for _ in range(3):
        stand.round()

    assert {3} == {len(times) for times in stand.times.values()}


def test_the_latency_is_the_sum_and_a_constant_per_call():
    first, second = Kernel("a::b.c"), Kernel("a::b.d")
    table = {first: 100.0, second: 10.0}

    assert 2 * 100 + 10 + 3 * 5 == Overhead(5.0).latency_ns([first, first, second], table)


def test_the_constants_are_found_again():
    first, second = Kernel("a::b.c"), Kernel("a::b.d")
    table = {first: 100.0, second: 10.0}
    nets = [[first], [first, second], [second] * 7]
    truth = Overhead(7.0, 1.25)
    measured = [truth.latency_ns(net, table) for net in nets]
    found = fit_overhead(nets, table, measured, with_scale=True)

    assert math.isclose(7.0, found.per_call_ns)
    assert math.isclose(1.25, found.scale)
    assert 3 == found.num_nets


def test_too_few_nets_fix_no_constants():
    with pytest.raises(PriceError, match="do not fix"):
        fit_overhead([], {}, [])
