"""Graphs priced: what knows best prices first, and every task says who did."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from windtunnel.cost.bounds import bounds_on
from windtunnel.cost.pricer import Pricer, Prices, exact_prices
from windtunnel.cost.pricing import in_type, price, price_work, require_possible, tiers_of
from windtunnel.cost.roofline import RooflinePricer
from windtunnel.cost.work import Work, work_of
from windtunnel.errors import InputError, PriceError
from windtunnel.graph import GraphBuilder, Kind
from windtunnel.hardware import Device, machine

CHIP = Device("toy", 2**30, bandwidth_bytes_per_s=1e9, peak_flops_per_s={"fp32": 1e12, "bf16": 2e12})


class Half:
    """Knows one operator, and says that it reaches half of the bound, give or take."""

    def __init__(self, operator, sureness=1.25, name="half"):
        self.operator, self.sureness, self.name = operator, sureness, name

    def covers(self, work, device):
        return work.operator == self.operator

    def price(self, work, device):
        half = exact_prices(bounds_on(device, work.flops, work.bytes_moved), 0.5)
        return Prices(half.bounds, half.efficiency, half.efficiency / self.sureness, half.efficiency * self.sureness)


def graph_of(*tasks):
    builder = GraphBuilder()
    for number, (op, flops, moved, kind) in enumerate(tasks):
        builder.task(f"t{number}", op=op, kind=kind, duration_ns=100, flops=flops, bytes_read=moved, bytes_written=0)
    return builder.build()


MIXED = graph_of(
    ("gemm", 10**9, 10, Kind.COMPUTE),
    ("relu", 10, 10**6, Kind.COMPUTE),
    ("gemm", 10**9, 10, Kind.COMPUTE),
    ("python", 0, 0, Kind.HOST),
)


def column(graph, name):
    return graph.tasks.strings(name).to_numpy().tolist()


def test_equal_work_is_one_row():
    work, rows = work_of(MIXED)

    assert 2 == len(work)
    assert [2, 1] == sorted(work.num_tasks.tolist(), reverse=True)
    assert rows[0] == rows[2] != rows[1]
    assert -1 == rows[3]


def test_a_sum_with_a_product_computes_in_the_type_of_its_factors():
    builder = GraphBuilder()
    dtypes = '["Tensor(float)", "Tensor(c10::Half)", "Tensor(c10::Half)"]'
    for op in ("aten::addmm.dtype_out", "aten::add_"):
        builder.task(op, op=op, duration_ns=1, flops=8, bytes_read=1, input_dtypes=dtypes)
    work, _ = work_of(builder.build())

    assert {"aten::addmm.dtype_out": "fp16", "aten::add_": "fp32"} == dict(zip(work.operator, work.dtype, strict=True))


def test_the_first_model_that_knows_an_operator_prices_it():
    priced = price(MIXED, CHIP, [Half("gemm"), RooflinePricer()])

    assert [2_000_000, 1_000_000, 2_000_000, 100] == priced.duration_ns.tolist()
    assert ["half", "roofline", "half", ""] == column(priced, "cost_source")
    assert ["compute", "memory", "compute", ""] == column(priced, "binding")
    assert [0.5, 1.0, 0.5] == priced.tasks["efficiency"][:3].tolist()
    assert np.isnan(priced.tasks["efficiency_low"][[1, 3]]).all()
    assert 0 == priced.tasks["duration_std_ns"][1] < priced.tasks["duration_std_ns"][0]


def test_within_a_tier_the_surest_wins():
    work, _ = work_of(MIXED)
    vague, sure = Half("gemm", 2.0, "vague"), Half("gemm", 1.1, "sure")
    _, sources = price_work(work, CHIP, [[vague, sure], [RooflinePricer()]])

    assert {"gemm": 1, "relu": 2} == dict(zip(work.operator.tolist(), sources.tolist(), strict=True))


def test_an_operator_without_a_price_is_named_with_its_share():
    graph = graph_of(("gemm", 10, 10, Kind.COMPUTE), ("mystery", 0, 0, Kind.COMPUTE))
    with pytest.raises(PriceError, match=r"1 of 2 tasks that compute and 50\.0 % of their time") as caught:
        price(graph, CHIP)

    assert "mystery" in str(caught.value)


def test_another_type_shrinks_bytes_and_takes_its_own_peak():
    assert [500_000, 500_000] == price(MIXED, CHIP, dtype="bf16").duration_ns[:2].tolist()
    with pytest.raises(InputError, match="no type is called"):
        in_type(work_of(MIXED)[0], "float3")


def test_integers_stay_integers_in_another_type():
    work = Work.of_counts(np.array(["a", "b"]), np.array([8.0, 8.0]), np.array([8.0, 8.0]))
    work.dtypes[:] = ['["Tensor(float)"]', '["Tensor(long int)"]']

    assert [4, 8] == in_type(work, "bf16").bytes_moved.tolist()


def test_models_are_found_by_name():
    assert [["roofline"]] == [[one.name for one in tier] for tier in tiers_of("roofline")]
    assert "roofline" == tiers_of("auto")[-1][0].name
    assert all(isinstance(one, Pricer) for tier in tiers_of("auto") for one in tier)
    with pytest.raises(InputError, match="no cost_model is called"):
        tiers_of("rooflin")
    with pytest.raises(InputError, match="is not trained"):
        tiers_of("roofline=model.safetensors")


def test_a_machine_without_a_device_is_refused():
    with pytest.raises(PriceError, match="no device"):
        price(MIXED, machine())


class Says:
    """A model that says one time for everything."""

    def __init__(self, duration_ns, *, is_measurement=False):
        self.name, self.duration_ns, self.is_measurement = "says", duration_ns, is_measurement

    def covers(self, work, device):
        return np.ones(len(work), dtype=bool)

    def price(self, work, device):
        limits = bounds_on(device, work.flops, work.bytes_moved)
        return exact_prices(limits, limits.efficiency(np.full(len(work), float(self.duration_ns))))


def test_a_model_that_is_under_the_bound_is_raised_to_it_and_it_is_said():
    priced = price(MIXED, CHIP, [Says(1_500_000)])

    assert [1_500_000, 1_500_000, 1_500_000, 100] == priced.duration_ns.tolist()
    assert ["says"] * 3 == column(priced, "cost_source")[:3]
    priced = price(MIXED, CHIP, [Says(10)])
    assert [1_000_000, 1_000_000, 1_000_000, 100] == priced.duration_ns.tolist()
    assert ["says under its bound"] * 3 == column(priced, "cost_source")[:3]
    assert ["compute", "memory", "compute"] == column(priced, "binding")[:3]
    assert [1.0] * 3 == priced.tasks["efficiency"][:3].tolist()


def test_a_measurement_under_the_bound_stays_since_it_was_seen():
    priced = price(MIXED, CHIP, [Says(10, is_measurement=True)])

    assert [10, 10, 10, 100] == priced.duration_ns.tolist()
    assert ["says"] * 3 == column(priced, "cost_source")[:3]
    assert [1.0] * 3 == priced.tasks["efficiency"][:3].tolist()


def test_a_price_under_the_bound_that_got_through_is_our_defect_and_names_everything():
    priced = price(MIXED, CHIP, [RooflinePricer()])
    with pytest.raises(PriceError, match=r"roofline prices t0 at 1,000,000 ns, and toy needs at least 1,000,500 ns"):
        require_possible(priced, np.array([0]), np.array([1_000_500.0]), CHIP)


def test_rows_of_a_table_that_nobody_reads_are_no_bound():
    """A capture counts the whole table as read; a model that knows better is right."""
    graph = graph_of(("aten::embedding", 0, 8 * 10**6, Kind.COMPUTE)).with_columns(input_shapes=["[[1000000,2],[3]]"])

    assert [3000] == price(graph, CHIP, [Says(3000)]).duration_ns.tolist()


def test_an_operator_on_a_tensor_without_elements_costs_a_launch():
    """A key-value cache begins empty, and is filled and zeroed all the same."""
    graph = graph_of(("aten::fill_", 0, 0, Kind.COMPUTE), ("aten::relu", 0, 0, Kind.COMPUTE))
    launched = replace(CHIP, launch_overhead_ns=9000)

    priced = price(graph.with_columns(input_shapes=["[[0],[]]", "[[2,0,4]]"]), launched, "roofline")

    assert [9000, 9000] == priced.duration_ns.tolist()
    with pytest.raises(PriceError, match=r"no cost model has a price for 1 of 2 tasks"):
        price(graph.with_columns(input_shapes=["[[0],[]]", "[[2,1]]"]), launched, "roofline")


def test_integers_go_by_the_peak_of_the_type_that_is_asked_for():
    """Chips without fp32 run steps whose indices are integers."""
    chip = Device("half", 2**30, bandwidth_bytes_per_s=1e9, peak_flops_per_s={"bf16": 1e12})
    graph = graph_of(("gemm", 10**9, 8, Kind.COMPUTE), ("aten::add", 10, 10**6, Kind.COMPUTE))
    graph = graph.with_columns(input_dtypes=['["Tensor(float)"]', '["Tensor(long int)"]'])

    assert [1_000_000, 1_000_000] == price(graph, chip, "roofline", dtype="bf16").duration_ns.tolist()


def test_a_double_goes_by_the_peak_of_fp32_where_none_is_stated():
    graph = graph_of(("gemm", 10**9, 8, Kind.COMPUTE)).with_columns(input_dtypes=['["Tensor(double)"]'])

    assert [1_000_000] == price(graph, CHIP, "roofline").duration_ns.tolist()
