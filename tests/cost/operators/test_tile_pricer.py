"""The tile model as a pricer: which captured operators it knows, and what a graph costs with it."""

import numpy as np
import pytest

from tests.cost.operators.test_tile import SHEET, measured
from windtunnel.cost.operators.table import OpTable
from windtunnel.cost.operators.tile import train_tile
from windtunnel.cost.operators.tile_file import save_tile
from windtunnel.cost.operators.tile_pricer import TilePricer, operator_of, tile
from windtunnel.cost.pricing import price
from windtunnel.cost.roofline import RooflinePricer
from windtunnel.graph import GraphBuilder, Strings
from windtunnel.hardware import Device


@pytest.fixture(scope="module")
def model():
    table = measured("a", 0, 600).concat([measured("b", 1, 600)])
    return train_tile(table, SHEET, num_rounds=20)


@pytest.mark.parametrize(
    ("name", "shapes", "row"),
    [
        ("aten::mm", [[4, 16], [16, 8]], ("linear", (1, 4, 16, 8))),
        ("aten::mm", [[4, 16], [15, 8]], None),
        ("aten::bmm", [[2, 4, 16], [2, 16, 8]], ("bmm", (2, 4, 16, 8))),
        ("aten::linear", [[2, 3, 16], [8, 16], [8]], ("linear", (1, 6, 16, 8))),
        ("aten::add.Tensor", [[4, 16], [4, 16]], ("add", (4, 16))),
        ("aten::mul_", [[4, 16], [1]], ("mulu", (4, 16))),
        ("aten::gelu", [[2, 4, 16]], ("gelu", (8, 16))),
        ("aten::_softmax", [[2, 4, 16]], ("softmax", (8, 16))),
        ("aten::native_layer_norm", [[2, 4, 16], [16], [16]], ("ln", (8, 16))),
        ("aten::relu", [[]], None),
        ("aten::relu", [[0, 16]], None),
        ("aten::convolution", [[2, 3, 8, 8], [4, 3, 3, 3]], None),
    ],
)
def test_operators_are_recognized_by_name_and_shapes(name, shapes, row):
    assert row == operator_of(name, shapes)


def graph():
    builder = GraphBuilder()
    place = builder.resource("stream")
    for op in ("aten::addmm", "aten::relu", "aten::odd"):
        builder.task(op, op=op, resource=place, duration_ns=1, flops=100, bytes_read=1000, bytes_written=100)
    return builder.build().with_columns(input_shapes=Strings.of(["[[8], [64, 32], [32, 8]]", "[[64, 8]]", ""]))


def test_a_graph_is_priced_with_intervals_and_the_rest_by_others(model, tmp_path):
    path = save_tile(model, tmp_path / "tile.safetensors")

    priced = price(graph(), SHEET["c"], f"tile={path},roofline")

    assert ["tile", "tile", "roofline"] == priced.tasks.strings("cost_source").to_numpy().tolist()
    rows = OpTable.of_rows([("c", "linear", (1, 64, 32, 8)), ("c", "relu", (64, 8))])
    expected = np.rint(1e6 * model.price(rows, SHEET).latency_ms)
    np.testing.assert_array_equal(priced.duration_ns[:2], expected)
    assert (priced.tasks.get("efficiency_low")[:2] <= priced.tasks.get("efficiency_high")[:2]).all()


def test_without_a_file_or_on_a_cpu_it_prices_nothing(model):
    from windtunnel.cost.work import work_of

    work, _ = work_of(graph())
    cpu = Device("cpu", 2**30, 1e9, {"fp32": 1e12}, kind="cpu", l2_bytes=2**20)
    no_cache = Device("old", 2**30, 1e9, {"fp32": 1e12})

    assert [True, True, False] == sorted(TilePricer(model).covers(work, SHEET["c"]).tolist(), reverse=True)
    assert not tile().covers(work, SHEET["c"]).any()
    assert not TilePricer(model).covers(work, cpu).any()
    assert not TilePricer(model).covers(work, no_cache).any()


def test_another_batch_is_priced_by_its_own_shapes(model):
    """Priced from captured shapes, a step of eight times the batch would stand at many times the device's peak."""
    from windtunnel.whatifs.another_batch import with_batch

    captured = graph().with_columns(param_bytes=[4 * (32 * 8 + 8), 0, 0])
    priced = price(with_batch(captured, 64, 512), SHEET["c"], [TilePricer(model), RooflinePricer()])

    rows = OpTable.of_rows([("c", "linear", (1, 512, 32, 8)), ("c", "relu", (512, 8))])
    expected = np.rint(1e6 * model.price(rows, SHEET).latency_ms)
    assert "[[8],[512,32],[32,8]]" == priced.tasks.strings("input_shapes").decode(0)
    np.testing.assert_array_equal(priced.duration_ns[:2], expected)
