"""Utilization of hand-made graphs: values on paper, and parts that add up whatever the graph."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.cost.host import Ceilings, lanes_of
from windtunnel.cost.peak import Bandwidth, Peak
from windtunnel.errors import PriceError
from windtunnel.graph import Graph
from windtunnel.systems.utilization.model import LOSSES, utilization
from windtunnel.systems.utilization.quantization import padding_ratio, product_ratio, wave_ratio

# 1 flop per ns, 1 byte per ns, 16 lanes
FLAT = Ceilings(
    {"float32": Peak(1e9, 0.0, (512,) * 3, "avx512f", "float32", 1)}, (Bandwidth(1e9, 0.0, 96, 1),), num_threads=1
)


def graph(rows, **columns):
    """Tasks (op, layer, kind, flops, bytes, duration) on one thread, one after the other."""
    op, layer, kind, flops, moved, duration = zip(*rows, strict=True)
    count = len(rows)
    return Graph.from_columns(
        tasks={
            "name": list(op),
            "op": list(op),
            "layer": list(layer),
            "kind": list(kind),
            "flops": list(flops),
            "bytes_read": list(moved),
            "bytes_written": [0] * count,
            "resource": [0] * count,
            "duration_ns": list(duration),
            **columns,
        },
        edges={"src": list(range(count - 1)), "dst": list(range(1, count)), "kind": [1] * (count - 1)},
        resources={"name": ["cpu"], "kind": [0], "discipline": [0], "slots": [1]},
    )


PYTHON, COMPUTE = 0, 1


def parts(use):
    return {loss.name: round(loss.duration_ns, 6) for loss in use.waterfall if loss.duration_ns}


def test_a_product_and_what_surrounds_it():
    use = utilization(
        graph(
            [
                ("python", "a", PYTHON, 0, 0, 50),
                ("aten::mm", "a", COMPUTE, 100, 30, 250),
                ("aten::relu", "b", COMPUTE, 10, 40, 100),
            ]
        ),
        FLAT,
    )

    assert {"achieved": 100, "framework": 50, "low intensity": 40, "kernel": 150 + 60} == parts(use)
    assert (100, 10, 400) == (use.flops, use.elementwise_flops, use.duration_ns)
    assert math.isclose(100 / 400, use.value)
    assert math.isclose(110 / 400, use.all_value)


def test_a_product_that_moves_more_than_it_computes_waits_for_memory():
    use = utilization(graph([("aten::mm", "a", COMPUTE, 100, 180, 250)]), FLAT)

    assert {"achieved": 100, "memory": 80, "kernel": 70} == parts(use)
    assert math.isclose(100 / 180, use.layers[0].bound)


def test_a_product_faster_than_the_peak_is_a_negative_loss():
    """Winograd's convolution does fewer products than are counted."""
    use = utilization(graph([("aten::mkldnn_convolution", "a", COMPUTE, 100, 0, 80)]), FLAT)

    assert {"achieved": 100, "above peak": -20} == parts(use)
    assert use.value == 100 / 80


def test_channels_that_do_not_fill_vectors_are_named():
    rows = [("aten::mkldnn_convolution", "a", COMPUTE, 90, 0, 250)]
    shapes = {"input_shapes": ["[[1,16,8,8],[24,16,3,3],[]]"], "input_dtypes": ['["Tensor(float)"]']}

    assert {"achieved": 90, "quantization": 30, "kernel": 130} == parts(utilization(graph(rows, **shapes), FLAT))


def test_the_whole_is_the_harmonic_mean_of_layers_weighted_by_flops_not_the_mean():
    use = utilization(graph([("aten::mm", "a", COMPUTE, 100, 0, 100), ("aten::mm", "b", COMPUTE, 100, 0, 900)]), FLAT)
    harmonic = use.flops / sum(layer.flops / layer.utilization for layer in use.layers)

    assert math.isclose(harmonic, use.value)
    assert math.isclose(0.2, use.value)
    assert ["b", "a"] == [layer.layer for layer in use.layers]


def test_types_have_peaks_of_their_own():
    bf16 = Peak(4e9, 0.0, (512,) * 3, "amx_bf16", "bfloat16", 1)
    both = Ceilings({**FLAT.peaks, "bfloat16": bf16}, FLAT.bandwidths, 1)
    rows = [("aten::mm", "a", COMPUTE, 100, 0, 100)]
    types = {"input_dtypes": ['["Tensor(c10::BFloat16)","Tensor(c10::BFloat16)"]']}

    assert math.isclose(0.25, utilization(graph(rows, **types), both).value)
    with pytest.raises(PriceError, match="no peak was measured for bfloat16"):
        utilization(graph(rows, **types), FLAT)


def test_a_graph_without_flops_is_refused():
    with pytest.raises(PriceError, match="states the flops"):
        utilization(graph([("aten::relu", "a", COMPUTE, 10, 40, 100)]), FLAT)


task = st.tuples(
    st.sampled_from(["python", "aten::mm", "aten::relu", "aten::mkldnn_convolution"]),
    st.sampled_from(["a", "b", ""]),
    st.sampled_from([PYTHON, COMPUTE]),
    st.integers(0, 10_000),
    st.integers(0, 10_000),
    st.integers(0, 10_000),
)


@given(st.lists(task, min_size=1, max_size=12))
def test_the_parts_add_up_whatever_the_graph(rows):
    made = graph([("aten::mm", "a", COMPUTE, 5, 5, 5), *rows])
    use = utilization(made, FLAT)

    assert list(LOSSES) == [loss.name for loss in use.waterfall]
    assert math.isclose(100.0, sum(loss.percent for loss in use.waterfall), abs_tol=1e-6)
    assert all(loss.duration_ns >= -1e-6 for loss in use.waterfall if loss.name not in ("above peak", "overlap"))
    assert math.isclose(use.value, use.waterfall[0].percent / 100)


def test_operators_at_the_same_time_overlap():
    made = graph([("aten::mm", "a", COMPUTE, 100, 0, 100), ("aten::mm", "b", COMPUTE, 50, 0, 100)])
    both = Graph.from_columns(
        tasks={
            **{name: made.tasks[name] for name in ("kind", "flops", "bytes_read", "bytes_written", "duration_ns")},
            "name": ["x", "y"],
            "op": ["aten::mm", "aten::mm"],
            "resource": [0, 1],
        },
        edges={"src": np.zeros(0), "dst": np.zeros(0), "kind": np.zeros(0)},
        resources={"name": ["s0", "s1"], "kind": [1, 1], "discipline": [0, 0], "slots": [1, 1]},
    )

    assert {"achieved": 150, "kernel": 50, "overlap": -100} == parts(utilization(both, FLAT))


@pytest.mark.parametrize(
    ("operator", "shapes", "threads", "expected"),
    [
        ("aten::conv2d", [[1, 16, 8, 8], [32, 16, 3, 3]], 1, 1.0),
        ("aten::conv2d", [[1, 3, 8, 8], [32, 3, 3, 3]], 1, 1.0),
        ("aten::conv2d", [[1, 24, 8, 8], [24, 24, 3, 3]], 1, (32 / 24) ** 2),
        ("aten::conv2d", [[1, 24, 8, 8], [24, 1, 3, 3]], 1, 32 / 24),
        ("aten::conv2d", [[1, 32, 8, 8], [32, 16, 3, 3]], 1, 1.0),
        ("aten::conv2d", [[1, 16, 3, 3], [16, 16, 3, 3]], 2, 4 / 3),
        ("aten::mm", [[64, 32], [32, 40]], 1, 48 / 40),
        ("aten::addmm", [[40], [64, 32], [32, 40]], 1, 48 / 40),
        ("aten::relu", [[1, 24]], 1, 1.0),
        ("aten::mm", [[]], 1, 1.0),
    ],
)
def test_padding_of_products(operator, shapes, threads, expected):
    assert math.isclose(expected, product_ratio(operator, shapes, num_lanes=16, num_threads=threads))


@given(st.integers(1, 10_000), st.integers(1, 512))
def test_padding_and_waves_never_save_work(size, multiple):
    assert 1.0 <= padding_ratio(size, multiple) == wave_ratio(size, multiple)
    assert 1.0 == padding_ratio(size * multiple, multiple)


def test_bandwidth_lies_between_the_sizes_that_were_measured():
    steps = Ceilings(FLAT.peaks, (Bandwidth(100.0, 0, 10, 1), Bandwidth(1.0, 0, 1000, 1)), 1)

    assert math.isclose(100.0, steps.bytes_per_s(1))
    assert math.isclose(10.0, steps.bytes_per_s(100))
    assert math.isclose(1.0, steps.bytes_per_s(1e9))


@pytest.mark.parametrize(
    ("isa", "dtype", "num_lanes"), [("avx2", "float32", 8), ("amx_bf16", "bfloat16", 32), ("?", "float32", 1)]
)
def test_lanes_follow_the_instruction_set(isa, dtype, num_lanes):
    assert num_lanes == lanes_of(Peak(1.0, 0.0, (1, 1, 1), isa, dtype, 1))


@pytest.mark.slow
def test_a_captured_net_counts_the_same_flops_as_the_counter():
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    from windtunnel.sources.torch.flop_count import count
    from windtunnel.sources.torch.step import capture
    from windtunnel.systems.utilization.cells.networks import network

    model, images = network(7_777, channels=4, cells_per_stage=1), torch.zeros(2, 3, 16, 16)

    def step():
        with torch.inference_mode():
            model(images)

    use = utilization(capture(step, iterations=2, warmup=1, model=model), FLAT)

    assert count(step).total == use.flops
    assert math.isclose(100.0, sum(loss.percent for loss in use.waterfall), abs_tol=0.1)
