"""Prices of cells add up as traces do; searches find fronts."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs the extra torch")

import torch

from windtunnel.cost.lookup import Overhead
from windtunnel.cost.peak import Peak
from windtunnel.cost.tracing import trace
from windtunnel.errors import InputError
from windtunnel.sources.torch.flop_count import count
from windtunnel.systems.utilization.cells import search as planning
from windtunnel.systems.utilization.cells.networks import NUM_CELLS, Cell, network
from windtunnel.systems.utilization.cells.search import (
    CellParts,
    CellPrices,
    PricedCell,
    front_of,
    hypervolume,
    search_cells,
)

PEAK = Peak(1e11, 0.0, (512,) * 3, "avx512f", "float32", 1)


@pytest.fixture(scope="module")
def parts():
    return CellParts(batch_size=2, image_size=16, channels=4)


@pytest.fixture(scope="module")
def prices(parts):
    """Made-up times: every kernel costs what it moves."""
    table = {kernel: 100.0 + sum(torch.Size(one.shape).numel() for one in kernel.tensors) for kernel in parts.kernels()}
    return CellPrices(parts, table, Overhead(50.0), PEAK)


@pytest.mark.parametrize("index", [0, 3, 1_234, 7_777, 11_112, 15_624])
def test_parts_add_up_to_the_whole_net(parts, index, monkeypatch):
    monkeypatch.setattr(planning, "_CELLS_PER_STAGE", 1)
    model, images = network(index, channels=4, cells_per_stage=1), torch.zeros(2, 3, 16, 16)
    cell, kernels, flops, parameters = Cell.of_index(index), Counter(), 0, 0
    for part, number in parts.of(cell):
        kernels += Counter({kernel: number * times for kernel, times in Counter(part.kernels).items()})
        flops += number * part.flops
        parameters += number * part.parameters

    assert Counter(trace(model, [images])) == kernels
    assert count(lambda: model(images)).total == flops
    assert sum(one.numel() for one in model.parameters()) == parameters


def test_a_space_has_a_few_dozen_kernels(parts):
    assert 20 <= len(parts.kernels()) <= 60


def test_the_price_is_that_of_the_traced_net(prices):
    kernels = trace(network(7_777, channels=4), [torch.zeros(2, 3, 16, 16)])

    assert prices.price(Cell.of_index(7_777)).latency_ns == pytest.approx(
        prices.overhead.latency_ns(kernels, prices.table)
    )


@pytest.mark.parametrize("objectives", [("parameters", "latency"), ("parameters", "flops", "utilization")])
def test_a_search_finds_a_front_and_finds_it_again(prices, objectives):
    pytest.importorskip("optuna", reason="needs the extra search")
    first = search_cells(prices, objectives, num_trials=60, seed=3)

    assert first == search_cells(prices, objectives, num_trials=60, seed=3)
    assert set(first.front) <= set(first.tried)
    assert len(first.tried) == len(set(first.tried)) <= 60
    assert front_of(first.front, objectives) == first.front


def test_what_a_search_finds_is_not_better_than_the_whole_space(prices):
    pytest.importorskip("optuna", reason="needs the extra search")
    every = [prices.price(Cell.of_index(index)) for index in range(0, NUM_CELLS, 5)]
    found = search_cells(prices, num_trials=60)
    together = front_of([*every, *found.front], found.objectives)

    assert area(found.front) <= area(together)


def area(cells):
    return hypervolume([(-one.parameters, one.latency_ns) for one in cells], (0.0, 1e9))


point = st.tuples(st.integers(0, 20), st.integers(0, 20))


@given(st.lists(point, max_size=12))
def test_the_hypervolume_counts_the_squares_that_are_beaten(points):
    squares = {(x, y) for x in range(21) for y in range(21) if any(a <= x and b <= y for a, b in points)}

    assert len(squares) == hypervolume([(float(a), float(b)) for a, b in points], (21.0, 21.0))


@given(st.lists(point, min_size=1, max_size=12))
def test_every_cell_off_the_front_is_beaten_by_one_on_it(points):
    cells = [PricedCell(Cell.of_index(row), float(a), 0, b, 0.0) for row, (a, b) in enumerate(points)]
    front = front_of(cells, ("latency", "parameters"))

    for cell in cells:
        assert any(one.latency_ns <= cell.latency_ns and one.parameters >= cell.parameters for one in front)
    for one in front:
        assert not any(
            cell.latency_ns <= one.latency_ns
            and cell.parameters >= one.parameters
            and (cell.latency_ns, cell.parameters) != (one.latency_ns, one.parameters)
            for cell in cells
        )


@pytest.mark.parametrize("objectives", [("latency",), ("latency", "accuracy")])
def test_other_objectives_are_refused(prices, objectives):
    with pytest.raises(InputError, match="two or more objectives"):
        search_cells(prices, objectives)
