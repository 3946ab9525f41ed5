"""Counters read the arguments that torch's own operators have under these names."""

import pytest

from windtunnel.graph.flops import CONTRACTIONS, operator_flops

torch = pytest.importorskip("torch")

HEADS, ROWS, COLUMNS, WIDTH, MIXED = (2, 3), 5, 8, 4, 6
SIZES = {"query": (*HEADS, ROWS, WIDTH), "key": (*HEADS, COLUMNS, WIDTH), "value": (*HEADS, COLUMNS, MIXED)}


def arguments(name):
    return [one.name for one in getattr(torch.ops.aten, name).default._schema.arguments]


@pytest.mark.parametrize("name", [name for name in CONTRACTIONS if name.startswith("_scaled_dot_product")])
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention(name, is_causal):
    """Scores and mix; backward the scores again, and two products for each: the upper triangle is not computed."""
    names = arguments(name)
    shapes = [SIZES.get(one) for one in names]
    values = [is_causal if one == "is_causal" else None for one in names]
    pairs = 2 * 3 * (ROWS * (ROWS + 1) // 2 if is_causal else ROWS * COLUMNS)
    per_pair = 3 * WIDTH + 2 * MIXED if name.endswith("_backward") else WIDTH + MIXED

    assert 2 * pairs * per_pair == operator_flops(f"aten::{name}", shapes, values, [None])


@pytest.mark.parametrize("name", ["convolution", "_convolution", "convolution_overrideable"])
def test_a_transposed_convolution_meets_its_weights_at_every_input(name):
    names = arguments(name)
    shapes = [{"input": (2, 6, 5, 5), "weight": (6, 4, 3, 3)}.get(one) for one in names]
    values = [True if one == "transposed" else None for one in names]

    assert 2 * (2 * 6 * 5 * 5) * (4 * 3 * 3) == operator_flops(f"aten::{name}", shapes, values, [(2, 4, 7, 7)])
