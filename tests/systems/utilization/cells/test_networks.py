"""The space of cells: names, topology, published sizes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs the extra torch")

import torch

from windtunnel.errors import InputError
from windtunnel.sources.torch.flop_count import count
from windtunnel.systems.utilization.cells.networks import NUM_CELLS, OPERATIONS, Cell, network


def small(cell):
    return network(cell, channels=4, cells_per_stage=1)


@given(st.integers(0, NUM_CELLS - 1))
def test_number_name_and_operations_agree(index):
    cell = Cell.of_index(index)

    assert index == cell.index
    assert list(cell.operations) == re.findall(r"([a-z_0-9]+)~", cell.name)


def test_the_space_has_15625_cells():
    assert 15_625 == NUM_CELLS == len({Cell.of_index(index) for index in range(NUM_CELLS)})


@pytest.mark.slow
def test_the_largest_net_has_the_published_size():
    """1.531546 M parameters and 220.12 M products: NAS-Bench-201 (ICLR 2020) for 3 x 3 convolutions everywhere."""
    model = network(Cell(("nor_conv_3x3",) * 6))

    assert 1_531_546 == sum(parameter.numel() for parameter in model.parameters())
    assert 220.12 == round(count(lambda: model(torch.zeros(1, 3, 32, 32))).total / 2e6, 2)


@pytest.mark.parametrize("index", [0, 1, 77, 4_321, 11_111, 15_624])
def test_every_net_classifies(index):
    assert (2, 10) == tuple(small(index)(torch.zeros(2, 3, 16, 16)).shape)


def test_a_node_sums_what_its_edges_make_of_earlier_nodes():
    """Skips on every way: node 1 = x, node 2 = 2 x, node 3 = 4 x."""
    cell = small(Cell(("skip_connect",) * 6))[1]
    features = torch.randn(1, 4, 5, 5)

    assert torch.equal(4 * features, cell(features))


def test_ways_that_end_are_not_built():
    operations = ("nor_conv_3x3", "none", "none", "skip_connect", "none", "nor_conv_1x1")

    assert [(3, 0, "skip_connect")] == Cell(operations).live_edges()


def test_a_cell_without_any_way_gives_zeros():
    cell = small(Cell(("none",) * 6))[1]

    assert not cell(torch.randn(1, 4, 5, 5)).any()


def test_equal_seeds_give_equal_weights_and_leave_the_generator_alone():
    before = torch.get_rng_state()
    first, second = small(777), small(777)

    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("cell", [lambda: Cell(("skip_connect",) * 5), lambda: Cell(("conv",) * 6)])
def test_other_cells_are_refused(cell):
    with pytest.raises(InputError, match="6 operations"):
        cell()


@pytest.mark.parametrize("index", [-1, NUM_CELLS])
def test_a_number_outside_is_refused(index):
    with pytest.raises(InputError, match="no cell has the number"):
        Cell.of_index(index)


def test_operations_are_those_of_the_benchmark():
    assert ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3") == OPERATIONS
