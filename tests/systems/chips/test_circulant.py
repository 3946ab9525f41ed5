"""Blocks of each layer and the engine for them, chosen together."""

import json
from itertools import product

import pytest

from tests.cli.command import windtunnel
from windtunnel.base.pareto import is_best
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.hardware import device
from windtunnel.systems.chips import circulant
from windtunnel.systems.chips.circulant import Layer, Limits, design, read_layers

CHIP = device("fourier-engine")
LAYERS = (
    Layer("fc1", 256, 784, 1, {8: 0.1, 16: 0.3, 64: 0.9}),
    Layer("conv", 64, 128, 49, {4: 0.2, 16: 0.25}),
    Layer("out", 10, 256, 1, {2: 0.2, 8: 0.5}),
)


@pytest.mark.parametrize("limits", [Limits(), Limits(0.5, 400, 60), Limits(0.3, 1024, 20, 8), Limits(0.0)])
def test_the_front_is_that_of_trying_everything(limits):
    dense = circulant._dense_cycles(LAYERS, CHIP)
    every = []
    for engine in circulant._engines(limits):
        for blocks in product(*(one.choices for one in LAYERS)):
            each = [circulant._of_layer(one, block, cycles, engine, limits)
                    for one, block, cycles in zip(LAYERS, blocks, dense, strict=True)]  # fmt: skip
            lost = sum(one.choices[block] for one, block in zip(LAYERS, blocks, strict=True))
            if lost <= limits.accuracy_points + 1e-9 and sum(one[1] for one in each) <= limits.num_memory_blocks:
                every.append((sum(one[0] for one in each), float(engine.num_real_multipliers), lost))
    expected = {tuple(round(one, 6) for one in goals)
                for goals, keep in zip(every, is_best(every), strict=True) if keep}  # fmt: skip
    found = [tuple(round(one, 6) for one in each.goals) for each in design(LAYERS, limits, CHIP).front]

    assert expected == set(found)
    assert len(expected) == len(found)


def test_a_design_stays_within_its_limits_and_is_looked_at_closely():
    answer = design(LAYERS, Limits(0.8, 500, 40), CHIP)

    for one in answer.front:
        assert one.lost_points <= 0.8 + 1e-9
        assert one.engine.num_real_multipliers <= 500
        assert one.num_memory_blocks <= 40
    assert answer.front[0].cycles < answer.dense_cycles
    assert 0 < answer.fixed_point_error < 0.01


def test_limits_that_nothing_meets_are_named():
    with pytest.raises(InfeasibleError, match=r"no blocks fit 1 blocks of memory .* at a loss of 0.1 points"):
        design(LAYERS, Limits(0.1, 1024, 1), CHIP)


def test_the_command_prints_the_front(tmp_path):
    path = tmp_path / "layers.json"
    layers = [{"name": one.name, "outputs": one.outputs, "inputs": one.inputs, "rows": one.rows,
               "losses": {str(k): v for k, v in one.losses.items()}} for one in LAYERS]  # fmt: skip
    path.write_text(json.dumps({"layers": layers}))
    table = windtunnel("chip", "plan", "circulant", path)
    document = windtunnel("chip", "plan", "circulant", path, "--json", "--max-accuracy-loss", "0.5")

    assert LAYERS == read_layers(path)
    assert 0 == table.code, table.stderr
    assert "fixed point changes outputs" in " ".join(table.stdout.split())
    found = json.loads(document.stdout)
    assert "windtunnel.codesign-circulant/1" == found["schema"]
    assert all(one["lost_points"] <= 0.5 + 1e-9 for one in found["front"])
    page = tmp_path / "front.html"
    assert 0 == windtunnel("chip", "plan", "circulant", path, "--html", page).code
    assert "accuracy lost, points" in page.read_text(encoding="utf-8")
    assert (
        1 == windtunnel("chip", "plan", "circulant", path, "--max-memory-blocks", "1", "--max-accuracy-loss", "0").code
    )
    refused = windtunnel("chip", "plan", "circulant", path, "--chip", "tpu-v4-like")
    assert 2 == refused.code
    assert "has no engine of transforms" in refused.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no layers can be read"),
        ("[]", "no layers can be read"),
        ('{"layers": []}', "there are no layers"),
        ('{"layers": [{"name": "a", "outputs": 8, "inputs": 8}]}', "no layers can be read"),
        ('{"layers": [{"name": "a", "outputs": 8, "inputs": 8, "losses": {"3": 0}}]}', "blocks of 3 do not fit"),
        ('{"layers": [{"name": "a", "outputs": 8, "inputs": 8, "rows": 0, "losses": {}}]}', "rows of a cannot be 0"),
    ],
)
def test_a_file_that_holds_no_layers_is_refused(tmp_path, text, message):
    path = tmp_path / "layers.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_layers(path)
