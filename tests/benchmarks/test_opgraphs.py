"""Operator graphs of whole models: layers repeat, sums add up, all-reduces hide behind the backward."""

import gzip
import json

import numpy as np
import pytest
from benchmarks.peers.opgraphs import (
    OpGraph,
    all_reduce_ns,
    end_to_end_ms,
    price_op_graph,
    read_op_graphs,
)

from tests.shared_data import shared_path
from windtunnel.errors import InputError
from windtunnel.graph import Kind, Phase
from windtunnel.hardware import Device

TOY = Device("toy", 2**30, bandwidth_bytes_per_s=1e9, peak_flops_per_s={"fp32": 1e12})


def node(name, op="misc", fw=(), bw=(), acc=(), tensors=()):
    return {"name": name, "op": op, "fw": fw, "bw": bw, "acc": acc, "prev": [], "next": [], "in": tensors, "out": [1]}


def read(tmp_path, *nodes):
    path = tmp_path / "graphs.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"toy-inf": list(nodes)}).encode()))
    return read_op_graphs(path)["toy-inf"]


def one_ms_each(table):
    """A price list: a linear layer takes 2 ms, anything else 1 ms."""
    return np.where(table.op == "linear", 2.0, 1.0)


EMBEDDING = node("embed", "EMBEDDING", fw=[["MEM", [[250_000], [250_000]]]])  # 2 MB at 1 GB/s: 2 ms
QUERY = node(
    "h_0_query", "Linear", fw=[["Linear", [8, 16, 32]]], bw=[["Linear", [8, 32, 16]]], acc=[["VECadd", [1, 512]]]
)
RESIDUAL = node("add_1", "VECadd", fw=[["VECadd", [8, 16]]])
VIEW = node("getitem", "getitem", fw=[["MEM", [[10**9]]]])
HEAD = node("lm_head", "Linear", fw=[["Linear", [8, 16, 64]]])


def test_the_traced_layer_repeats_between_prologue_and_epilogue(tmp_path):
    graph = read(tmp_path, EMBEDDING, QUERY, RESIDUAL, VIEW, HEAD)

    priced = price_op_graph(graph, TOY, one_ms_each, num_layers=3)

    assert (1, 3) == graph.layer()
    # 2 + 3 (2 + 1) + 2 forward, a view is free; 3 (2 + 1) backward
    assert 22 == end_to_end_ms(priced)
    assert 13 == priced.duration_ns[priced.select(phase=Phase.FORWARD)].sum() / 1e6


def test_the_backward_runs_in_reverse(tmp_path):
    first = node("h_0_a", "BMM", fw=[["BMM", [1, 2, 3, 4]]], bw=[["BMM", [1, 2, 4, 3]]])
    graph = read(tmp_path, first, {**first, "name": "h_0_b"})

    priced = price_op_graph(graph, TOY, one_ms_each)

    assert ["h_0_a", "h_0_b", "h_0_b", "h_0_a"] == priced.tasks.strings("name").to_numpy().tolist()
    assert {"tile"} == set(priced.tasks.strings("cost_source").to_numpy())


def test_an_all_reduce_runs_beside_the_backward_and_one_after_the_other(tmp_path):
    def layer(name):
        return node(name, "Linear", fw=[["Linear", [8, 16, 32]]], bw=[["Linear", [8, 32, 16]]])

    def gradient(name):
        return node(f"{name}_grad", "allreduce", bw=[["ALLREDUCE_ASYNC", [1_000_000]]])

    graph = read(tmp_path, layer("first"), gradient("first"), layer("second"), gradient("second"))
    rate = 2 * 4e6 / 0.72 / 3e-3  # 3 ms each between two devices

    priced = price_op_graph(graph, TOY, one_ms_each, num_devices=2, link_bytes_per_s=rate)

    assert 2 == priced.select(kind=Kind.COMM).sum()
    assert 3e6 == pytest.approx(all_reduce_ns(1_000_000, 2, rate))
    # forward 4, backward of the second until 6, its all-reduce until 9, that of the first until 12
    assert 12 == pytest.approx(end_to_end_ms(priced))


def test_a_fused_chain_is_its_last_operator_with_the_bytes_outside(tmp_path):
    works = [["VECadd", [8, 16]], ["VECadd", [8, 16]], ["VECrelu", [8, 16]]]
    chain = {**node("a~b~c", "fused", fw=works, tensors=[[8, 16], [8, 16], [8, 16]]), "out": [8, 16]}

    priced = price_op_graph(read(tmp_path, chain), TOY, one_ms_each)

    assert 2 == end_to_end_ms(priced)  # four tensors outside, two in the relu alone


def test_equal_operators_are_priced_once(tmp_path):
    asked = []

    def latency(table):
        asked.append(len(table))
        return np.ones(len(table))

    price_op_graph(read(tmp_path, QUERY, {**QUERY, "name": "h_0_key"}), TOY, latency, num_layers=24)

    assert [3] == asked


def test_what_is_no_graph_is_refused(tmp_path):
    (tmp_path / "bad.json").write_text("[1]")
    (tmp_path / "node.json").write_text('{"g": [{"name": "x"}]}')

    with pytest.raises(InputError, match="no operator graphs"):
        read_op_graphs(tmp_path / "bad.json")
    with pytest.raises(InputError, match="node 0 of g"):
        read_op_graphs(tmp_path / "node.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_op_graphs(tmp_path / "none.json")


def test_the_published_graphs_hold_one_layer_each():
    graphs = read_op_graphs(shared_path("cost/neusight/opgraphs.json.gz"))
    names = {name: graphs[name] for name in ("gpt2_large-inf-1024-4", "bert_large-inf-512-8", "opt_13-inf-2048-2")}

    ends = {
        name: [graph.nodes[row].name for row in (graph.layer()[0], graph.layer()[1] - 1)]
        for name, graph in names.items()
    }

    assert {
        "gpt2_large-inf-1024-4": ["transformer_h_0_ln_1", "add_15"],
        "bert_large-inf-512-8": ["bert_encoder_layer_0_attention_self_query", "bert_encoder_layer_0_output_layer_norm"],
        "opt_13-inf-2048-2": ["model_decoder_layers_0_self_attn_layer_norm", "view_11"],
    } == ends
    assert (0, 1) == OpGraph("none", names["gpt2_large-inf-1024-4"].nodes[:1]).layer()
