"""The sliced optimizer of jobs on GPUs: kernels with a fixed part, and parameters gathered under the next pass."""

import numpy as np
import pytest

from tests.averaging_job import SIZES, averaging_job
from windtunnel.errors import InEffectError, NotApplicableError
from windtunnel.graph import Kind, Phase, ResourceKind
from windtunnel.hardware import machine
from windtunnel.simulate import replay
from windtunnel.simulate.iterations import iteration_ns
from windtunnel.systems.collectives.whatif_optimizer import sliced_optimizer
from windtunnel.testing import WhatIfContract
from windtunnel.whatifs import whatif
from windtunnel.whatifs.insert_tasks import is_on_host

# a nanosecond per byte: halves of 500, 1000 and 2000 ns
PER_LAYER = {"messages": ((0,), (1,), (2,)), "message_ns": (1000, 2000, 4000)}


def device_job(num_ranks=2, update_ns=300):
    """The job of the CPU tests, a kernel per layer and pass, on a stream of each rank's GPU."""
    graph = averaging_job(**PER_LAYER, num_ranks=num_ranks, is_by_layer=True)
    kinds = graph.resources["kind"]
    kinds = np.where(kinds == ResourceKind.HOST_THREAD, ResourceKind.STREAM, kinds).astype(kinds.dtype)
    updates = graph.select(phase=Phase.UPDATE, kind=Kind.COMPUTE)
    return graph.with_resources(graph.resources.replace(kind=kinds)).set_duration(updates, update_ns)


def period_ns(graph):
    return iteration_ns(replay(graph), 1)


class TestContract(WhatIfContract):
    name = "sliced-optimizer"

    def graphs(self):
        return [device_job(), device_job(num_ranks=3), device_job().concat(2)]


def test_kernels_wait_for_the_parameters_of_their_own_layer():
    # from the start of the backward pass: the last reduce-scatter ends at 4010, three updates of 300 at 4910;
    # all-gathers end at 6910, 7910 and 8410; forward kernels of 1000 from 6910 on
    assert period_ns(sliced_optimizer(device_job())) == 9910
    # the first forward kernel waits for all of them
    assert period_ns(sliced_optimizer(device_job(), overlaps_forward=False)) == 8410 + 3000


def test_captured_iterations_are_not_repeated():
    graph = device_job().concat(3)
    changed = sliced_optimizer(graph)

    assert 3 == changed.num_iterations
    assert period_ns(changed) == 9910


def test_a_kernel_of_an_update_keeps_its_fixed_part():
    for num_ranks in (2, 4):
        changed = sliced_optimizer(device_job(num_ranks, update_ns=4500))
        updates = changed.select(phase=Phase.UPDATE, kind=Kind.COMPUTE)

        # no kernel is shorter than 500; slices of three buckets touch all of the three parameters
        assert {500 + 4000 // num_ranks} == set(changed.duration_ns[updates].tolist())


def test_a_rank_keeps_its_share_of_the_state():
    graph = device_job(num_ranks=4).with_meta(memory_base_bytes=100_000)

    assert 100_000 - 2 * sum(SIZES.values()) * 3 // 4 == sliced_optimizer(graph).meta.memory_base_bytes
    assert 100_000 == sliced_optimizer(graph, state_ratio=0).meta.memory_base_bytes


def test_a_trace_without_parameters_waits_for_all_of_them_or_is_refused():
    graph = device_job().with_meta(parameters={}, optimizers=())
    with pytest.raises(NotApplicableError, match="which layer has which parameters") as refusal:
        sliced_optimizer(graph)

    assert "overlaps_forward=False" in str(refusal.value.fix)
    assert period_ns(sliced_optimizer(graph, overlaps_forward=False)) == 8410 + 3000


def test_a_sharded_job_is_not_sliced_again():
    with pytest.raises(InEffectError, match="the job is sharded"):
        sliced_optimizer(sliced_optimizer(device_job()))


def test_a_dry_run_is_answered_within_its_limits(tmp_path):
    pytest.importorskip("torch")
    from tests.sources.test_dry_run import AVERAGED, traced
    from windtunnel.whatifs.forecast import forecast

    graph = forecast(traced(tmp_path, AVERAGED, 8), machine("dgx-h100"), model="roofline").graph
    (answer,) = whatif(graph, ["sliced-optimizer"])

    assert answer.is_applicable
    assert answer.limits.max_speedup >= answer.speedup
    changed = sliced_optimizer(graph, num_iterations=2)
    ops = changed.tasks.strings("op").to_numpy()
    sent = changed.tasks["message_bytes"]
    gathered = sent[changed.select(kind=Kind.COMM) & (ops == "all_gather")].sum()
    assert 0 < gathered == sent[changed.select(kind=Kind.COMM) & (ops == "reduce_scatter")].sum()
    # torch updates lists of parameters on a GPU: a slice of each takes as many calls
    launched_ns, kept_ns = (
        item.duration_ns[item.select(phase=Phase.UPDATE, name="aten::_foreach_add.*") & is_on_host(item)].sum()
        for item in (graph, changed)
    )
    assert 0 < 2 * launched_ns == kept_ns
