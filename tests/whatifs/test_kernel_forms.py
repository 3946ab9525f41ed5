"""Kernels of a device in another form, on traces without shapes: types, attention, compiled chains, layouts."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.whatifs.prices import published
from tests.whatifs.steps import Layer, cpu_step
from windtunnel.errors import InEffectError, InputError, NotApplicableError
from windtunnel.graph import EdgeKind, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.simulate import replay
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.whatifs import whatif
from windtunnel.whatifs.amp import amp, no_amp
from windtunnel.whatifs.compilation import compile_block, compile_model
from windtunnel.whatifs.layout import channels_last
from windtunnel.whatifs.optimizers import fused_optimizer
from windtunnel.whatifs.product_speed import product_slowdown, product_speedup
from windtunnel.whatifs.sdpa import sdpa

PAIRS = Path(__file__).parents[2] / "benchmarks" / "gpu" / "h200" / "pairs"
H200 = {"devices": [{"name": "NVIDIA H200", "totalGlobalMem": 150_109_880_320}]}
DISPATCH_NS, CALL_NS = 30, 10


def launched(*kernels, phase=Phase.FORWARD):
    """Kernels (operator, name, ns), each with 30 of host before its launch of 10; the last one is waited for."""
    builder = GraphBuilder()
    cpu = builder.resource("main thread", ResourceKind.HOST_THREAD)
    stream = builder.resource("GPU 0 stream 7", ResourceKind.STREAM)
    host, device = [], []
    for operator, name, duration_ns in kernels:
        about = {"phase": phase, "op": operator}
        host.append(builder.task(operator, resource=cpu, kind=Kind.HOST, duration_ns=DISPATCH_NS, **about))
        host.append(builder.task("cudaLaunchKernel", resource=cpu, kind=Kind.HOST, duration_ns=CALL_NS, **about))
        device.append(builder.task(name, resource=stream, kind=Kind.COMPUTE, duration_ns=duration_ns, **about))
        builder.edge(host[-1], device[-1], kind=EdgeKind.LAUNCH)
    for chain in (host, device):
        for src, dst in itertools.pairwise(chain):
            builder.edge(src, dst, kind=EdgeKind.ORDER)
    return builder.build({"hardware": H200})


def kernels_of(graph):
    rows = np.flatnonzero(graph.select(kind=Kind.COMPUTE))
    names = graph.tasks.strings("name")
    return [(names.decode(row), int(graph.duration_ns[row])) for row in rows]


ATTENTION = (
    ("aten::addmm", "sgemm", 500),
    ("aten::copy_", "elementwise_kernel", 40),
    ("aten::bmm", "sgemm_nn", 200),
    ("aten::div", "vectorized_elementwise_kernel", 90),
    ("aten::_softmax", "softmax_warp_forward", 110),
    ("aten::bmm", "sgemm_tn", 150),
    ("aten::addmm", "sgemm", 500),
)


@given(duration_ns=st.integers(1, 10**10), ratio=st.floats(1.0, 20.0))
def test_what_a_type_gains_the_other_loses(duration_ns, ratio):
    faster = duration_ns / product_speedup(duration_ns, ratio)

    assert product_speedup(duration_ns, ratio) <= ratio
    assert duration_ns == pytest.approx(faster * product_slowdown(faster, ratio), rel=1e-6)


def test_attention_by_hand_takes_as_long_as_its_products():
    changed = sdpa(launched(*ATTENTION))

    assert [("sgemm", 500), ("fused attention", 350), ("sgemm", 500)] == kernels_of(changed)


def test_the_host_launches_attention_once():
    """Of seven operators of 40 three are left; the fused one costs as much as one more."""
    changed = sdpa(launched(*ATTENTION))
    host = changed.select(kind=Kind.HOST)

    assert 3 * 40 + 40 == changed.duration_ns[host].sum()


def test_gradients_of_attention_compute_the_scores_again():
    kernels = [("aten::bmm", "sgemm", 100)] * 2 + [("aten::_softmax_backward_data", "softmax_warp_backward", 70)]
    changed = sdpa(launched(*kernels, *kernels[:2], phase=Phase.BACKWARD))

    assert [("fused attention", 500)] == kernels_of(changed)


def test_attention_in_one_kernel_is_in_effect():
    fused = launched(("aten::_flash_attention_forward", "flash_fwd_kernel", 100), ("aten::mm", "sgemm", 10))

    with pytest.raises(InEffectError, match="attention in one operator"):
        sdpa(fused)
    with pytest.raises(NotApplicableError, match="no softmax"):
        sdpa(launched(("aten::mm", "sgemm", 10)))


def test_kernels_between_products_become_one():
    """The chain of 60, 80 and 50 makes the trip of the longest; the update stays."""
    graph = launched(
        ("aten::mm", "sgemm", 500),
        ("aten::add", "elementwise_kernel", 60),
        ("aten::gelu", "elementwise_kernel", 80),
        ("aten::native_layer_norm", "vectorized_layer_norm_kernel", 50),
        ("aten::mm", "sgemm", 500),
        ("aten::mul", "elementwise_kernel", 30),
    )
    expected = [("sgemm", 500), ("fused kernel", 80), ("sgemm", 500), ("elementwise_kernel", 30)]

    assert expected == kernels_of(published(compile_model(graph)))
    assert expected == kernels_of(published(compile_block(graph)))
    assert replay(published(compile_model(graph))).makespan_ns < replay(graph).makespan_ns


def test_compiled_kernels_and_processors_are_not_compiled_again():
    with pytest.raises(InEffectError, match="generated by a compiler"):
        published(compile_model(launched(("", "triton_poi_fused_add_0", 10), ("aten::mm", "sgemm", 10))))
    with pytest.raises(NotApplicableError, match="no kernels run on a device"):
        published(compile_model(cpu_step([Layer("a")])))


def test_channels_last_needs_no_transposes():
    graph = launched(
        ("aten::cudnn_convolution", "void cudnn::engines_precompiled::nchwToNhwcKernel<float>", 50),
        ("aten::cudnn_convolution", "sm80_xmma_fprop_implicit_gemm_tf32f32", 400),
    )

    assert [("sm80_xmma_fprop_implicit_gemm_tf32f32", 400)] == kernels_of(published(channels_last(graph)))
    with pytest.raises(NotApplicableError, match="no kernel turns images"):
        published(channels_last(launched(("aten::mm", "sgemm", 10))))


def test_a_fused_update_reads_and_writes_each_tensor_once():
    passes = [("aten::_foreach_lerp_", "multi_tensor_apply_kernel", 300), ("aten::_foreach_addcdiv_", "k", 700)]
    changed = published(fused_optimizer(launched(*passes, phase=Phase.UPDATE)))

    assert [1000 * 7 / 20] == changed.duration_ns[changed.select(kind=Kind.COMPUTE)].tolist()


def test_autocast_costs_the_host_an_operator_for_each_product():
    """Short products gain nothing, so that the step becomes longer by one operator of 40 for each forward product."""
    graph = launched(*[("aten::mm", "sgemm", 10)] * 3)
    changed = published(amp(graph))
    host = graph.select(kind=Kind.HOST)

    assert graph.duration_ns[host].sum() + 3 * 40 == changed.duration_ns[host].sum()


def test_products_in_16_bits_have_the_reverse():
    halves = launched(("aten::mm", "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT", 10**6))

    with pytest.raises(InEffectError) as caught:
        published(amp(halves))
    assert "no-amp" == caught.value.reverse
    assert [10**6] == published(amp(halves, dtype="float16")).duration_ns[halves.select(kind=Kind.COMPUTE)].tolist()
    slower = published(no_amp(halves)).duration_ns[halves.select(kind=Kind.COMPUTE)]
    assert 989.5 / 67 == pytest.approx(slower[0] / 10**6, rel=0.02)
    with pytest.raises(NotApplicableError, match="no product runs in 16 bits"):
        published(no_amp(launched(("aten::mm", "sgemm", 10))))


def test_a_recorded_step_with_attention_by_hand_gains_what_was_measured():
    """1.06 to 1.22 were measured, in the quartiles of seven turns; the host alone sets the pace."""
    graph = load_kineto(PAIRS / "attention_by_hand-plain.json.gz")
    answer = whatif(graph, ["sdpa"])[0]

    assert 1.06 < answer.speedup < 1.22
    assert 6 * 3 * 2 == answer.graph.select(name="fused attention").sum()  # layers, iterations, passes


def test_compiled_code_in_graphs_is_launched_once_for_each_pass():
    """Kernels of 500, 80 and 500 in forward, 900 in backward; the update stays as it is."""
    chain = [("aten::add", "elementwise_kernel", 60), ("aten::gelu", "elementwise_kernel", 80)]
    kernels = [("aten::mm", "sgemm", 500), *chain, ("aten::mm", "sgemm", 500)]
    late = [("aten::mm", "sgemm", 500), ("aten::mm", "sgemm", 400), ("aten::mul", "elementwise_kernel", 30)]
    graph = launched(*kernels, *late)
    phases = np.array([Phase.FORWARD] * 4 + [Phase.BACKWARD] * 2 + [Phase.UPDATE], dtype=np.int8)
    graph = graph.with_columns(phase=np.repeat(phases, 3))
    changed = published(compile_model(graph, mode="reduce-overhead"))
    host = changed.select(kind=Kind.HOST)

    assert [500, 80, 500, 500, 400, 30] == [duration for _, duration in kernels_of(changed)]
    assert [40_000, 40_000, DISPATCH_NS, CALL_NS] == changed.duration_ns[host].tolist()
    assert 2 == changed.select(name="launch graph").sum()


def test_code_that_is_compiled_already_gains_the_launches():
    compiled = launched(("", "triton_poi_fused_add_0", 10), ("aten::mm", "sgemm", 10))
    changed = published(compile_model(compiled, mode="reduce-overhead"))

    assert 1 == changed.select(kind=Kind.HOST).sum()
    with pytest.raises(NotApplicableError, match="no launches that CUDA graphs could save"):
        published(compile_model(cpu_step([Layer("a")]), mode="reduce-overhead"))
    with pytest.raises(InputError, match="no mode 'fast'"):
        compile_model(compiled, mode="fast")
