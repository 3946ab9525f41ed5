"""A network's layers and its step on a chip that skips zeros, from masks and from densities alone."""

import numpy as np
import pytest

from windtunnel import whatif
from windtunnel.base import bitmaps
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.hardware import device
from windtunnel.hardware.parts import SparseGrid
from windtunnel.sources.zeros.records import LayerRecord
from windtunnel.systems.chips.accelerators.sparse import MODES, ConvShape, LayerZeros, layer_cycles
from windtunnel.systems.chips.accelerators.sparse.estimate import Densities, estimate_cycles
from windtunnel.systems.chips.skipping import on_grid
from windtunnel.whatifs import apply, parse_request

CHIP = device("sparse-grid")
SHAPES = "[[8,64,8,8],[64,64,3,3]]"


def record(layer="conv", density=0.4, of_gradient=0.5, **more):
    rng = np.random.default_rng(0)
    given = {
        "layer": layer, "iteration": 3, "kind": "convolution", "inputs": (4, 64, 8, 8), "weight": (64, 64, 3, 3),
        "outputs": (4, 64, 8, 8), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1,
        "is_masked": True, "is_first": False, "X_bits": bitmaps.pack(rng.random((4, 64, 8, 8)) < density),
        "dY_bits": bitmaps.pack(rng.random((4, 64, 8, 8)) < of_gradient), **more,
    }  # fmt: skip
    return LayerRecord(**given)


def step(**own):
    """One layer forward and backward on a thread; eight images, of which the masks have four."""
    build = GraphBuilder()
    thread = build.resource("main thread", ResourceKind.HOST_THREAD)
    flops = 2 * 8 * 64 * 64 * 64 * 9
    common = {"kind": Kind.COMPUTE, "resource": thread, "layer": "conv", "input_dtypes": '["float","float"]'}
    first = build.task("forward", op="aten::mkldnn_convolution", phase=Phase.FORWARD, duration_ns=1_000_000,
                       flops=flops, bytes_read=2**17, bytes_written=2**17, input_shapes=SHAPES, **common)  # fmt: skip
    second = build.task("backward", op="aten::convolution_backward", phase=Phase.BACKWARD, duration_ns=2_000_000,
                        flops=2 * flops, bytes_read=2**18, bytes_written=2**17,
                        input_shapes='[[8,64,8,8],[8,64,8,8],[64,64,3,3]]', **common)  # fmt: skip
    build.edge(first, second)
    return build.build({"own": own})


def test_a_step_takes_what_its_layers_take_in_each_mode():
    found = on_grid([record()], CHIP, step())
    cycles = found.layers[0]

    for mode in MODES:
        expected = 2 * cycles.total(mode, field="step_cycles") / CHIP.clock_hz * 1e9
        assert expected == pytest.approx(found.busy_ns[mode], abs=2)
        assert found.busy_ns[mode] <= found.steps_ns[mode]
    assert found.steps_ns["in+out+wr"] < found.steps_ns["in+out"] < found.steps_ns["dc"]
    assert found.speedup("in+out+wr", ("backward",)) > found.speedup("in+out+wr") > 1


def test_masks_of_another_network_are_refused():
    with pytest.raises(NotApplicableError, match="no layer of the masks is in the graph"):
        on_grid([record("other")], CHIP, step())


def test_a_layer_that_the_graph_lacks_is_named():
    assert ("other",) == on_grid([record(), record("other")], CHIP, step()).unmatched


def test_a_chip_without_such_a_grid_is_refused():
    with pytest.raises(InputError, match="tpu-v4-like has no grid that skips zeros"):
        on_grid([record()], device("tpu-v4-like"))


def test_the_what_if_scales_each_pass_by_its_estimated_cycles():
    one = record()
    graph = step(zeros={"conv": one.summary()})
    changed = apply(graph, parse_request("sparse-accelerator"))
    densities = (Densities.read(one.summary()[name]) for name in ("input", "gradient"))
    cycles = estimate_cycles(ConvShape(4, 64, 8, 8, 64, (3, 3), padding=(1, 1)), *densities, CHIP.sparse_grid,
                              is_masked=True, is_first=False)  # fmt: skip
    behind = [sum(cycles[phase][mode] for phase in ("backward", "weights")) for mode in ("in+out+wr", "dc")]

    assert changed.duration_ns[0] == pytest.approx(
        1e6 * cycles["forward"]["in+out+wr"] / cycles["forward"]["dc"], abs=1
    )
    assert changed.duration_ns[1] == pytest.approx(2e6 * behind[0] / behind[1], abs=1)


@pytest.mark.parametrize(
    ("own", "request_text", "message"),
    [
        ({}, "sparse-accelerator", "does not say where it is zero"),
        ({"zeros": {"gone": record().summary()}}, "sparse-accelerator", "no layer has zeros"),
    ],
)
def test_a_graph_without_zeros_says_what_it_lacks(own, request_text, message):
    (answer,) = whatif(step(**own), request_text)

    assert message in answer.reason


@pytest.mark.parametrize("text", ["sparse-accelerator:mode=all", "sparse-accelerator:chip=h100"])
def test_a_mode_or_chip_that_is_not_there_is_refused(text):
    with pytest.raises(InputError, match=r"no mode is called|has no grid"):
        apply(step(zeros={"conv": record().summary()}), parse_request(text))


@pytest.mark.parametrize("density", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("of_gradient", [0.3, 1.0])
def test_estimates_of_random_zeros_lie_near_the_count(density, of_gradient):
    shape = ConvShape(4, 128, 16, 16, 128, (3, 3), padding=(1, 1))
    rng = np.random.default_rng(1)
    bits = [rng.random((4, 128, 16, 16)) < one for one in (density, of_gradient)]
    counted = layer_cycles(LayerZeros("conv", shape, *map(bitmaps.pack, bits)), SparseGrid())
    guessed = estimate_cycles(shape, Densities.even(density), Densities.even(of_gradient), SparseGrid(),
                               is_masked=True, is_first=False)  # fmt: skip

    for phase, one in counted.passes.items():
        for mode in MODES:
            assert one.cycles[mode] == pytest.approx(guessed[phase][mode], rel=0.12), (phase, mode)
