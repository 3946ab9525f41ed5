"""Throughput in the units that people think in; what is not known is left out."""

from __future__ import annotations

import pytest

from tests.whatifs.test_batch_size import EMBED
from windtunnel.graph import GraphBuilder, Kind, Phase
from windtunnel.hardware import device
from windtunnel.whatifs.speed import Speed, model_flops_of, speed_of, tokens_of

LINEAR = '["Tensor(c10::BFloat16)", "Tensor(c10::BFloat16)"]'


def products(*tasks, iterations=1):
    """A step of matrix products: (phase, flops)."""
    builder = GraphBuilder()
    for iteration in range(iterations):
        for phase, flops in tasks:
            builder.task("mm", op="aten::mm", kind=Kind.COMPUTE, duration_ns=1, phase=phase, flops=flops, bytes_read=8,
                         input_dtypes=LINEAR, iteration=iteration)  # fmt: skip
        builder.task("add", op="aten::add", kind=Kind.COMPUTE, duration_ns=1, phase=Phase.FORWARD, flops=999,
                     bytes_read=8, input_dtypes=LINEAR, iteration=iteration)  # fmt: skip
    return builder.build()


def looking_up(*lookups):
    """A step that looks tables up: (table, indices, shape)."""
    calls = [
        {
            "schema": EMBED, "inputs": [[table, 0, 0, 1, 4, "cpu"], [indices, 0, 0, 1, 8, "cpu"]],
            "shapes": [[500, 8], shape], "types": ["Tensor(float)", "Tensor(long int)"],
            "strides": [[8, 1], [1] * len(shape)], "outputs": [], "output_shapes": [], "output_types": [], "grad": True,
        }
        for table, indices, shape in lookups
    ]  # fmt: skip
    builder = GraphBuilder()
    for number in range(len(lookups)):
        builder.task("embedding", duration_ns=1, phase=Phase.FORWARD, call=number)
    return builder.build().with_meta(program={"calls": calls, "parameters": {"1": "tokens", "2": "others"}})


def test_model_flops_are_products_without_what_is_computed_again():
    once = model_flops_of(products((Phase.FORWARD, 100), (Phase.BACKWARD, 200)))
    again = model_flops_of(products((Phase.FORWARD, 100), (Phase.BACKWARD, 300)))

    assert (300, "bf16") == once == again
    assert 300 == model_flops_of(products((Phase.FORWARD, 100), (Phase.BACKWARD, 200), iterations=3))[0]
    assert 100 == model_flops_of(products((Phase.FORWARD, 100)))[0]
    assert (0.0, "") == model_flops_of(products())


def test_parts_of_an_operator_are_no_work_of_their_own():
    """Parts were counted as the last work of the graph is; a graph of parts alone ended in an IndexError."""
    graph = products((Phase.FORWARD, 100), (Phase.BACKWARD, 100))
    is_product = graph.tasks.strings("op").to_numpy() == "aten::mm"

    assert (0.0, "") == model_flops_of(graph.with_columns(is_part=graph.all_tasks))
    assert (100, "bf16") == model_flops_of(graph.with_columns(is_part=is_product & graph.select(phase=Phase.BACKWARD)))


def test_model_flops_utilization_names_the_peak():
    found = speed_of(products((Phase.FORWARD, 10**12), (Phase.BACKWARD, 2 * 10**12)), 6e6, device=device("h100"))

    assert 3e12 / 6e-3 / 989.5e12 == pytest.approx(found.mfu_ratio)
    assert "MFU 51 % of 990 TFLOP/s (h100-sxm5-80g, bf16)" == str(found)
    assert found.mfu_ratio == found.times(8, 6e6).mfu_ratio
    assert found.json()["samples_per_s"] is None


def test_a_table_of_tokens_says_how_many():
    assert 512 == tokens_of(looking_up((1, 10, [8, 64])))
    assert 1024 == tokens_of(looking_up((1, 10, [8, 64]), (1, 11, [8, 64])))  # two passes, gradients accumulated
    assert 512 == tokens_of(looking_up((1, 10, [8, 64]), (2, 11, [8, 64]), (1, 10, [8, 64])))  # and their types


def test_tokens_that_are_not_clear_are_not_given():
    assert 0 == tokens_of(looking_up((1, 10, [8])))  # an identity of a user, not a text
    assert 0 == tokens_of(looking_up((1, 10, [8, 64]), (2, 11, [8, 32])))  # two languages
    assert 0 == tokens_of(products((Phase.FORWARD, 1)))


def test_a_step_without_facts_has_no_speed():
    assert "" == str(speed_of(GraphBuilder().build(), 1e6))
    assert "31.2 samples/s" == str(Speed(32e6, num_samples=1))
    assert "1,000,000 samples/s, 64,000,000 tokens/s" == str(Speed(1e6, num_samples=1000, num_tokens=64_000))
