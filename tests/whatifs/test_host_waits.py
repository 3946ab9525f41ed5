"""Threads that wait for the device, and the same without the wait, worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.whatifs.steps import Layer, gpu_step
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.simulate import replay
from windtunnel.simulate.iterations import iteration_ns
from windtunnel.whatifs import whatif
from windtunnel.whatifs.host_waits import is_blocking_copy, no_sync, non_blocking_copies
from windtunnel.whatifs.loading import pinned_memory


def synchronous_step(*, kernel_ns=1000, host_ns=300, copy_ns=200, name="Memcpy HtoD (Pageable -> Device)"):
    """Copy a batch and wait for it, 300 of host, launch a kernel, read the loss: the device waits for the host twice.

    The host's calls take 10 each; a launched task begins when its call ends.
    """
    builder = GraphBuilder()
    cpu = builder.resource("main thread", ResourceKind.HOST_THREAD)
    stream = builder.resource("GPU 0 stream 7", ResourceKind.STREAM)

    def host(title, duration_ns, **columns):
        columns = {"kind": Kind.HOST, "op": title, "line": "", **columns}
        return builder.task(title, resource=cpu, phase=Phase.FORWARD, duration_ns=duration_ns, **columns)

    def device(title, duration_ns, call, kind):
        row = builder.task(
            title, resource=stream, phase=Phase.FORWARD, duration_ns=duration_ns, kind=kind, op=title, line=""
        )
        builder.edge(call, row, kind=EdgeKind.LAUNCH)
        return row

    to_device = host("cudaMemcpyAsync", 10, op="aten::copy_")
    batch = device(name, copy_ns, to_device, Kind.COPY)
    copied = host("cudaStreamSynchronize", 0, kind=Kind.SYNC, op="aten::copy_", line="train.py(8)")
    python = host("python", host_ns)
    launch = host("cudaLaunchKernel", 10)
    kernel = device("gemm", kernel_ns, launch, Kind.COMPUTE)
    to_host = host("cudaMemcpyAsync", 10, op="aten::_local_scalar_dense")
    loss = device("Memcpy DtoH (Device -> Pageable)", 2, to_host, Kind.COPY)
    read = host("cudaStreamSynchronize", 0, kind=Kind.SYNC, op="aten::_local_scalar_dense", line="train.py(12)")
    for chain in ([to_device, copied, python, launch, to_host, read], [batch, kernel, loss]):
        for src, dst in itertools.pairwise(chain):
            builder.edge(src, dst, kind=EdgeKind.ORDER)
    builder.edge(batch, copied, kind=EdgeKind.SYNC)
    builder.edge(loss, read, kind=EdgeKind.SYNC)
    return builder.build()


def step_ns(graph):
    """Of the changed graph, which repeats."""
    return iteration_ns(replay(graph), 1)


def test_without_waits_the_device_is_busy_all_the_time():
    """Before: 10 + 200 + 300 + 10 + 1000 + 2. After: 200 + 1000 + 2 of the device; 330 of host are hidden."""
    graph = synchronous_step()

    assert 1522 == replay(graph).makespan_ns
    assert 1202 == step_ns(no_sync(graph))


def test_without_waits_a_busy_host_sets_the_pace():
    assert 10 + 2000 + 10 + 10 == step_ns(no_sync(synchronous_step(host_ns=2000)))


@pytest.mark.parametrize("call", ["aten::_local_scalar_dense", r"train\.py\(12\)"])
def test_a_wait_that_is_named_goes_alone(call):
    """The copy of the next batch still waits for the kernel before it, and the host's 310 follow it."""
    assert 200 + 300 + 10 + 1000 + 2 == step_ns(no_sync(synchronous_step(), call=call))


def test_a_wait_that_is_not_there_has_a_suggestion():
    with pytest.raises(InputError, match="no wait is called 'aten::itm'"):
        no_sync(synchronous_step(), call="aten::itm")


def test_copies_that_do_not_block_leave_other_waits():
    """The loss is still read: the next copy begins after that, but 300 of host run beside its 200."""
    assert 10 + 300 + 10 + 1000 + 2 == step_ns(non_blocking_copies(synchronous_step()))


def test_a_copy_from_pinned_memory_can_block_too():
    name = "Memcpy HtoD (Pinned -> Device)"

    assert 10 + 300 + 10 + 1000 + 2 == step_ns(non_blocking_copies(synchronous_step(name=name)))


def test_pinned_memory_frees_the_call_that_waits_for_the_copy():
    """torch calls cudaStreamSynchronize behind a copy that blocks."""
    assert 10 + 300 + 10 + 1000 + 2 == replay(pinned_memory(synchronous_step(), call_ns=10)).makespan_ns


def test_what_waits_for_nothing_does_not_apply():
    with pytest.raises(NotApplicableError, match="nothing is copied"):
        non_blocking_copies(gpu_step([Layer("a")]))
    silent = synchronous_step()
    with pytest.raises(NotApplicableError, match="no host thread waits"):
        no_sync(silent.disconnect(silent.edges["kind"] == EdgeKind.SYNC))


def test_the_end_of_a_recording_is_no_wait_of_the_script():
    graph = gpu_step([Layer("a"), Layer("b")])
    names = graph.tasks.strings("name")
    renamed = graph.with_columns(name=names.assign(graph.select(kind=Kind.SYNC), "cudaDeviceSynchronize"))

    with pytest.raises(NotApplicableError, match="the end of the recorded window"):
        no_sync(renamed)


def test_answers_stay_within_what_the_device_has_to_do():
    answer = whatif(synchronous_step(), ["no-sync"])[0]

    assert 1522 / 1202 == pytest.approx(answer.speedup)
    assert 1522 / 1202 == pytest.approx(answer.limits.max_speedup, rel=0.01)


def test_a_value_that_is_read_is_no_blocking_copy_whatever_the_call_is_named():
    """On ROCm the call that reads a value is hipMemcpyWithStream."""
    graph = synchronous_step()
    reads = graph.select(op="aten::_local_scalar_dense")
    renamed = graph.with_columns(name=graph.tasks.strings("name").assign(reads, "hipMemcpyWithStream"))
    blocking = is_blocking_copy(renamed)

    assert ["aten::copy_"] == renamed.tasks.strings("op").take(np.flatnonzero(blocking)).to_numpy().tolist()
