"""Published transformers as layers: what a dry run of them says, against what is published of them."""

import json
import math

import numpy as np
import pytest

from tests.shared_data import shared_path
from windtunnel.errors import InputError
from windtunnel.graph import GraphBuilder, ResourceKind
from windtunnel.systems.chips.layers import layers_of
from windtunnel.systems.chips.networks import EXPERTS, trace_network
from windtunnel.systems.chips.operations import FUSED, TENSOR
from windtunnel.workloads.transformer_parts import PUBLISHED

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def bert():
    return trace_network("bert-large", 2)


@pytest.mark.slow
def test_a_layer_computes_what_its_shape_says(bert):
    shape, tokens = PUBLISHED["bert-large"], 2 * 512
    linear = tokens * (4 * shape.width**2 + 2 * shape.width * shape.inner)
    attention = 2 * 2 * 512 * 512 * shape.width
    _, layer, head = bert.by_degree[1].layers

    assert linear + attention == layer.forward.num_macs
    assert 2 * layer.forward.num_macs == layer.backward.num_macs
    assert tokens * shape.width * shape.vocabulary == head.forward.num_macs


@pytest.mark.slow
def test_tensor_ranks_share_the_products_and_sum_twice_each_way(bert):
    whole, half = (bert.by_degree[degree].layers[1] for degree in (1, 2))
    activations = 2 * 512 * 1024 * 2

    assert whole.forward.num_macs == 2 * half.forward.num_macs
    assert (0, 0) == (whole.forward.sum_bytes, whole.backward.sum_bytes)
    assert (2 * activations, 2 * activations) == (half.forward.sum_bytes, half.backward.sum_bytes)
    assert whole.param_bytes / 2 < half.param_bytes < 0.51 * whole.param_bytes
    assert half.kept_bytes < whole.kept_bytes < whole.written_bytes


@pytest.mark.slow
def test_what_alone_reads_a_product_is_fused_with_it(bert):
    forward = bert.by_degree[1].layers[1].forward
    kinds = dict(zip(forward.operations.names, forward.operations.kind_N.tolist(), strict=True))

    assert FUSED == kinds["bmm"] or TENSOR == kinds["bmm"]
    assert "gelu" not in kinds
    assert len(set(forward.operations.segment.tolist())) > 1


@pytest.mark.slow
def test_all_layers_are_a_chain_of_the_depth_that_is_published(bert):
    network = bert.network()
    activations = 2 * 512 * 1024 * 2

    assert 24 + 2 == len(network.names)
    assert ("embedding", "layer.1", "layer.24", "head") == tuple(network.names[at] for at in (0, 1, 24, 25))
    assert (network.sent_bytes_ET == activations).all()
    parameters = network.param_bytes_LT[:, 0].sum() / 2
    assert parameters == pytest.approx(336e6 + 30_522 * 1024, rel=0.01)  # BERT-large; its head shares the embedding


@pytest.mark.slow
def test_llama_computes_what_the_published_operator_graph_does():
    published = json.loads(shared_path("placement/phaze/llama2_7b_mbs1_seq4096_ops.json").read_text())
    macs = {"layer": 0, "head": 0}
    parameters = dict(macs)
    for node in published["nodes"]:
        if node["layer_id"] != 0:
            continue
        weights = [one for one in node["parameter_shape"] if one]
        part = "head" if [32000, 4096] in weights or node["id"] == 150 else "layer"
        parameters[part] += sum(math.prod(one) for one in weights)
        if node["op"] == "Linear":
            macs[part] += math.prod(node["activation_shape"][0]) * node["weights_shape"][0][-1]
        elif node["op"] == "matmul":
            macs[part] += math.prod(node["activation_shape"][0]) * node["input_shape"][0][-1]
    _, layer, head = trace_network("llama2-7b", 1).by_degree[1].layers

    assert macs["layer"] == layer.forward.num_macs
    assert macs["head"] == head.forward.num_macs
    assert parameters["layer"] == layer.param_bytes / 2
    assert parameters["head"] == head.param_bytes / 2


def test_every_network_has_a_plan_of_its_makers_that_holds_all_layers():
    assert set(PUBLISHED) == set(EXPERTS)
    for name, shape in PUBLISHED.items():
        cuts = EXPERTS[name].cuts(shape.depth)

        assert np.concatenate(cuts).tolist() == list(range(shape.depth + 2))
        assert shape.may_split(EXPERTS[name].degree)


def test_a_graph_without_shapes_is_refused():
    builder = GraphBuilder()
    builder.task("a", resource=builder.resource("cpu", ResourceKind.HOST_THREAD), duration_ns=1)

    with pytest.raises(InputError, match="no shapes"):
        layers_of(builder.build())


@pytest.mark.parametrize(("name", "microbatch"), [("gpt4", 1), ("gpt3", 0)])
def test_an_unknown_network_or_an_empty_microbatch_is_refused(name, microbatch):
    with pytest.raises(InputError, match=r"gpt4|cannot be 0"):
        trace_network(name, microbatch)
